"""How a task is written: a prompt, its files, and what the policy might say, turn by turn.

A turn is what the policy says after one observation. It has one or more samples, as siblings
sampled from one policy differ: mostly in wording, sometimes in the command. A sample may
leave the main line for turns of its own and come back to it, or go on to its own end.

``{{name}}`` in a text or a command stands for what the turn captured of the observation
before it.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

__all__ = ["Files", "Say", "Task", "Turn", "say", "tarball", "turn"]

Files = dict[str, str | bytes]
"""Contents by path, relative to the task's directory."""


@dataclass(frozen=True)
class Say:
    """One sample: what the policy says, and the command that it calls."""

    text: str
    command: str | None
    """None: the final answer."""
    then: tuple[Turn, ...] = ()
    """Turns that only this sample leads to, before the main line goes on."""
    rejoin: bool = True
    """Whether the main line goes on after ``then``; if not, ``then`` ends the task."""
    weight: int = 1
    """How often it is drawn, against the weights of the turn's other samples."""


@dataclass(frozen=True)
class Turn:
    """What the policy may say at one point of a task."""

    samples: tuple[Say, ...]
    capture: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions by name; group 1, in the last observation, is the value."""


@dataclass(frozen=True)
class Task:
    """One task of the demo."""

    name: str
    prompt: str
    """The user's message; it tells a task from every other."""
    make_files: Callable[[], Files]
    """The files of a fresh workspace: the same at every call."""
    turns: tuple[Turn, ...]

    @cached_property
    def _files(self) -> Files:
        return self.make_files()

    def files(self) -> Files:
        """The files of a fresh workspace, made once for each process."""
        return self._files


def say(
    text: str,
    command: str | None = None,
    *,
    then: tuple[Turn, ...] = (),
    rejoin: bool = True,
    weight: int = 1,
) -> Say:
    """A sample; without a command it is the final answer."""
    return Say(text, command, then, rejoin, weight)


def turn(*samples: Say, **capture: str) -> Turn:
    """A turn; keyword arguments are its captures."""
    return Turn(samples, capture)


def tarball(files: Mapping[str, str]) -> bytes:
    """A gzipped tar of these files, the same bytes at every call."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in sorted(files.items()):
            data = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), 3, mtime=0)
