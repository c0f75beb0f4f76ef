"""One run as text: when the policy wrote, when tools ran, what was begun ahead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from obsspec_agents.events import (
    Event,
    GenerationCommitted,
    GenerationDiscarded,
    PolicyAnswered,
    ToolEnded,
)

__all__ = ["Span", "spans", "timeline"]

ROWS = ("policy", "tool", "ahead")
_MARKS = {"policy": "█", "tool": "▒", "committed": "▓", "discarded": "x"}


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a run, in seconds on the speculator's clock."""

    row: str
    """``policy``: the graph waits for the policy. ``tool``: a tool runs. ``ahead``: a
    generation on a prediction."""
    kind: str
    start: float
    end: float


def spans(events: Iterable[Event], run: str) -> list[Span]:
    """The stretches of one run, in the order in which they ended."""
    found: list[Span] = []
    for event in events:
        if event.run != run:
            continue
        match event:
            case PolicyAnswered():
                found.append(Span("policy", "policy", event.started, event.at))
            case ToolEnded():
                found.append(Span("tool", "tool", event.at - event.seconds, event.at))
            case GenerationCommitted():
                end = event.started + event.seconds
                found.append(Span("ahead", "committed", event.started, end))
            case GenerationDiscarded():
                end = event.started + event.seconds
                found.append(Span("ahead", "discarded", event.started, end))
            case _:
                pass
    return found


def timeline(runs: Sequence[tuple[str, Sequence[Span]]], width: int = 100) -> str:
    """Several runs of one rollout under each other, on one scale.

    Args:
        runs: a name and the spans of each; every run starts at its own first span.
        width: characters of the longest one.
    """
    longest = max((_length(found) for _, found in runs), default=0.0)
    if longest <= 0:
        return "(nothing to show)"
    scale = width / longest
    label = max((len(name) for name, _ in runs), default=0)
    lines: list[str] = []
    for name, found in runs:
        origin = min((span.start for span in found), default=0.0)
        for row in ROWS:
            mine = [span for span in found if span.row == row]
            if not mine:
                continue
            head = f"{name:<{label}} {row:<6} "
            tail = f" {_length(found):.1f} s" if row == ROWS[0] else ""
            lines.append(head + "".join(_cells(mine, origin, scale, width)).rstrip() + tail)
    waits, ahead = "█ policy   ▒ tool   ", "▓ ahead, committed   x ahead, dropped"
    return "\n".join([*lines, waits + ahead])


def _length(found: Sequence[Span]) -> float:
    if not found:
        return 0.0
    return max(span.end for span in found) - min(span.start for span in found)


def _cells(found: Sequence[Span], origin: float, scale: float, width: int) -> list[str]:
    cells = [" "] * width
    for span in found:
        first = min(width - 1, round((span.start - origin) * scale))
        last = min(width, max(first + 1, round((span.end - origin) * scale)))
        cells[first:last] = _MARKS[span.kind] * (last - first)
    return cells
