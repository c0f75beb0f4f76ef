"""The recording nearest to a request that none answers, and what differs: for people.

It costs a look at every entry, so it is asked only where the answer is an error or a
misprediction's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from obsspec_agents.replay.entry import Entry, When
from obsspec_agents.replay.request import CLIENT_FIELDS, TRANSPORT_FIELDS, ChatRequest

__all__ = ["Difference", "nearest"]

_ABSENT = "absent"
_EXCERPT = 160
_BEFORE = 40


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing in which a request differs from a recording."""

    at: str
    """Where, such as ``messages[3].content``."""
    recorded: str
    requested: str

    @classmethod
    def of(cls, at: str, recorded: Any, requested: Any) -> Difference:
        """A difference, with both sides cut to an excerpt from where they part."""
        left, right = _shown(recorded), _shown(requested)
        start = max(0, _common(left, right) - _BEFORE)
        return cls(at, _excerpt(left, start), _excerpt(right, start))


def nearest(
    entries: Sequence[Entry], request: ChatRequest, user: str, after: str | None, sample: int | None
) -> tuple[Entry, Difference] | None:
    """The entry most like a request and how the request differs; None: there are no entries.

    Args:
        entries: the recording's; among equals the first one is taken.
        request: one that no entry answers.
        user: the text of its first user message.
        after: the entry that made its last assistant message; empty if that is unknown.
        sample: with which of its samples.
    """
    best: tuple[float, Entry, Difference] | None = None
    for entry in entries:
        if entry.when is not None:
            score, difference = _compare_scripted(entry.when, user, after, sample)
        else:
            score, difference = _compare_exact(entry.request or {}, request.payload)
        if best is None or score > best[0]:
            best = (score, entry, difference)
    return None if best is None else best[1:]


def _compare_scripted(
    when: When, user: str, after: str | None, sample: int | None
) -> tuple[float, Difference]:
    if when.user != user:
        return _alike(when.user, user) / 2, Difference.of("first user message", when.user, user)
    return (1.0 if when.after == after else 0.5), Difference.of(
        "last assistant message",
        _made_by(when.after, when.sample),
        _made_by(after, sample),
    )


def _made_by(after: str | None, sample: int | None) -> str:
    if after is None:
        return "none"
    if not after:
        return "one without a tool call id of this recording"
    return f"made by {after}" if sample is None else f"made by {after}#{sample}"


def _compare_exact(
    recorded: Mapping[str, Any], requested: Mapping[str, Any]
) -> tuple[float, Difference]:
    ours, theirs = recorded["messages"], requested["messages"]
    length = max(len(ours), len(theirs))
    for index in range(length):
        at = f"messages[{index}]"
        if index >= min(len(ours), len(theirs)):
            left = ours[index] if index < len(ours) else "no such message"
            right = theirs[index] if index < len(theirs) else "no such message"
            return index / length, Difference.of(at, left, right)
        if ours[index] != theirs[index]:
            name, left, right = _first_field(ours[index], theirs[index])
            score = (index + _alike(_shown(left), _shown(right))) / length
            return score, Difference.of(f"{at}{name}", left, right)
    skipped = TRANSPORT_FIELDS | CLIENT_FIELDS
    name, left, right = _first_field(recorded, requested, skipped)
    return 1.0, Difference.of(name.lstrip(".") or "request", left, right)


def _first_field(ours: Any, theirs: Any, skipped: Iterable[str] = ()) -> tuple[str, Any, Any]:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in {**ours, **theirs}:
            left, right = ours.get(name, _ABSENT), theirs.get(name, _ABSENT)
            if name not in skipped and left != right:
                return f".{name}", left, right
    return "", ours, theirs


def _alike(left: str, right: str) -> float:
    """How much of two texts is the same, from the start, from 0 to 1."""
    return _common(left, right) / max(len(left), len(right), 1)


def _common(left: str, right: str) -> int:
    """The length of the longest common start."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _excerpt(text: str, start: int) -> str:
    head = "…" if start else ""
    tail = "…" if len(text) > start + _EXCERPT else ""
    return f"{head}{text[start : start + _EXCERPT]}{tail}"
