"""However a run ends, no speculative call of it goes on."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph

from obsspec_agents import SpeculativeToolNode, Speculator, speculative
from obsspec_agents.events import (
    DiscardReason,
    Event,
    GenerationDiscarded,
    RunEnded,
    SkipReason,
    StepEnded,
)
from tests.contract.fakes import Oracle, Policy, Shell, SyncPolicy, call, right, two_turns, wrong
from tests.contract.graphs import START_STATE, agent

pytestmark = pytest.mark.looptime

MakeSpeculator = Callable[..., Speculator]
LONG = " ".join(["word"] * 100)


class Trouble(Exception):
    pass


def trouble(command: str) -> str:
    raise Trouble(command)


async def nothing_left(model: Policy, before: set[asyncio.Task[Any]]) -> None:
    await asyncio.sleep(1.0)  # virtual seconds: what the contract allows
    assert model.counts["open"] == 0
    assert asyncio.all_tasks() == before
    # Timers too: one that waits for its expiry would hold the whole run in memory.
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    assert [timer for timer in scheduled if not timer.cancelled()] == []


def long_winded() -> Policy:
    """Its second turn takes 10 s."""
    return Policy(two_turns(last=LONG))


def reasons(events: list[Event]) -> list[DiscardReason]:
    return [e.reason for e in events if isinstance(e, GenerationDiscarded)]


async def normal_end(graph: Any) -> None:
    await graph.ainvoke(START_STATE)


async def cancelled(graph: Any) -> None:
    run = asyncio.create_task(graph.ainvoke(START_STATE))
    await asyncio.sleep(1.0)  # in the tool
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


async def stream_closed(graph: Any) -> None:
    stream = graph.astream(START_STATE, stream_mode=["updates", "messages", "custom"])
    async for mode, _ in stream:
        if mode == "custom":
            break
    await asyncio.sleep(1.0)
    await stream.aclose()


async def stream_forgotten(graph: Any) -> None:
    async for _ in graph.astream(START_STATE, stream_mode="custom"):
        break
    await asyncio.sleep(1.0)
    gc.collect()


async def events_closed(graph: Any) -> None:
    stream = graph.astream_events(START_STATE, version="v2")
    async for event in stream:
        if event["event"] == "on_tool_start":
            break
    await asyncio.sleep(1.0)
    await stream.aclose()


async def step_limit(graph: Any) -> None:
    with pytest.raises(GraphRecursionError):
        await graph.ainvoke(START_STATE, {"recursion_limit": 2})


async def timed_out(graph: Any) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(graph.ainvoke(START_STATE), 1.0)


ENDS = [
    cancelled,
    stream_closed,
    stream_forgotten,
    events_closed,
    step_limit,
    timed_out,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_the_run_ends_while_a_generation_is_in_flight(
    make_speculator: MakeSpeculator,
    events: list[Event],
    end: Callable[[Any], Awaitable[None]],
) -> None:
    before, model = asyncio.all_tasks(), long_winded()
    shell = Shell(3.0)
    shell.started = lambda: get_stream_writer()("the tool runs")
    await end(agent(model, [shell.tool], make_speculator(Oracle(right))))
    assert model.counts["draws"] == 2
    await nothing_left(model, before)
    # The tool is cancelled with the run; a step limit lets it end first.
    limited = end is step_limit
    assert reasons(events) == [DiscardReason.RUN_ENDED if limited else DiscardReason.CONTRADICTED]
    assert [e.outcome for e in events if isinstance(e, StepEnded)] == ["ended"]
    assert sum(isinstance(e, RunEnded) for e in events) == 1


async def test_the_run_is_cancelled_while_it_joins(make_speculator: MakeSpeculator) -> None:
    before, model = asyncio.all_tasks(), long_winded()
    graph = agent(model, [Shell(0.5).tool], make_speculator(Oracle(right)))
    run = asyncio.create_task(graph.ainvoke(START_STATE))
    await asyncio.sleep(2.0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert model.counts["draws"] == 2
    await nothing_left(model, before)


async def test_the_stream_is_closed_while_it_joins(make_speculator: MakeSpeculator) -> None:
    before, model = asyncio.all_tasks(), long_winded()
    graph = agent(model, [Shell(0.5).tool], make_speculator(Oracle(right)))
    stream = graph.astream(START_STATE, stream_mode="messages")
    async for message, _ in stream:
        if message.content == "word ":
            break
    await stream.aclose()
    assert model.counts["draws"] == 2
    await nothing_left(model, before)


@pytest.mark.parametrize("predict", [right, wrong])
async def test_a_normal_end(make_speculator: MakeSpeculator, predict: Any) -> None:
    before, model = asyncio.all_tasks(), long_winded()
    await normal_end(agent(model, [Shell(0.5).tool], make_speculator(Oracle(predict))))
    await nothing_left(model, before)
    assert model.counts["finished"] == 2


async def test_the_tool_raises(make_speculator: MakeSpeculator, events: list[Event]) -> None:
    before, model = asyncio.all_tasks(), long_winded()
    graph = agent(
        model, [Shell(0.5, trouble).tool], make_speculator(Oracle(right)), handle_tool_errors=False
    )
    with pytest.raises(Trouble):
        await graph.ainvoke(START_STATE)
    await nothing_left(model, before)
    assert reasons(events) == [DiscardReason.CONTRADICTED]


async def test_another_node_raises(make_speculator: MakeSpeculator) -> None:
    before, model = asyncio.all_tasks(), long_winded()

    def fail(messages: list[Any]) -> list[Any]:
        if len(messages) > 2:
            raise Trouble
        return messages

    graph = agent(model, [Shell(0.5).tool], make_speculator(Oracle(right)), before_model=fail)
    with pytest.raises(Trouble):
        await graph.ainvoke(START_STATE)
    assert model.counts["draws"] == 2
    await nothing_left(model, before)


@pytest.mark.parametrize("where", [{"interrupt_before": ["agent"]}, {"interrupt_after": ["tools"]}])
async def test_the_run_stops_at_an_interrupt(
    make_speculator: MakeSpeculator, events: list[Event], where: Any
) -> None:
    before, model = asyncio.all_tasks(), long_winded()
    graph = agent(
        model, [Shell(0.5).tool], make_speculator(Oracle(right)), checkpointer=InMemorySaver()
    )
    config = {"configurable": {"thread_id": "1"}}
    if "interrupt_before" in where:
        await graph.ainvoke(START_STATE, config, **where)
        state = await graph.ainvoke(None, config, **where)
    else:
        state = await graph.ainvoke(START_STATE, config, **where)
    assert state["messages"][-1].type == "tool"
    assert model.counts["draws"] == 2
    await nothing_left(model, before)
    assert reasons(events) == [DiscardReason.RUN_ENDED]
    final = await graph.ainvoke(None, config)
    assert final["messages"][-1].content == LONG
    await nothing_left(model, before)


async def test_a_sub_graph_ends_without_asking_again(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    # Its run goes on for 60 s: the generation must not wait for that.
    before, model = asyncio.all_tasks(), long_winded()
    speculator = make_speculator(Oracle(right))
    joining = speculative(model, speculator)

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await joining.ainvoke(state["messages"])]}

    inner = StateGraph(MessagesState)
    inner.add_node("agent", ask)
    inner.add_node("tools", SpeculativeToolNode([Shell(0.5).tool], speculator=speculator))
    inner.add_edge(START, "agent")
    inner.add_edge("agent", "tools")
    inner.add_edge("tools", END)

    async def rest(state: MessagesState) -> dict[str, Any]:
        await asyncio.sleep(1.0)
        assert model.counts["open"] == 0
        await asyncio.sleep(60.0)
        return {}

    outer = StateGraph(MessagesState)
    outer.add_node("inner", inner.compile())
    outer.add_node("rest", rest)
    outer.add_edge(START, "inner")
    outer.add_edge("inner", "rest")
    await outer.compile().ainvoke(START_STATE)
    assert model.counts["draws"] == 2
    await nothing_left(model, before)
    assert reasons(events) == [DiscardReason.RUN_ENDED]


@pytest.mark.parametrize("stage", ["predicting", "generating", "joining"])
async def test_close_ends_what_is_going_on_and_the_run_goes_on(
    make_speculator: MakeSpeculator, stage: str
) -> None:
    before, model = asyncio.all_tasks(), long_winded()
    speculator = make_speculator(Oracle(right, 2.0 if stage == "predicting" else 0.0))
    graph = agent(model, [Shell(0.2 if stage == "joining" else 3.0).tool], speculator)
    run = asyncio.create_task(graph.ainvoke(START_STATE))
    await asyncio.sleep(1.0)
    speculator.close()
    state = await run
    assert state["messages"][-1].content == LONG
    await nothing_left(model, before)


async def test_a_world_model_that_hangs_is_let_go(make_speculator: MakeSpeculator) -> None:
    before, model = asyncio.all_tasks(), long_winded()
    await normal_end(agent(model, [Shell(0.5).tool], make_speculator(Oracle(right, 1e9))))
    await nothing_left(model, before)


# ------------------------------------------------------------------------ can't be aborted


async def test_a_model_that_can_not_be_aborted_is_left_alone(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    model = SyncPolicy(two_turns())
    speculator = make_speculator(Oracle(right))
    with speculator.run():
        joining = speculative(model, speculator)
        answer = joining.invoke("go")
        with speculator.step(answer):
            pass
        joining.invoke("other")
    assert [e.reason for e in events if isinstance(e, StepEnded)] == [SkipReason.UNABORTABLE]
    assert model.counts["draws"] == 2


def test_it_is_speculated_on_when_asked_for(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    model = SyncPolicy(two_turns())
    predicted = threading.Event()
    drawn = threading.Event()

    def result(command: str) -> str:
        assert drawn.wait(10)
        return f"ran {command}"

    def predict(pending: Any) -> str:
        predicted.set()
        return right(pending)

    class Telling(SyncPolicy):
        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            if predicted.is_set():
                drawn.set()
            return super()._generate(messages, *args, **kwargs)

    model = Telling(two_turns())
    speculator = make_speculator(Oracle(predict), allow_unabortable=True)
    graph = agent(model, [Shell(0.0, result).tool], speculator, sync=True)
    state = graph.invoke(START_STATE)
    assert state["messages"][-1].content == "done with ran ls"
    assert model.counts["draws"] == 2
    assert speculator.summary.committed == 1


def test_close_stops_the_thread_and_may_be_called_twice() -> None:
    speculator = Speculator(Oracle(right), allow_unabortable=True)
    model = SyncPolicy(two_turns())
    agent(model, [Shell(0.0).tool], speculator, sync=True).invoke(START_STATE)
    speculator.close()
    speculator.close()
    assert not [t for t in threading.enumerate() if t.name == "obsspec-loop"]


def test_a_forgotten_speculator_stops_its_thread() -> None:
    speculator = Speculator(Oracle(right), allow_unabortable=True)
    agent(SyncPolicy(two_turns()), [Shell(0.0).tool], speculator, sync=True).invoke(START_STATE)
    threads = [t for t in threading.enumerate() if t.name == "obsspec-loop"]
    assert threads
    del speculator
    for thread in threads:
        for _ in range(100):  # what it runs last may hold the speculator a moment longer
            gc.collect()
            thread.join(0.01)
            if not thread.is_alive():
                break
    assert not any(thread.is_alive() for thread in threads)


async def test_a_message_without_calls_begins_nothing(make_speculator: MakeSpeculator) -> None:
    model = Policy(lambda messages: AIMessage("nothing to do"))
    await agent(model, [Shell().tool], make_speculator(Oracle(right))).ainvoke(START_STATE)
    assert model.counts["draws"] == 1
    assert call()["name"] == "shell"
