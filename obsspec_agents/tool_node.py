"""SpeculativeToolNode: langgraph's ToolNode, and the next policy call begins meanwhile."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import AsyncToolCallWrapper, ToolCallWrapper, ToolRuntime
from langgraph.types import Command

from obsspec_agents.errors import ConfigurationError
from obsspec_agents.observation import normalize, observations_in
from obsspec_agents.run_state import ActiveStep, RunState
from obsspec_agents.speculator import Speculator

__all__ = ["SpeculativeToolNode"]

# ToolNode's own, which has no public name.
_DEFAULT_HANDLER: Any = inspect.signature(ToolNode).parameters["handle_tool_errors"].default

InputType = Literal["list", "dict", "tool_calls"]
Begun = tuple[RunState, ActiveStep]


class SpeculativeToolNode(ToolNode):
    """A drop-in for ``langgraph.prebuilt.ToolNode``.

    The tools run exactly as under the plain node: as often, with the same errors,
    interrupts, ``Command`` results and artifacts. While they run, the speculator predicts
    what they will return and the policy begins its next generation on it.

    Args:
        tools: as for ``ToolNode``.
        speculator: predicts, and owns what is begun; the graph's chat model must be
            wrapped by :func:`speculative` with the same one.
        name, tags, handle_tool_errors, messages_key, wrap_tool_call, awrap_tool_call: as for
            ``ToolNode``.
    """

    def __init__(
        self,
        tools: Sequence[BaseTool | Callable[..., Any]],
        *,
        speculator: Speculator,
        name: str = "tools",
        tags: list[str] | None = None,
        handle_tool_errors: bool
        | str
        | Callable[..., str]
        | type[Exception]
        | tuple[type[Exception], ...] = _DEFAULT_HANDLER,
        messages_key: str = "messages",
        wrap_tool_call: ToolCallWrapper | None = None,
        awrap_tool_call: AsyncToolCallWrapper | None = None,
    ) -> None:
        super().__init__(
            tools,
            name=name,
            tags=tags,
            handle_tool_errors=handle_tool_errors,
            messages_key=messages_key,
            wrap_tool_call=wrap_tool_call,
            awrap_tool_call=awrap_tool_call,
        )
        if not isinstance(speculator, Speculator):
            raise ConfigurationError(
                f"SpeculativeToolNode takes a Speculator, not {type(speculator).__name__}: "
                "Speculator(world_model) makes one of a world model"
            )
        self.speculator = speculator

    def _run_one(self, call: ToolCall, input_type: InputType, tool_runtime: ToolRuntime) -> Any:
        begun = self._begin(call, tool_runtime)
        try:
            result = super()._run_one(call, input_type, tool_runtime)
        except BaseException as error:
            self._fail(call, begun, error)
            raise
        return self._end(call, begun, result)

    async def _arun_one(
        self, call: ToolCall, input_type: InputType, tool_runtime: ToolRuntime
    ) -> Any:
        begun = self._begin(call, tool_runtime)
        try:
            result = await super()._arun_one(call, input_type, tool_runtime)
        except BaseException as error:
            self._fail(call, begun, error)
            raise
        return self._end(call, begun, result)

    def _begin(self, call: ToolCall, runtime: ToolRuntime) -> Begun | None:
        if not self.speculator.listening or call["id"] is None:
            return None
        with self.speculator.log.guard("tool"):
            messages = _messages(runtime.state, self._messages_key)
            index = _index_of_message(messages, call["id"])
            if index is None:
                return None
            info = runtime.execution_info
            message = messages[index]
            assert isinstance(message, AIMessage)  # noqa: S101 - that is what was looked for
            return self.speculator.tool_started(
                message,
                call["id"],
                messages=messages[:index],
                tools=self.tools_by_name,
                config=runtime.config,
                attempt="" if info is None else f"{info.checkpoint_id}.{info.node_attempt}",
            )
        return None

    def _fail(self, call: ToolCall, begun: Begun | None, error: BaseException) -> None:
        if begun is not None:
            with self.speculator.log.guard("tool"):
                self.speculator.tool_ended(*begun, str(call["id"]), None, type(error).__name__)

    def _end(self, call: ToolCall, begun: Begun | None, result: Any) -> Any:
        if self.speculator.normalizers:
            result = self._normalized(result)
        if begun is not None:
            with self.speculator.log.guard("tool"):
                call_id = str(call["id"])
                observation = observations_in(result).get(call_id)
                status = "command" if observation is None else observation.status
                self.speculator.tool_ended(*begun, call_id, observation, status)
        return result

    def _normalized(self, result: Any) -> Any:
        """The result with the declared normalisers applied to every tool message in it."""
        if isinstance(result, ToolMessage):
            return normalize(result, self.speculator.normalizers)
        if isinstance(result, Command):
            return replace(result, update=self._normalized(result.update))
        if isinstance(result, list):
            return [self._normalized(item) for item in result]
        if isinstance(result, dict) and self._messages_key in result:
            messages = self._normalized(result[self._messages_key])
            return {**result, self._messages_key: messages}
        return result


def _messages(state: Any, key: str) -> Sequence[BaseMessage]:
    if isinstance(state, list):
        return state
    found = state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
    return found if isinstance(found, list) else []


def _index_of_message(messages: Sequence[BaseMessage | AnyMessage], call_id: str) -> int | None:
    """Where the latest policy message with this tool call stands."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, AIMessage) and any(c["id"] == call_id for c in message.tool_calls):
            return index
    return None
