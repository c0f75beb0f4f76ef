"""Every test here fails if it leaves a task, a thread or an open call behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from obsspec_agents import Speculator
from obsspec_agents.events import Event


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [
        t
        for t in threading.enumerate()
        if t not in before and t.is_alive() and t.name.startswith("obsspec-loop")
    ]
    assert not left, f"threads left behind: {left}"


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def make_speculator(events: list[Event]) -> Iterator[Callable[..., Speculator]]:
    """Speculators on the running loop's clock, closed at the end of the test."""
    made: list[Speculator] = []

    def make(world_model: Any = None, **kwargs: Any) -> Speculator:
        with contextlib.suppress(RuntimeError):
            kwargs.setdefault("clock", asyncio.get_running_loop().time)
        kwargs.setdefault("sink", events.append)
        speculator = Speculator(world_model, **kwargs)
        made.append(speculator)
        return speculator

    yield make
    for speculator in made:
        speculator.close()
