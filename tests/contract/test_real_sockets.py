"""The stock ChatOpenAI against a real server: synchronous and asynchronous graphs.

The server's answers and the tools wait for each other, never for the clock.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition

from obsspec_agents import SpeculativeToolNode, Speculator, speculative
from obsspec_agents.events import (
    DiscardReason,
    Event,
    GenerationCommitted,
    GenerationDiscarded,
    StepEnded,
)
from tests.contract.fakes import Oracle, call, right, wrong
from tests.contract.graphs import START_STATE, agent, transcript
from tests.contract.server import Body, Server

MakeSpeculator = Callable[..., Speculator]


def answer(body: Body) -> AIMessage:
    """One tool call, then a last word that quotes the observation."""
    last = body["messages"][-1]
    if last["role"] != "tool":
        return AIMessage("look", tool_calls=[call(_id="c1", command="ls")])
    return AIMessage(f"done with {last['content']}")


def speculated(body: Body) -> bool:
    return body["messages"][-1]["role"] == "tool"


def model_of(server: Server, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=server.url, api_key="none", model="m", **settings)


def shell(wait: Callable[[], None]) -> StructuredTool:
    """A tool that ends when the wait does."""

    def run(command: str) -> str:
        wait()
        return f"ran {command}"

    async def arun(command: str) -> str:
        await asyncio.to_thread(wait)
        return f"ran {command}"

    return StructuredTool.from_function(run, coroutine=arun, name="shell", description="Run.")


@contextmanager
def released_by(events: list[Event], server: Server, kind: type[Event]) -> Iterator[None]:
    """Hold the server's answers until the first event of a kind."""

    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.005):
            if any(isinstance(e, kind) for e in list(events)):
                server.release()
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def play(graph: Any, how: str) -> list[dict[str, Any]]:
    if how == "invoke":
        return transcript(graph.invoke(START_STATE)["messages"])
    if how == "stream":
        return transcript(list(graph.stream(START_STATE, stream_mode="values"))[-1]["messages"])
    if how == "stream messages":
        parts = list(graph.stream(START_STATE, stream_mode=["messages", "values"]))
        return transcript([p for m, p in parts if m == "values"][-1]["messages"])
    if how == "ainvoke":
        return transcript(asyncio.run(graph.ainvoke(START_STATE))["messages"])
    assert how == "astream"

    async def stream() -> Any:
        async for mode, part in graph.astream(START_STATE, stream_mode=["messages", "values"]):
            if mode == "values":
                state = part
        return state

    return transcript(asyncio.run(stream())["messages"])


HOWS = ["invoke", "stream", "stream messages", "ainvoke", "astream"]


def is_sync(how: str) -> bool:
    return not how.startswith("a")


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("joined", ["in flight", "finished"])
def test_a_hit(make_speculator: MakeSpeculator, events: list[Event], how: str, joined: str) -> None:
    with Server(answer) as server:
        plain = play(agent(model_of(server), [shell(lambda: None)], None, sync=is_sync(how)), how)
    held = speculated if joined == "in flight" else lambda body: False
    with Server(answer, held) as server:

        def wait() -> None:
            server.wait_for(lambda s: s.requests == 2)
            if joined == "finished":
                server.wait_for(lambda s: s.open == 0)

        speculator = make_speculator(Oracle(right))
        graph = agent(model_of(server), [shell(wait)], speculator, sync=is_sync(how))
        with released_by(events, server, StepEnded):
            assert play(graph, how) == plain
        assert (server.requests, server.left) == (2, 0)
        assert speculator.summary.committed == 1
        assert sum(isinstance(e, GenerationCommitted) for e in events) == 1


@pytest.mark.parametrize("how", HOWS)
def test_a_miss_is_disconnected(
    make_speculator: MakeSpeculator, events: list[Event], how: str
) -> None:
    with Server(answer) as server:
        plain = play(agent(model_of(server), [shell(lambda: None)], None, sync=is_sync(how)), how)

    def predicted(body: Body) -> bool:
        return body["messages"][-1]["content"] == "something else"

    with Server(answer, predicted) as server:
        speculator = make_speculator(Oracle(wrong))
        tool = shell(lambda: server.wait_for(lambda s: s.open == 1))
        graph = agent(model_of(server), [tool], speculator, sync=is_sync(how))
        assert play(graph, how) == plain
        server.wait_for(lambda s: (s.left, s.open) == (1, 0))
        assert server.requests == 3
        assert [e.reason for e in events if isinstance(e, GenerationDiscarded)] == [
            DiscardReason.CONTRADICTED
        ]


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_a_run_that_fails_is_disconnected(make_speculator: MakeSpeculator, how: str) -> None:
    with Server(answer, speculated) as server:

        def fail() -> None:
            server.wait_for(lambda s: s.open == 1)
            raise KeyError("the tool")

        graph = agent(
            model_of(server),
            [shell(fail)],
            make_speculator(Oracle(right)),
            sync=is_sync(how),
            handle_tool_errors=False,
        )
        with pytest.raises(KeyError):
            play(graph, how)
        server.wait_for(lambda s: (s.left, s.open) == (1, 0))


def test_a_closed_stream_is_disconnected(make_speculator: MakeSpeculator) -> None:
    with Server(answer, speculated) as server:
        tool = shell(lambda: server.wait_for(lambda s: s.open == 1))
        graph = agent(model_of(server), [tool], make_speculator(Oracle(right)), sync=True)
        for update in (stream := graph.stream(START_STATE, stream_mode="updates")):
            if "tools" in update:
                break
        stream.close()
        server.wait_for(lambda s: (s.left, s.open) == (1, 0))
        assert server.requests == 2


