"""Nothing of one run reaches another, except what a memory was told to share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool

from obsspec_agents import RecallWorldModel, Scope, Speculator
from obsspec_agents.events import Event, RunEnded, RunStarted
from tests.contract.fakes import Oracle, Policy, Shell, call, right, three_turns, two_turns
from tests.contract.graphs import START_STATE, agent

pytestmark = pytest.mark.looptime

MakeSpeculator = Callable[..., Speculator]


def labelled(group: str, task: str = "t") -> Any:
    return {"metadata": {"obsspec_group": group, "obsspec_task": task}}


@pytest.mark.parametrize(
    ("scope", "second", "shared"),
    [
        (Scope.RUN, labelled("a"), False),
        (Scope.GROUP, labelled("a"), True),
        (Scope.GROUP, labelled("b"), False),
        (Scope.TASK, labelled("b"), True),
        (Scope.TASK, labelled("b", "u"), False),
        (Scope.ALL, labelled("b", "u"), True),
    ],
)
async def test_a_memory_is_shared_as_it_was_told(
    make_speculator: MakeSpeculator, scope: Scope, second: Any, shared: bool
) -> None:
    with closing(RecallWorldModel(scope=scope)) as memory:
        speculator = make_speculator(memory)
        graph = agent(Policy(three_turns()), [Shell().tool], speculator)
        await graph.ainvoke(START_STATE, labelled("a"))
        assert speculator.summary.committed == 0
        await graph.ainvoke(START_STATE, second)
        assert speculator.summary.committed == (2 if shared else 0)


async def test_the_default_memory_is_for_the_run_alone(make_speculator: MakeSpeculator) -> None:
    def again(messages: Any) -> Any:
        if len(messages) > 4:
            return three_turns()([*messages, *messages])
        answer = two_turns()([HumanMessage("x")])
        return answer.model_copy(update={"tool_calls": [call(command="ls")]})

    speculator = make_speculator()
    graph = agent(Policy(again), [Shell().tool], speculator)
    await graph.ainvoke(START_STATE)
    assert speculator.summary.committed == 1  # the second of two equal calls
    await graph.ainvoke(START_STATE)
    assert speculator.summary.committed == 2


async def test_concurrent_runs_are_runs_of_their_own(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    oracle = Oracle(right)
    graph = agent(Policy(three_turns()), [Shell().tool], make_speculator(oracle))
    await asyncio.gather(*(graph.ainvoke(START_STATE, labelled(str(i))) for i in range(5)))
    begun = [e for e in events if isinstance(e, RunStarted)]
    assert {e.group for e in begun} == {str(i) for i in range(5)}
    assert len({e.run for e in begun}) == 5
    assert {e.run for e in events if isinstance(e, RunEnded)} == {e.run for e in begun}
    # Each prediction was asked with the labels and the history of its own run.
    groups = {c.run.id: c.run.group for c in oracle.asked}
    assert groups == {e.run: e.group for e in begun}
    assert sorted(len(c.history) for c in oracle.asked) == [0] * 5 + [1] * 5


async def test_a_run_of_a_run_is_the_same_run(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    speculator = make_speculator(Oracle(lambda c: None))
    inner = agent(Policy(three_turns()), [Shell().tool], speculator)

    @tool
    async def delegate(command: str) -> str:
        """Ask another agent."""
        state = await inner.ainvoke(START_STATE)
        return str(state["messages"][-1].content)

    first = AIMessage("", tool_calls=[call("delegate", "d", command="x")])
    outer = agent(Policy(two_turns(first)), [delegate], speculator)
    state = await outer.ainvoke(START_STATE)
    assert state["messages"][-1].content == "done with done with ran cat"
    assert len({e.run for e in events if e.run}) == 1
    assert (speculator.summary.runs, speculator.summary.turns) == (1, 5)


async def test_the_end_of_one_run_ends_no_other(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    speculator = make_speculator(Oracle(right))
    models = [Policy(two_turns(last=" ".join(["word"] * 50))) for _ in range(2)]
    runs = [
        asyncio.create_task(agent(m, [Shell(3.0).tool], speculator).ainvoke(START_STATE))
        for m in models
    ]
    await asyncio.sleep(2.0)
    runs[0].cancel()
    await asyncio.gather(*runs, return_exceptions=True)
    assert [m.counts["aborted"] for m in models] == [1, 0]
    assert speculator.summary.committed == 1
