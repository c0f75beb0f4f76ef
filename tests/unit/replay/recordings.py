"""A small recording that the tests share, and what holds its answers back."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from obsspec_agents.replay import Entry, Pace, Recording, Sample, ToolCall, When

TASK = "Make the build pass."
GREETING: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}

RECORDING = Recording(
    "policy",
    pace=Pace(first_token_s=1.0, tokens_per_s=10.0),
    entries=(
        Entry(
            "greeting",
            (Sample("Hello there.", logprobs=(-0.5, -0.25, -0.125)),),
            request=GREETING,
        ),
        Entry(
            "build/1",
            (
                Sample("Let me look.", (ToolCall("bash", {"command": "make"}),)),
                Sample("", (ToolCall("bash", {"command": "make test SEED={{seed}}"}),)),
                Sample("Both.", (ToolCall("bash", {"n": 1}), ToolCall("bash", {"n": [2]}))),
            ),
            when=When(TASK),
        ),
        Entry(
            "build/2",
            (
                Sample(
                    "{{failed}} tests failed.", (ToolCall("bash", {"command": "fix {{failed}}"}),)
                ),
            ),
            when=When(TASK, "build/1"),
            capture={"failed": re.compile(r"(\d+) failed")},
        ),
        Entry("build/2-both", (Sample("After both."),), when=When(TASK, "build/1", 2)),
        Entry("build/3", (Sample("Done, seed {{seed}}."),), when=When(TASK, "build/2")),
        Entry("long", (Sample("word " * 20),), when=When("Go on.")),
    ),
)


def chat(*messages: dict[str, Any] | str, **fields: Any) -> dict[str, Any]:
    """A payload; a string is a user message."""
    made = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
    return {"model": "policy", "messages": made, **fields}


def results(answer: dict[str, Any], *texts: str) -> list[dict[str, Any]]:
    """An assistant message, as a client sends it back, and the observations of its calls."""
    calls = answer["tool_calls"]
    return [
        {"role": "assistant", "content": answer["content"], "tool_calls": calls},
        *(
            {"role": "tool", "tool_call_id": call["id"], "content": text}
            for call, text in zip(calls, texts, strict=True)
        ),
    ]


class Gate:
    """A sleep that lasts until it is opened; remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.cancelled = 0
        self.waiting = asyncio.Event()
        self._open = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        self._loop = asyncio.get_running_loop()
        self.waiting.set()
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def open(self) -> None:
        """Let everything through, from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._open.set)


class FakeTime:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds
        await asyncio.sleep(0)
