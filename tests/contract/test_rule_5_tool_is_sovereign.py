"""The real tool runs as under the plain node; a prediction runs nothing (rules 4 and 5)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import (
    InjectedState,
    InjectedStore,
    ToolNode,
    ToolRuntime,
    create_react_agent,
    tools_condition,
)
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, RetryPolicy, Send, interrupt

from obsspec_agents import Observation, SpeculativeToolNode, Speculator, speculative
from obsspec_agents.events import (
    DiscardReason,
    Event,
    GenerationDiscarded,
    SkipReason,
    StepEnded,
    ToolEnded,
)
from tests.contract.fakes import (
    Oracle,
    Policy,
    Shell,
    call,
    numbered,
    right,
    three_turns,
    turns,
    two_turns,
    wrong,
)
from tests.contract.graphs import START_STATE, agent, played, transcript

pytestmark = pytest.mark.looptime

MakeSpeculator = Callable[..., Speculator]


def test_the_node_takes_all_that_the_plain_one_takes() -> None:
    plain = inspect.signature(ToolNode).parameters
    ours = dict(inspect.signature(SpeculativeToolNode).parameters)
    assert ours.pop("speculator").kind is inspect.Parameter.KEYWORD_ONLY
    assert list(ours) == list(plain)
    for name, parameter in plain.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name


def test_the_node_passes_on_all_that_it_takes(make_speculator: MakeSpeculator) -> None:
    def wrap(request: Any, execute: Any) -> Any:
        return execute(request)

    async def awrap(request: Any, execute: Any) -> Any:
        return await execute(request)

    settings: dict[str, Any] = {
        "name": "n",
        "tags": ["t"],
        "handle_tool_errors": "no",
        "messages_key": "m",
        "wrap_tool_call": wrap,
        "awrap_tool_call": awrap,
    }
    ours = SpeculativeToolNode([Shell().tool], speculator=make_speculator(), **settings)
    plain = ToolNode([Shell().tool], **settings)
    assert isinstance(ours, ToolNode)
    same = (
        "name",
        "tags",
        "_handle_tool_errors",
        "_messages_key",
        "_wrap_tool_call",
        "_awrap_tool_call",
    )
    assert [getattr(ours, n) for n in same] == [getattr(plain, n) for n in same]


@pytest.mark.parametrize("predict", [right, wrong, lambda c: None])
async def test_a_tool_runs_once_and_only_when_it_is_called(
    make_speculator: MakeSpeculator, predict: Any
) -> None:
    shell = Shell()
    await played(agent(Policy(three_turns()), [shell.tool], make_speculator(Oracle(predict))))
    assert shell.runs == ["ls", "cat"]


async def test_a_generation_that_calls_tools_runs_none_before_its_commit(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    shell = Shell(5.0)
    model = Policy(three_turns())
    graph = agent(model, [shell.tool], make_speculator(Oracle(right)))
    run = asyncio.create_task(graph.ainvoke(START_STATE))
    await asyncio.sleep(5.0)  # the second message, with its tool call, is there
    assert (model.counts["finished"], shell.runs) == (2, ["ls"])
    await run
    assert shell.runs == ["ls", "cat"]


# ------------------------------------------------------------------------ errors


def broken(command: str) -> str:
    raise (KeyError if command == "cat" else ValueError)(command)


def explain(error: Exception) -> str:
    return f"that went wrong: {error!r}"


def explain_value_error(error: ValueError) -> str:
    return f"a value: {error!r}"


def passing(request: Any, execute: Any) -> Any:
    return execute(request)


async def apassing(request: Any, execute: Any) -> Any:
    return await execute(request)


HANDLERS: list[dict[str, Any]] = [
    {"handle_tool_errors": handler}
    for handler in (
        True,
        False,
        "sorry",
        explain,
        explain_value_error,
        ValueError,
        (ValueError,),
        (KeyError, ValueError),
    )
]
HANDLERS += [
    {},
    {"handle_tool_errors": (ValueError,), "wrap_tool_call": passing, "awrap_tool_call": apassing},
    {"handle_tool_errors": True, "awrap_tool_call": apassing},
]


async def ended(graph: Any, how: str = "ainvoke", **start: Any) -> Any:
    """The transcript, or what was raised."""
    try:
        return (await played(graph, how, **start))[0]
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize("settings", HANDLERS, ids=str)
@pytest.mark.parametrize("predict", [right, lambda c: None])
async def test_errors_are_handled_as_under_the_plain_node(
    make_speculator: MakeSpeculator, settings: dict[str, Any], predict: Any
) -> None:
    plain, ours = Shell(result=broken), Shell(result=broken)
    expected = await ended(agent(Policy(three_turns()), [plain.tool], None, **settings))
    speculator = make_speculator(Oracle(predict))
    assert (
        await ended(agent(Policy(three_turns()), [ours.tool], speculator, **settings)) == expected
    )
    assert ours.runs == plain.runs


async def test_an_error_can_be_predicted(make_speculator: MakeSpeculator) -> None:
    def fail(c: Any) -> Observation:
        error = ValueError(c.args["command"])
        return Observation(f"Error: {error!r}\n Please fix your mistakes.", "error")

    def raising(command: str) -> str:
        raise ValueError(command)

    speculator = make_speculator(Oracle(fail))
    graph = agent(
        Policy(three_turns()), [Shell(result=raising).tool], speculator, handle_tool_errors=True
    )
    messages, _, _ = await played(graph)
    assert [m["status"] for m in messages if m["type"] == "tool"] == ["error"] * 2
    assert speculator.summary.committed == 2


@pytest.mark.parametrize(
    "tool_call",
    [call("no such tool", "c1", x=1), call("shell", "c1", wrong_name="x")],
    ids=["unknown tool", "wrong arguments"],
)
async def test_calls_that_can_not_run(make_speculator: MakeSpeculator, tool_call: Any) -> None:
    answer = two_turns(AIMessage("look", tool_calls=[tool_call]))
    expected = await ended(agent(Policy(answer), [Shell().tool], None))
    speculator = make_speculator(Oracle(lambda c: "x"))
    assert await ended(agent(Policy(answer), [Shell().tool], speculator)) == expected


@pytest.mark.parametrize("ids", [(None,), ("same", "same"), ("",)])
async def test_calls_whose_ids_tell_nothing_apart(
    make_speculator: MakeSpeculator, ids: tuple[Any, ...]
) -> None:
    calls = [
        {"name": "shell", "args": {"command": str(i)}, "id": id_, "type": "tool_call"}
        for i, id_ in enumerate(ids)
    ]
    answer = two_turns(AIMessage("look", tool_calls=calls))
    expected = await ended(agent(Policy(answer), [Shell().tool], None))
    speculator = make_speculator(Oracle(right))
    assert await ended(agent(Policy(answer), [Shell().tool], speculator)) == expected


# ------------------------------------------------------------------------ what tools may do


@tool
async def jump(command: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[str]:
    """Return a command that carries the observation."""
    await asyncio.sleep(1.0)
    message = ToolMessage(f"ran {command}", tool_call_id=tool_call_id, name="jump")
    return Command(update={"messages": [message]})


@tool
async def leave(command: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[str]:
    """Go elsewhere."""
    await asyncio.sleep(1.0)
    message = ToolMessage(f"ran {command}", tool_call_id=tool_call_id, name="leave")
    return Command(update={"messages": [message]}, goto="other")


@tool(response_format="content_and_artifact")
async def attach(command: str) -> tuple[str, dict[str, int]]:
    """Return an artifact, too."""
    await asyncio.sleep(1.0)
    return f"ran {command}", {"secret": 1}


@tool(return_direct=True)
async def direct(command: str) -> str:
    """End the run."""
    await asyncio.sleep(1.0)
    return f"ran {command}"


@tool
async def counts(command: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
    """Look at the state."""
    await asyncio.sleep(1.0)
    return f"ran {command} after {len(state['messages'])}"


@tool
async def remembers(command: str, store: Annotated[Any, InjectedStore()]) -> str:
    """Use the store."""
    await asyncio.sleep(1.0)
    store.put(("n",), command, {"ran": command})
    return f"ran {store.get(('n',), command).value['ran']}"


@tool
async def knows(command: str, runtime: ToolRuntime) -> str:
    """Look at the runtime."""
    await asyncio.sleep(1.0)
    return f"ran {command} as {runtime.tool_call_id} with {len(runtime.state['messages'])}"


@tool
async def blocks(command: str) -> list[dict[str, Any]]:
    """Return content blocks."""
    await asyncio.sleep(1.0)
    return [{"type": "text", "text": f"ran {command}"}]


@tool
async def whole(command: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
    """Return the message itself."""
    await asyncio.sleep(1.0)
    return ToolMessage(f"ran {command}", tool_call_id=tool_call_id, artifact=[1], id="m")


@tool
async def structured(command: str) -> dict[str, Any]:
    """Return what the node writes as JSON."""
    await asyncio.sleep(1.0)
    return {"ran": command, "ü": [1, None]}


KINDS: list[BaseTool] = [
    jump, leave, attach, direct, counts, remembers, knows, blocks, whole, structured,
]  # fmt: skip


def elsewhere(model: Any, node: ToolNode, **compile_with: Any) -> Any:
    """The plain agent with one more node to go to."""
    graph = StateGraph(MessagesState)

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def other(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("elsewhere", id="other")]}

    graph.add_node("agent", ask)
    graph.add_node("tools", node)
    graph.add_node("other", other)
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    graph.add_edge("other", END)
    return graph.compile(**compile_with)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("predict", [right, wrong])
@pytest.mark.parametrize("how", ["ainvoke", "astream_events"])
async def test_whatever_a_tool_returns_passes_unchanged(
    make_speculator: MakeSpeculator, kind: BaseTool, predict: Any, how: str
) -> None:
    answer = turns(
        AIMessage("look", tool_calls=[call(kind.name, "c1", command="ls")]),
        lambda seen: AIMessage(f"done with {seen}"),
    )
    plain = await played(elsewhere(Policy(answer), ToolNode([kind]), store=InMemoryStore()), how)
    speculator = make_speculator(Oracle(predict))
    node = SpeculativeToolNode([kind], speculator=speculator)
    run = await played(
        elsewhere(speculative(Policy(answer), speculator), node, store=InMemoryStore()), how
    )
    assert run[0] == plain[0]
    # After leave() two nodes run side by side, and which is the first to show is a race.
    order: Any = (lambda shown: sorted(map(repr, shown[:-1]))) if kind is leave else list
    assert order(run[1]) == order(plain[1])
    assert run[2] <= plain[2] + 1e-6
    if predict is right and kind in (jump, attach):
        assert speculator.summary.committed == 1


async def test_a_command_to_the_parent_graph(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    @tool
    async def up(command: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[str]:
        """Leave the sub-graph."""
        await asyncio.sleep(1.0)
        message = ToolMessage("gone", tool_call_id=tool_call_id)
        return Command(graph=Command.PARENT, goto="after", update={"messages": [message]})

    async def after(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("after", id="after")]}

    def nested(speculator: Speculator | None) -> Any:
        answer = two_turns(AIMessage("", tool_calls=[call("up", "c1", command="x")]))
        inner = agent(Policy(answer), [up], speculator)
        outer = StateGraph(MessagesState)
        outer.add_node("inner", inner)
        outer.add_node("after", after)
        outer.add_edge(START, "inner")
        return outer.compile()

    plain = await played(nested(None))
    assert (await played(nested(make_speculator(Oracle(lambda c: "gone")))))[0] == plain[0]
    assert plain[0][-1]["content"] == "after"
    assert [e.outcome for e in events if isinstance(e, StepEnded)] == ["ended"]


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("predict", [right, wrong])
async def test_the_prebuilt_agent(
    make_speculator: MakeSpeculator, version: Any, predict: Any
) -> None:
    with pytest.warns(DeprecationWarning, match="create_react_agent"):
        plain = create_react_agent(Policy(three_turns()), [Shell().tool], version=version)
    expected = await played(plain)
    speculator = make_speculator(Oracle(predict))
    node = SpeculativeToolNode([Shell().tool], speculator=speculator)
    with pytest.warns(DeprecationWarning, match="create_react_agent"):
        ours = create_react_agent(
            speculative(Policy(three_turns()), speculator), node, version=version
        )
    run = await played(ours)
    assert run[:2] == expected[:2]
    assert speculator.summary.committed == (2 if predict is right else 0)
    assert (run[2] < expected[2] - 0.5) == (predict is right)


# ------------------------------------------------------------------------ interrupts and retries


@pytest.mark.parametrize("predict", [right, wrong])
async def test_an_interrupt_and_its_resume(
    make_speculator: MakeSpeculator, events: list[Event], predict: Any
) -> None:
    def approval(ran: list[str]) -> BaseTool:
        @tool
        async def shell(command: str) -> str:
            """Run a command, when allowed."""
            ran.append(command)
            await asyncio.sleep(1.0)
            allowed = interrupt({"run": command})
            return f"ran {command}" if allowed else "refused"

        return shell

    seen: list[Any] = []
    for speculator in (None, make_speculator(Oracle(predict))):
        ran: list[str] = []
        graph = agent(
            Policy(three_turns()), [approval(ran)], speculator, checkpointer=InMemorySaver()
        )
        config: Any = {"configurable": {"thread_id": "1"}}
        inputs = (START_STATE, Command(resume=True), Command(resume=False))
        states = [await graph.ainvoke(given, config) for given in inputs]
        interrupts = [[i.value for i in s.get("__interrupt__", ())] for s in states]
        seen.append((ran, interrupts, [transcript(s["messages"]) for s in states]))
    assert seen[0] == seen[1]
    assert seen[0][0] == ["ls", "ls", "cat", "cat"]
    tools = [e.status for e in events if isinstance(e, ToolEnded)]
    assert tools == ["GraphInterrupt", "success"] * 2


@pytest.mark.parametrize("siblings", ["in one task", "in tasks of their own"])
async def test_a_retried_tool(
    make_speculator: MakeSpeculator, events: list[Event], siblings: str
) -> None:
    def flaky(ran: list[str]) -> Shell:
        def result(command: str) -> str:
            ran.append(command)
            if command == "ls" and ran.count("ls") == 1:
                raise ConnectionError(command)
            return f"ran {command}"

        return Shell(1.0, result)

    def graph(ran: list[str], speculator: Speculator | None) -> Any:
        calls = [call(_id="c1", command="ls"), call(_id="c2", command="pwd")]
        model: Any = Policy(two_turns(AIMessage("look", tool_calls=calls)))
        node = ToolNode([flaky(ran).tool], handle_tool_errors=False)
        if speculator is not None:
            model = speculative(model, speculator)
            node = SpeculativeToolNode(
                [flaky(ran).tool], speculator=speculator, handle_tool_errors=False
            )

        async def ask(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        def route(state: MessagesState) -> Any:
            last = state["messages"][-1]
            if not isinstance(last, AIMessage) or not last.tool_calls:
                return END
            if siblings == "in one task":
                return "tools"
            sent = {"__type": "tool_call_with_context", "state": state}
            return [Send("tools", {**sent, "tool_call": c}) for c in last.tool_calls]

        built = StateGraph(MessagesState)
        built.add_node("agent", ask)
        retry = RetryPolicy(initial_interval=0.1, jitter=False, retry_on=ConnectionError)
        built.add_node("tools", node, retry_policy=retry)
        built.add_edge(START, "agent")
        built.add_conditional_edges("agent", route, ["tools", END])
        built.add_edge("tools", "agent")
        return built.compile()

    plain_ran: list[str] = []
    plain = await played(graph(plain_ran, None))
    for predict in (right, wrong):
        ran: list[str] = []
        run = await played(graph(ran, make_speculator(Oracle(predict))))
        assert run[0] == plain[0]
        assert sorted(ran) == sorted(plain_ran)  # siblings of one instant have no order
    # Every step has its end at the request that follows, not at the end of the run.
    assert {e.outcome for e in events if isinstance(e, StepEnded)} <= {
        "committed",
        "missed",
        "skipped",
    }
    unreal = [e for e in events if isinstance(e, GenerationDiscarded)]
    assert {e.reason for e in unreal} <= {DiscardReason.CONTRADICTED, DiscardReason.REQUEST_DIFFERS}


# ------------------------------------------------------------------------ parallel calls


def parallel(messages: Sequence[Any]) -> AIMessage:
    if len(messages) > 1:
        return AIMessage("saw " + ", ".join(m.text for m in messages[-2:]))
    return AIMessage("", tool_calls=[call(_id="a", command="x"), call("slow", "b", command="y")])


async def test_parallel_calls_are_predicted_together(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    fast, slow = Shell(1.0), Shell(3.0, name="slow")
    plain = await played(agent(Policy(parallel), [fast.tool, slow.tool], None))
    oracle = Oracle(right, 0.5)
    speculator = make_speculator(oracle)
    model = Policy(parallel)
    run = await played(agent(model, [fast.tool, slow.tool], speculator))
    assert run[:2] == plain[:2]
    assert (speculator.summary.committed, model.counts["draws"]) == (1, 2)
    assert sorted(c.id for c in oracle.asked) == ["a", "b"]
    assert run[2] < plain[2]


@pytest.mark.parametrize("wrong_one", ["shell", "slow"])
async def test_one_wrong_sibling_is_a_miss(
    make_speculator: MakeSpeculator, events: list[Event], wrong_one: str
) -> None:
    fast, slow = Shell(1.0), Shell(3.0, name="slow")
    plain = await played(agent(Policy(parallel), [fast.tool, slow.tool], None))
    speculator = make_speculator(Oracle(lambda c: "no" if c.name == wrong_one else right(c)))
    run = await played(agent(Policy(parallel), [fast.tool, slow.tool], speculator))
    assert run[0] == plain[0]
    (dropped,) = [e for e in events if isinstance(e, GenerationDiscarded)]
    ended_at = {e.tool: e.at for e in events if isinstance(e, ToolEnded)}
    assert dropped.at == pytest.approx(ended_at[wrong_one])  # at once, not with its sibling


async def test_a_sibling_that_has_ended_counts_as_it_is(make_speculator: MakeSpeculator) -> None:
    """The prediction of the fast one comes too late to matter: its observation is known."""
    fast, slow = Shell(1.0), Shell(3.0, name="slow")
    speculator = make_speculator(Oracle(lambda c: "no" if c.name == "shell" else right(c), 1.5))
    await played(agent(Policy(parallel), [fast.tool, slow.tool], speculator))
    assert speculator.summary.committed == 1


async def test_a_sibling_that_ends_while_the_cache_is_asked_counts_as_it_is(
    make_speculator: MakeSpeculator,
) -> None:
    class Slow(InMemoryCache):
        async def alookup(self, prompt: str, llm_string: str) -> Any:
            await asyncio.sleep(1.5)
            return await super().alookup(prompt, llm_string)

    speculator = make_speculator(Oracle(lambda c: "no" if c.name == "shell" else right(c)))
    model = Policy(parallel, cache=Slow())
    await played(agent(model, [Shell(1.0).tool, Shell(4.0, name="slow").tool], speculator))
    assert (speculator.summary.committed, model.counts["draws"]) == (1, 2)


# ------------------------------------------------------------------------ opting out


@pytest.mark.parametrize("how", ["name", "metadata", "speculator", "environment"])
async def test_opting_out(
    make_speculator: MakeSpeculator,
    events: list[Event],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    if how == "environment":
        monkeypatch.setenv("OBSSPEC_ENABLED", "0")
    oracle = Oracle(right)
    shell = Shell(metadata={"speculate": False} if how == "metadata" else None)
    speculator = make_speculator(
        oracle,
        enabled=how != "speculator",
        exclude_tools=["shell"] if how == "name" else (),
    )
    model = Policy(numbered(three_turns()))
    plain = await played(agent(Policy(numbered(three_turns())), [Shell().tool], None))
    assert (await played(agent(model, [shell.tool], speculator)))[:2] == plain[:2]
    assert (oracle.asked, model.counts["draws"]) == ([], 3)
    reason = SkipReason.OPTED_OUT if how in ("name", "metadata") else SkipReason.DISABLED
    assert [e.reason for e in events if isinstance(e, StepEnded)] == [reason] * 2


async def test_an_excluded_sibling_keeps_the_step_plain(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    oracle = Oracle(right)
    speculator = make_speculator(oracle, exclude_tools=["slow"])
    await played(agent(Policy(parallel), [Shell().tool, Shell(name="slow").tool], speculator))
    assert oracle.asked == []
    assert [e.reason for e in events if isinstance(e, StepEnded)] == [SkipReason.OPTED_OUT]
