"""Hit, miss and failure: the transcript, the callbacks and the time of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from obsspec_agents import Speculator
from obsspec_agents.events import GenerationCommitted, GenerationDiscarded, StepEnded
from tests.contract.fakes import Oracle, Policy, call, turns
from tests.contract.graphs import Everything, agent, transcript

pytestmark = pytest.mark.looptime

MakeSpeculator = Callable[..., Speculator]


@tool
async def shell(command: str) -> str:
    """Run a command."""
    await asyncio.sleep(2.0)
    return f"ran {command}"


def policy() -> Policy:
    return Policy(
        turns(
            AIMessage("let me look at it", tool_calls=[call(_id="c1", command="ls")]),
            lambda seen: AIMessage(f"saw {seen} now", tool_calls=[call(_id="c2", command="cat")]),
            lambda seen: AIMessage(f"done with {seen}"),
        )
    )


async def played(graph: Any, how: str) -> tuple[list[Any], list[Any], float]:
    """Messages, everything that was shown, and the virtual seconds that it took."""
    loop, shown = asyncio.get_running_loop(), Everything()
    begun = loop.time()
    config = {"callbacks": [shown]}
    start = {"messages": [("user", "go")]}
    if how == "ainvoke":
        state = await graph.ainvoke(start, config)
    else:
        streamed: list[Any] = []
        state = {}
        async for mode, part in graph.astream(start, config, stream_mode=["messages", "values"]):
            if mode == "values":
                state = part
            else:
                streamed.append((part[0].content, part[1]["langgraph_node"]))
        shown.events.append(("streamed", streamed))
    return transcript(state["messages"]), shown.events, loop.time() - begun


PREDICTIONS = {
    "right": lambda c: f"ran {c.args['command']}",
    "wrong": lambda c: "something else",
    "none": lambda c: None,
    "failing": lambda c: 1 / 0,
}


@pytest.mark.parametrize("how", ["ainvoke", "astream"])
@pytest.mark.parametrize("predicted", PREDICTIONS)
async def test_what_the_run_shows_is_what_the_plain_run_shows(
    make_speculator: MakeSpeculator, how: str, predicted: str
) -> None:
    plain = await played(agent(policy(), [shell], None), how)
    speculator = make_speculator(Oracle(PREDICTIONS[predicted], 0.1))
    model = policy()
    run = await played(agent(model, [shell], speculator), how)
    assert run[0] == plain[0]
    assert run[1] == plain[1]
    assert model.counts["open"] == 0
    if predicted == "right":
        assert run[2] < plain[2] - 0.5
        assert speculator.summary.committed == 2
        assert speculator.summary.hidden_seconds == pytest.approx(plain[2] - run[2])
    else:
        assert run[2] == pytest.approx(plain[2])
        assert speculator.summary.committed == 0
