"""The plain agent that every rule is tried on, and a way to record all that it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command

from obsspec_agents import SpeculativeToolNode, Speculator, speculative


def agent(
    model: BaseChatModel,
    tools: Sequence[Any],
    speculator: Speculator | None,
    *,
    sync: bool = False,
    checkpointer: Any = None,
    before_model: Callable[[list[BaseMessage]], list[BaseMessage]] = list,
    bound: dict[str, Any] | None = None,
    **node: Any,
) -> Any:
    """An agent node and a tool node in a StateGraph; plain where there is no speculator."""
    if speculator is None:
        tool_node: ToolNode = ToolNode(tools, **node)
    else:
        model = speculative(model, speculator)
        tool_node = SpeculativeToolNode(tools, speculator=speculator, **node)

    asked = model.bind(**bound) if bound else model

    def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [asked.invoke(before_model(state["messages"]))]}

    async def acall_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await asked.ainvoke(before_model(state["messages"]))]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", call_model if sync else acall_model)
    graph.add_node("tools", tool_node)
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return graph.compile(checkpointer=checkpointer)


def transcript(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """The messages without what LangChain numbers anew each time."""
    return [m.model_dump(exclude={"id"}) for m in messages]


class Everything(BaseCallbackHandler):
    """Writes down every callback of a run, by name and payload."""

    run_inline = True  # in threads, the order of two siblings' callbacks would be anybody's

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.events.append(
            (
                "start",
                [
                    serialized.get("name"),
                    [m.model_dump(exclude={"id"}) for m in messages[0]],
                    kwargs.get("invocation_params"),
                ],
            )
        )

    def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
        self.events.append(("token", token))

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        message = response.generations[0][0].message
        self.events.append(("end", message.model_dump(exclude={"id"})))

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
        self.events.append(("error", repr(error)))

    def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        self.events.append(("tool", input_str))

    def on_tool_end(self, output: Any, **kwargs: Any) -> None:
        self.events.append(("tool end", getattr(output, "content", output)))

    def on_tool_error(self, error: BaseException, **kwargs: Any) -> None:
        self.events.append(("tool error", repr(error)))

    def count(self, kind: str) -> int:
        return sum(k == kind for k, _ in self.events)


START_STATE: dict[str, Any] = {"messages": [("user", "go")]}


async def played(
    graph: Any, how: str = "ainvoke", start: Any = None, config: Any = None
) -> tuple[list[Any], list[Any], float]:
    """Messages, everything that was shown, and the virtual seconds that it took."""
    loop, shown = asyncio.get_running_loop(), Everything()
    begun = loop.time()
    config = {"recursion_limit": 30, **(config or {}), "callbacks": [shown]}
    start = start or START_STATE
    state: dict[str, Any] = {}
    if how == "ainvoke":
        state = await graph.ainvoke(start, config)
    elif how == "astream":
        modes = ["messages", "values", "updates"]
        streamed: list[Any] = []
        async for mode, part in graph.astream(start, config, stream_mode=modes):
            if mode == "values":
                state = part
            if mode == "messages":
                streamed.append((part[0].content, part[1]["langgraph_node"]))
            else:
                streamed.append((mode, {k: _plain(v) for k, v in part.items()}))
        shown.events.append(("streamed", streamed))
    else:
        streamed = []
        async for event in graph.astream_events(start, config, version="v2"):
            streamed.append((event["event"], event["name"], _plain(event["data"])))
            if event["event"] == "on_chain_end" and not event["parent_ids"]:
                state = event["data"]["output"]
        shown.events.append(("streamed", streamed))
    return transcript(state["messages"]), shown.events, loop.time() - begun


def _plain(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return value.model_dump(exclude={"id"})
    if isinstance(value, Command):
        return ["command", _plain(value.update), value.goto, value.graph]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
