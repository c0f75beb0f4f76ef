"""The environment of the terminal agent: what it is told, its tasks, its directories.

Some commands print how long they took. A declared normaliser strips it from every
observation, in every run that is compared: an environment without clocks.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from obsspec_agents.observation import Normalizer

from .shell import Workspace
from .tasks import TASKS, Task

__all__ = ["NORMALIZERS", "SYSTEM_PROMPT", "TASKS", "Task", "make_workspace", "seed_of"]

SYSTEM_PROMPT = (
    "You are an agent at a terminal. You solve one task with the bash tool, one command at a "
    "time, in the task's own directory; every command starts in that directory with a new "
    "shell, and nobody answers questions. Tools at hand: bash, coreutils, grep, sed, awk, find, "
    "tar, gzip, make and python3 (standard library only). There is no network. Say in a sentence "
    "or two what the last output tells you before you go on. Other workers do the same task at "
    "the same time, so name what you hand over after $ROLLOUT_ID, and use $ROLLOUT_SEED where "
    "something is drawn at random. When the task is done, answer without a tool call."
)
"""The first message of every request of the demo."""

NORMALIZERS = (
    Normalizer.substitute("durations", r"\b(?:\d+m)?\d+\.\d+ ?s(?:ec|econds)?\b", "<t> s"),
)
"""On in every run of the demo, with and without speculation."""


def seed_of(rollout_id: str) -> int:
    """The rollout's seed, in [0, 2**31): a stable hash of its id."""
    return int.from_bytes(hashlib.sha256(rollout_id.encode()).digest()[:4], "big") >> 1


def make_workspace(task: Task, rollout_id: str, base_dir: Path) -> Workspace:
    """A fresh directory ``base_dir/rollout_id`` with the task's files in it."""
    return Workspace.create(base_dir, rollout_id, seed_of(rollout_id), task.files())
