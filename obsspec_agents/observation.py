"""How a tool's result becomes an observation: rendering, declared normalisers, equality.

An observation is what the policy sees of a tool's result: the content of the
``ToolMessage`` as it goes into the next request, and its status. This module is the one
place that knows how to get it from what a tool node returns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.messages import ToolMessage
from langgraph.types import Command

from obsspec_agents.errors import ConfigurationError

__all__ = ["ANSI_CODES", "Normalizer", "Observation", "normalize", "observations_in"]

Status = Literal["success", "error"]


@dataclass(frozen=True, slots=True)
class Observation:
    """What the policy sees of one tool result.

    Two observations are equal when content and status are equal: type for type, character
    for character. There is no other notion of equality in this library.
    """

    content: str | list[str | dict[str, Any]]
    """The ``ToolMessage`` content: a string, or a list of content blocks."""
    status: Status = "success"

    @property
    def text(self) -> str | None:
        """The content where it is a plain string, else None (blocks are not predicted)."""
        return self.content if isinstance(self.content, str) else None

    def message(self, *, tool_call_id: str, name: str) -> ToolMessage:
        """The ``ToolMessage`` that a tool node would have made of this observation."""
        return ToolMessage(
            content=self.content, name=name, tool_call_id=tool_call_id, status=self.status
        )

    @classmethod
    def of(cls, message: ToolMessage) -> Observation:
        """The observation that a tool message carries."""
        return cls(message.content, message.status)


@dataclass(frozen=True, slots=True)
class Normalizer:
    """A declared change of the environment: a rewrite of what the policy sees.

    It applies to every result of the tools it names, with speculation on or off, so a
    baseline sees the same environment. It is pure: equal text in, equal text out.

    ``Normalizer.substitute("durations", r"in \\d+\\.\\d+s", "in <t>s")`` replaces a pattern;
    any ``str -> str`` function works as ``rewrite``.
    """

    name: str
    """Shown in the summary of every run that it was on in."""
    rewrite: Callable[[str], str]
    tools: frozenset[str] | None = None
    """Names of the tools that it applies to; None: all of them."""

    @classmethod
    def substitute(
        cls, name: str, pattern: str, replacement: str, *, tools: Iterable[str] | None = None
    ) -> Normalizer:
        """A normaliser that replaces every match of a regular expression.

        Raises:
            ConfigurationError: the pattern is not a regular expression.
        """
        if isinstance(tools, str):
            raise ConfigurationError(
                f"normaliser {name!r}: tools must be a collection of names, not the string "
                f"{tools!r}: pass [{tools!r}]"
            )
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise ConfigurationError(
                f"normaliser {name!r}: {pattern!r} is not a regular expression ({error})"
            ) from error
        return cls(
            name,
            lambda text: compiled.sub(replacement, text),
            None if tools is None else frozenset(tools),
        )


ANSI_CODES = Normalizer.substitute("ansi codes", r"\x1b\[[0-9;?]*[ -/]*[@-~]", "")
"""Strips terminal control sequences (colours, cursor moves) from every observation."""


def normalize(message: ToolMessage, normalizers: Sequence[Normalizer]) -> ToolMessage:
    """The message with every normaliser that names its tool applied, in order.

    String content and the text blocks of list content are rewritten; the message itself is
    returned where nothing changes.
    """
    content: Any = message.content
    for normalizer in normalizers:
        if normalizer.tools is None or message.name in normalizer.tools:
            content = _rewrite(content, normalizer.rewrite)
    if content == message.content:
        return message
    return message.model_copy(update={"content": content})


def _rewrite(content: Any, rewrite: Callable[[str], str]) -> Any:
    if isinstance(content, str):
        return rewrite(content)
    return [
        rewrite(block)
        if isinstance(block, str)
        else {**block, "text": rewrite(block["text"])}
        if block.get("type") == "text" and isinstance(block.get("text"), str)
        else block
        for block in content
    ]


def observations_in(result: Any) -> dict[str, Observation]:
    """The observations in whatever a tool node returns for a call, by tool call id.

    Accepts a ``ToolMessage``, a ``Command`` whose update carries tool messages, or a list
    of these; anything else holds no observation.
    """
    found: dict[str, Observation] = {}
    for message in _tool_messages(result):
        found[message.tool_call_id] = Observation.of(message)
    return found


def _tool_messages(result: Any) -> Iterable[ToolMessage]:
    if isinstance(result, ToolMessage):
        yield result
    elif isinstance(result, Command):
        yield from _tool_messages(result.update)
    elif isinstance(result, dict):
        for value in result.values():
            if isinstance(value, list):
                yield from _tool_messages(value)
    elif isinstance(result, (list, tuple)):
        for item in result:
            if isinstance(item, (ToolMessage, Command, dict, list, tuple)):
                yield from _tool_messages(item)
