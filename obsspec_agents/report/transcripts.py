"""Whether runs say the same, message by message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

__all__ = ["Difference", "Transcript", "first_difference", "transcript"]

Transcript = list[dict[str, Any]]
"""A conversation without what a framework numbers anew each time."""


def transcript(messages: Sequence[BaseMessage]) -> Transcript:
    """What was said, by whom, with which tool calls, ids and statuses."""
    return [_said(message) for message in messages]


def _said(message: BaseMessage) -> dict[str, Any]:
    said: dict[str, Any] = {"type": message.type, "content": message.content}
    if isinstance(message, AIMessage):
        said["tool_calls"] = [
            {"name": call["name"], "args": call["args"], "id": call["id"]}
            for call in message.tool_calls
        ]
        said["finish_reason"] = message.response_metadata.get("finish_reason")
        if message.usage_metadata is not None:
            said["output_tokens"] = message.usage_metadata["output_tokens"]
    if isinstance(message, ToolMessage):
        said |= {"tool_call_id": message.tool_call_id, "name": message.name}
        said["status"] = message.status
    return said


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two transcripts differ."""

    rollout: str
    index: int
    """Of the message, from 0."""
    left: str
    right: str

    def __str__(self) -> str:
        return f"{self.rollout}, message {self.index}:\n  {self.left}\n  {self.right}"


def first_difference(
    left: Mapping[str, Transcript], right: Mapping[str, Transcript]
) -> Difference | None:
    """The first difference between two sets of transcripts, by rollout id; None if equal."""
    for rollout in sorted({*left, *right}):
        ours, theirs = left.get(rollout), right.get(rollout)
        if ours is None or theirs is None:
            return Difference(rollout, 0, _short(ours and "there"), _short(theirs and "there"))
        for index in range(max(len(ours), len(theirs))):
            a = ours[index] if index < len(ours) else None
            b = theirs[index] if index < len(theirs) else None
            if a != b:
                return Difference(rollout, index, _short(a), _short(b))
    return None


def _short(value: Any, limit: int = 300) -> str:
    text = "(missing)" if value is None else json.dumps(value, ensure_ascii=True)
    return text if len(text) <= limit else text[:limit] + "…"
