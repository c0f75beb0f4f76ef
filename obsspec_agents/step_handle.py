"""Speculation for tool loops written by hand: one step, from its tools' start to their end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import BaseTool

from obsspec_agents.observation import Observation, normalize

if TYPE_CHECKING:
    from obsspec_agents.run_state import ActiveStep, RunState
    from obsspec_agents.speculator import Speculator

__all__ = ["StepHandle"]


class StepHandle:
    """What :meth:`Speculator.step` gives. Thread-safe: results may come from any thread."""

    def __init__(
        self,
        speculator: Speculator,
        message: AIMessage,
        messages: Sequence[BaseMessage],
        tools: Mapping[str, BaseTool],
    ) -> None:
        self._speculator = speculator
        self._message = message
        self._messages = messages
        self._tools = tools
        self._open: dict[str, tuple[RunState, ActiveStep]] = {}

    def start_all(self) -> None:
        """The message's tools start."""
        if not self._speculator.listening:
            return
        for call in self._message.tool_calls:
            if call["id"] is None or call["id"] in self._open:
                continue
            with self._speculator.log.guard("step"):
                begun = self._speculator.tool_started(
                    self._message,
                    call["id"],
                    messages=self._messages,
                    tools=self._tools or None,
                )
                if begun is not None:
                    self._open[call["id"]] = begun

    def observe(self, result: ToolMessage) -> ToolMessage:
        """A tool returned. Gives the message that belongs into the conversation: the same
        one, with the declared normalisers applied."""
        result = normalize(result, self._speculator.normalizers)
        if (begun := self._open.pop(result.tool_call_id, None)) is not None:
            with self._speculator.log.guard("step"):
                self._speculator.tool_ended(
                    *begun, result.tool_call_id, Observation.of(result), result.status
                )
        return result

    def end_all(self) -> None:
        """What has returned no result by now ended without one."""
        while self._open:
            call_id, begun = self._open.popitem()
            with self._speculator.log.guard("step"):
                self._speculator.tool_ended(*begun, call_id, None, "no result")