def test_a_cancelled_run_is_disconnected(make_speculator: MakeSpeculator) -> None:
    with Server(answer, speculated) as server:
        forever = threading.Event()
        graph = agent(model_of(server), [shell(forever.wait)], make_speculator(Oracle(right)))

        async def main() -> None:
            run = asyncio.create_task(graph.ainvoke(START_STATE))
            await asyncio.to_thread(server.wait_for, lambda s: s.requests == 2)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            await asyncio.to_thread(server.wait_for, lambda s: (s.left, s.open) == (1, 0))
            forever.set()

        asyncio.run(main())


def test_closing_the_speculator_disconnects(make_speculator: MakeSpeculator) -> None:
    with Server(answer, speculated) as server:
        speculator = make_speculator(Oracle(right))

        def close() -> None:
            server.wait_for(lambda s: s.open == 1)
            speculator.close()
            server.wait_for(lambda s: (s.left, s.open) == (1, 0))
            server.release()

        graph = agent(model_of(server), [shell(close)], speculator, sync=True)
        assert graph.invoke(START_STATE)["messages"][-1].content == "done with ran ls"
        assert server.requests == 3


def test_a_server_that_is_down_for_a_while_changes_nothing(
    make_speculator: MakeSpeculator,
) -> None:
    """The generation meets a connection that is cut; the run's own call does not."""
    with Server(answer) as server:
        server.cut = lambda body: speculated(body) and server.requests == 2
        speculator = make_speculator(Oracle(right))
        tool = shell(lambda: server.wait_for(lambda s: (s.requests, s.open) == (2, 0)))
        graph = agent(model_of(server, max_retries=0), [tool], speculator, sync=True)
        assert graph.invoke(START_STATE)["messages"][-1].content == "done with ran ls"
        assert (server.requests, speculator.summary.refetched) == (3, 1)


# ------------------------------------------------------------------------ mixed sync and async


def waiting_for_one(server: Server) -> Callable[[], None]:
    """A wait for one request under way."""
    return lambda: server.wait_for(lambda s: s.open == 1)


def mixed(server: Server, speculator: Speculator, wait: Callable[[], None], first: str) -> Any:
    """An asynchronous graph whose agent node awaits the model first, and blocks later."""
    joining = speculative(model_of(server), speculator)

    async def ask(state: MessagesState) -> dict[str, Any]:
        messages = state["messages"]
        if first == "awaited" and len(messages) == 1:
            return {"messages": [await joining.ainvoke(messages)]}
        return {"messages": [joining.invoke(messages)]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", ask)
    graph.add_node("tools", SpeculativeToolNode([shell(wait)], speculator=speculator))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return graph.compile()


def test_a_node_that_blocks_the_loop_joins_what_runs_elsewhere(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    with Server(answer, speculated) as server:
        speculator = make_speculator(Oracle(right))
        graph = mixed(
            server, speculator, lambda: server.wait_for(lambda s: s.open == 1), "blocking"
        )
        with released_by(events, server, StepEnded):
            play(graph, "ainvoke")
        assert (server.requests, speculator.summary.committed) == (2, 1)


@pytest.mark.parametrize("finished", [True, False])
def test_a_node_that_blocks_the_loop_of_its_generation_does_not_wait_for_it(
    make_speculator: MakeSpeculator, events: list[Event], finished: bool
) -> None:
    with Server(answer, lambda body: speculated(body) and not finished) as server:

        def wait() -> None:
            server.wait_for(lambda s: s.requests == 2 and s.open == (0 if finished else 1))

        speculator = make_speculator(Oracle(right))
        with released_by(events, server, StepEnded):
            messages = play(mixed(server, speculator, wait, "awaited"), "ainvoke")
        assert messages[-1]["content"] == "done with ran ls"
        assert [e.reason for e in events if isinstance(e, GenerationDiscarded)] == [
            DiscardReason.UNREACHABLE
        ]
        assert server.requests == 3


def test_a_thread_that_the_loop_waits_for_does_not_wait_for_the_loop(
    make_speculator: MakeSpeculator,
) -> None:
    with Server(answer, speculated) as server:
        speculator = make_speculator(Oracle(right))
        joining = speculative(model_of(server), speculator)

        async def main() -> Any:
            with speculator.run():
                said = await joining.ainvoke("go")
                with speculator.step(said) as step:
                    await asyncio.to_thread(server.wait_for, lambda s: s.open == 1)
                    result = step.observe(await shell(lambda: None).ainvoke(said.tool_calls[0]))
                server.release()
                answers: list[Any] = []
                context = contextvars.copy_context()
                blocking = threading.Thread(
                    target=context.run,
                    args=(lambda: answers.append(joining.invoke([("user", "go"), said, result])),),
                )
                blocking.start()
                blocking.join(30)
                return answers

        answers = asyncio.run(main())
        assert [a.content for a in answers] == ["done with ran ls"]


def test_a_sync_agent_node_in_an_async_graph(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    with Server(answer, speculated) as server:
        speculator = make_speculator(Oracle(right))
        tool = shell(lambda: server.wait_for(lambda s: s.open == 1))
        graph = agent(model_of(server), [tool], speculator, sync=True)
        with released_by(events, server, StepEnded):
            messages = play(graph, "ainvoke")
        assert messages[-1]["content"] == "done with ran ls"
        assert (server.requests, speculator.summary.committed) == (2, 1)
