"""The policy's part of the demo as a recording: what the recorded endpoint plays.

The answers were written by hand for the tasks in ``tasks/``; they are not sampled from a
model. Where a sample leaves the main line and comes back, the turns that follow are repeated
under ids of their own, since an entry of a recording follows exactly one other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .tasks import TASKS, Say, Task, Turn

__all__ = ["MODEL", "recording_lines", "write_recording"]

MODEL = "policy-8b"
"""The model's name at the recorded endpoint."""

_HEADER = {
    "format": "obsspec-recording",
    "version": 1,
    "model": MODEL,
    "pace": {"first_token_s": 0.15, "tokens_per_s": 60},
}


def recording_lines(tasks: Iterable[Task] = TASKS) -> Iterator[dict[str, Any]]:
    """The header and every entry of the recording, in the order of its file."""
    yield _HEADER
    for task in tasks:
        yield from _entries(task, task.turns, None, task.name, 1)


def write_recording(path: Path, tasks: Iterable[Task] = TASKS) -> Path:
    """Write the recording as JSON Lines; returns the path."""
    lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in recording_lines(tasks))
    path.write_text("".join(lines), encoding="utf-8")
    return path


def _entries(
    task: Task, turns: tuple[Turn, ...], after: str | None, branch: str, number: int
) -> Iterator[dict[str, Any]]:
    """The entries of a line of turns, ``branch/number`` and on; detours branch off by letter."""
    for index, turn in enumerate(turns):
        entry_id = f"{branch}/{number}"
        yield {
            "id": entry_id,
            "when": {"user": task.prompt, "after": after},
            "capture": dict(turn.capture),
            "samples": [_sample(say) for say in turn.samples],
        }
        for position, say in enumerate(turn.samples):
            if say.then:
                rest = turns[index + 1 :] if say.rejoin else ()
                letter = "abcdefgh"[position]
                yield from _entries(
                    task, (*say.then, *rest), f"{entry_id}#{position}", f"{entry_id}{letter}",
                    number + 1,
                )  # fmt: skip
        after = entry_id
        number += 1


def _sample(say: Say) -> dict[str, Any]:
    sample: dict[str, Any] = {"content": say.text}
    if say.command is not None:
        sample["tool_calls"] = [{"name": "bash", "arguments": {"command": say.command}}]
    if say.weight != 1:
        sample["weight"] = say.weight
    return sample
