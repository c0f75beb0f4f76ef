"""A generation has one consumer, and every rollout its own samples."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition
from langgraph.types import RetryPolicy

from obsspec_agents import SpeculativeToolNode, Speculator, speculative
from obsspec_agents.events import Event, GenerationCommitted, SkipReason, StepEnded
from tests.contract.fakes import (
    Oracle,
    Policy,
    Shell,
    call,
    numbered,
    right,
    three_turns,
    two_turns,
)
from tests.contract.graphs import START_STATE, agent, played

pytestmark = pytest.mark.looptime

MakeSpeculator = Callable[..., Speculator]


async def test_rollouts_of_one_prompt_get_samples_of_their_own(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    model = Policy(numbered(three_turns()))
    speculator = make_speculator(Oracle(right))
    graph = agent(model, [Shell().tool], speculator)
    states = await asyncio.gather(*(graph.ainvoke(START_STATE) for _ in range(40)))
    answers = [m.content for s in states for m in s["messages"] if m.type == "ai"]
    assert len(answers) == len(set(answers)) == 40 * 3
    assert model.counts["draws"] == 40 * 3
    assert speculator.summary.committed == 40 * 2
    assert speculator.summary.runs == 40
    taken = [e.speculation for e in events if isinstance(e, GenerationCommitted)]
    assert len(taken) == len(set(taken))


async def test_branches_of_one_run_share_no_generation(make_speculator: MakeSpeculator) -> None:
    answer = numbered(three_turns())

    def drawn(messages: Sequence[BaseMessage]) -> AIMessage:
        message = answer(messages)
        calls = [call(command=c["args"]["command"]) for c in message.tool_calls]
        return message.model_copy(update={"tool_calls": calls})

    model = Policy(drawn)
    speculator = make_speculator(Oracle(right))
    inner = agent(model, [Shell().tool], speculator)
    outer = StateGraph(MessagesState)
    for name in ("a", "b", "c"):

        async def branch(state: MessagesState) -> dict[str, Any]:
            result = await inner.ainvoke({"messages": [HumanMessage("go", id="0")]})
            return {"messages": result["messages"][1:]}

        outer.add_node(name, branch)
        outer.add_edge(START, name)
    state = await outer.compile().ainvoke({"messages": [HumanMessage("go", id="0")]})
    answers = [m.content for m in state["messages"] if m.type == "ai"]
    assert len(answers) == len(set(answers)) == 9
    assert model.counts["draws"] == 9
    assert speculator.summary.committed == 6
    assert speculator.summary.runs == 1


async def test_branches_may_use_the_same_call_ids(make_speculator: MakeSpeculator) -> None:
    speculator = make_speculator(Oracle(right))
    slow = agent(Policy(two_turns()), [Shell(3.0).tool], speculator)
    fast = agent(Policy(two_turns()), [Shell(0.1).tool], speculator)

    async def first(state: MessagesState) -> dict[str, Any]:
        await slow.ainvoke({"messages": "one thing"})
        return {}

    async def second(state: MessagesState) -> dict[str, Any]:
        await asyncio.sleep(1.0)  # asks, and asks again, while the other's tool runs
        await fast.ainvoke({"messages": "another thing"})
        return {}

    outer = StateGraph(MessagesState)
    for name, branch in (("first", first), ("second", second)):
        outer.add_node(name, branch)
        outer.add_edge(START, name)
    await outer.compile().ainvoke(START_STATE)
    assert speculator.summary.committed == 2


async def test_an_agent_node_that_is_retried_draws_afresh(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    speculator = make_speculator(Oracle(right))
    model = Policy(numbered(two_turns()))
    joining = speculative(model, speculator)
    drawn: list[str] = []

    async def ask(state: MessagesState) -> dict[str, Any]:
        answer = await joining.ainvoke(state["messages"])
        drawn.append(answer.content[-2:])
        if len(drawn) == 2:
            raise ConnectionError("after the answer")
        return {"messages": [answer]}

    graph = StateGraph(MessagesState)
    retry = RetryPolicy(initial_interval=0.1, jitter=False, retry_on=ConnectionError)
    graph.add_node("agent", ask, retry_policy=retry)
    graph.add_node("tools", SpeculativeToolNode([Shell().tool], speculator=speculator))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    await graph.compile().ainvoke(START_STATE)
    assert drawn == ["#1", "#2", "#3"]
    assert [e.outcome for e in events if isinstance(e, StepEnded)] == ["committed"]


async def test_the_same_request_twice_is_answered_twice(make_speculator: MakeSpeculator) -> None:
    model = Policy(numbered(two_turns()))
    speculator = make_speculator(Oracle(right))
    joining = speculative(model, speculator)
    with speculator.run():
        said = await joining.ainvoke("go")
        with speculator.step(said) as step:
            await asyncio.sleep(1.0)
            result = step.observe(ToolMessage("ran ls", tool_call_id="c1", name="shell"))
        request = [HumanMessage("go"), said, result]
        answers = await asyncio.gather(*(joining.ainvoke(request) for _ in range(3)))
    assert len({a.content for a in answers}) == 3
    assert (model.counts["draws"], speculator.summary.committed) == (4, 1)


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_callers_seed_is_part_of_the_request(
    make_speculator: MakeSpeculator, seed: int
) -> None:
    model = Policy(numbered(two_turns()))
    speculator = make_speculator(Oracle(right))
    joining = speculative(model, speculator)
    with speculator.run():
        said = await joining.ainvoke("go", seed=1)
        with speculator.step(said) as step:
            await asyncio.sleep(1.0)
            result = step.observe(ToolMessage("ran ls", tool_call_id="c1", name="shell"))
        await joining.ainvoke([HumanMessage("go"), said, result], seed=seed)
    assert speculator.summary.committed == (1 if seed == 1 else 0)


async def test_an_answer_in_the_cache_is_left_to_the_cache(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    draws = []
    for speculator in (None, make_speculator(Oracle(right))):
        model = Policy(three_turns(), cache=InMemoryCache())
        runs = [await played(agent(model, [Shell().tool], speculator)) for _ in range(3)]
        assert [m["content"] for m in runs[2][0]] == [m["content"] for m in runs[0][0]]
        draws.append(model.counts["draws"])
    assert draws[0] == draws[1]


async def test_a_next_answer_in_the_cache_is_not_speculated_on(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    class Fresh(InMemoryCache):
        """Has forgotten the answers to first requests."""

        def lookup(self, prompt: str, llm_string: str) -> Any:
            return super().lookup(prompt, llm_string) if "ran ls" in prompt else None

    model = Policy(two_turns(), cache=Fresh())
    speculator = make_speculator(Oracle(right))
    for _ in range(2):
        await played(agent(model, [Shell().tool], speculator))
    assert model.counts["draws"] == 3
    assert [e.outcome for e in events if isinstance(e, StepEnded)] == ["committed", "ended"]
    assert [e.reason for e in events if isinstance(e, StepEnded)] == ["", SkipReason.CACHED]
