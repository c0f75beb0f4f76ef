"""The demo: one terminal agent, off, cold and warm, and whether it said the same each time.

Set A is run once and logged. Set B, other siblings of the same tasks and of two that A never
saw, runs three times: without speculation, with an empty memory that fills as it goes, and
with a memory made from A's log alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.messages import messages_from_dict, messages_to_dict

from obsspec_agents import (
    CascadeWorldModel,
    ConfigurationError,
    EndpointWorldModel,
    Observation,
    PendingCall,
    RecallWorldModel,
    RunInfo,
    Scope,
    Speculator,
    WorldModel,
)
from obsspec_agents.events import Event
from obsspec_agents.report import Difference, first_difference

from .environment import NORMALIZERS, TASKS
from .play import PlayedSet, Player, Playlist, Rollout
from .sandbox import Sandbox, sandbox_or_refuse
from .script import MODEL, write_recording
from .tasks import Task

__all__ = ["Demo", "DemoResult", "recorded_endpoint", "set_a", "set_b"]

ROLLOUTS_A_CORE = 10
SIBLINGS_A = 3
SIBLINGS_B = 4
UNSEEN_TASKS = 2
"""So many tasks, the last of the list, are not in set A."""


def set_a(tasks: Sequence[Task] = TASKS) -> Playlist:
    """The rollouts that are only run and logged."""
    seen = tasks[: len(tasks) - UNSEEN_TASKS]
    return [Rollout(task, f"{task.name}-A{i + 1}") for i in range(SIBLINGS_A) for task in seen]


def set_b(tasks: Sequence[Task] = TASKS) -> Playlist:
    """The rollouts that are compared."""
    return [Rollout(task, f"{task.name}-B{i + 1}") for i in range(SIBLINGS_B) for task in tasks]


class LoggedMemory(RecallWorldModel):
    """A recall memory that knows a log and learns nothing after it."""

    def observe(self, call: PendingCall, observation: Observation) -> None:
        """Learn nothing."""


@dataclass(frozen=True)
class DemoResult:
    """What the demo has to say."""

    runs: list[PlayedSet]
    difference: Difference | None
    folder: Path
    concurrency: int

    @property
    def identical(self) -> bool:
        """Whether all transcripts of B are the same in every run, message by message."""
        return self.difference is None

    def as_json(self) -> dict[str, Any]:
        """For ``obsspec demo --json``."""
        return {
            "rollouts": len(self.runs[0].transcripts),
            "transcripts_identical": self.identical,
            "runs": [
                {
                    "name": run.name,
                    "seconds": round(run.seconds, 3),
                    "tool_seconds": round(run.speculator.summary.tool_seconds, 3),
                    "hidden_seconds": round(run.speculator.summary.hidden_seconds, 3),
                    "committed": run.speculator.summary.committed,
                    "missed": run.speculator.summary.missed,
                    "skipped": run.speculator.summary.skipped if run.speculates else 0,
                    "wasted_tokens": run.speculator.summary.wasted_tokens,
                }
                for run in self.runs
            ],
        }

    def shown_rollout(self) -> str:
        """The rollout that has the most to show: where the last run hid most."""
        return max(self.runs[-1].messages, key=self.runs[-1].hidden_seconds)


@dataclass(frozen=True)
class Demo:
    """Parameters of the demo.

    ``policy_url`` and ``world_model_url`` name real servers; without them the policy is the
    recorded endpoint and the world model a memory. ``report(stage, done, of)`` is called as
    it goes.
    """

    folder: Path
    round_trip_s: float = 1.0
    concurrency: int | None = None
    policy_url: str | None = None
    policy_model: str = MODEL
    world_model_url: str | None = None
    world_model: str = "world-model"
    api_key: str = "EMPTY"
    tasks: Sequence[Task] = TASKS
    pace: float = 1.0
    """Factor on the recorded endpoint's times."""
    report: Callable[[str, int, int], None] = lambda stage, done, of: None

    async def run(self) -> DemoResult:
        """Play A once and B three times.

        Raises:
            SandboxError: a real policy's commands have no safe place to run.
            ConfigurationError: a parameter can't work.
        """
        if self.round_trip_s < 0:
            raise ConfigurationError(f"--tool-rtt must be 0 or more, not {self.round_trip_s:g}")
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigurationError(f"--concurrency must be at least 1, not {self.concurrency}")
        concurrency = self.concurrency or ROLLOUTS_A_CORE * (os.cpu_count() or 1)
        sandbox = Sandbox.NONE if self.policy_url is None else sandbox_or_refuse()
        self.folder.mkdir(parents=True, exist_ok=True)
        for task in self.tasks:
            task.files()  # made once, before the clock starts
        with (
            self._policy() as url,
            tempfile.TemporaryDirectory(prefix="obsspec-", ignore_cleanup_errors=True) as work,
        ):
            player = Player(
                policy_url=url,
                policy_model=self.policy_model,
                api_key=self.api_key,
                work_dir=Path(work),
                concurrency=concurrency,
                round_trip_s=self.round_trip_s,
                sandbox=sandbox,
                max_tokens=None if self.policy_url is None else 512,
            )
            log = self.folder / "set-a.jsonl"
            logged = await self._play(player, "A", set_a(self.tasks), None)
            _write_log(log, logged)
            runs = [
                await self._play(player, "off", set_b(self.tasks), None),
                await self._play(
                    player, "cold", set_b(self.tasks), RecallWorldModel(scope=Scope.TASK)
                ),
                await self._play(player, "warm", set_b(self.tasks), _memory_of(log)),
            ]
        differences = [first_difference(runs[0].transcripts, r.transcripts) for r in runs[1:]]
        difference = next((d for d in differences if d is not None), None)
        return DemoResult(runs, difference, self.folder, concurrency)

    async def _play(
        self, player: Player, name: str, playlist: Playlist, memory: WorldModel | None
    ) -> PlayedSet:
        events: list[Event] = []
        finished = 0

        def done() -> None:
            nonlocal finished
            finished += 1
            self.report(name, finished, len(playlist))

        self.report(name, 0, len(playlist))
        world_model = memory if memory is None else self._with_endpoint(memory)
        speculator = Speculator(
            world_model,
            enabled=memory is not None,
            normalizers=NORMALIZERS,
            trace=self.folder / name,
            sink=events.append,
        )
        async with speculator:
            played = await player.play(name, playlist, speculator, events, done)
        if world_model is not None:
            world_model.close()
        return played

    def _with_endpoint(self, memory: WorldModel) -> WorldModel:
        if self.world_model_url is None:
            return memory
        endpoint = EndpointWorldModel(self.world_model_url, self.world_model, api_key=self.api_key)
        return CascadeWorldModel([memory, endpoint])

    @contextmanager
    def _policy(self) -> Iterator[str]:
        if self.policy_url is not None:
            yield self.policy_url
            return
        recording = write_recording(self.folder / "policy.jsonl")
        with recorded_endpoint(recording, self.pace) as url:
            yield url


@contextmanager
def recorded_endpoint(recording: Path, pace: float = 1.0) -> Iterator[str]:
    """The recorded endpoint in a process of its own; gives its URL."""
    command = [sys.executable, "-m", "obsspec_agents.replay", str(recording)]
    command += ["--unknown", "nearest", "--pace", str(pace), "--with-stdin"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            url = process.stdout.readline().strip()
            if not url:
                raise ConfigurationError(
                    f"the recorded endpoint did not start: exit code {process.wait()}"
                )
            yield url
        finally:
            process.terminate()


def _write_log(path: Path, played: PlayedSet) -> None:
    with path.open("w", encoding="utf-8") as log:
        for rollout_id, messages in sorted(played.messages.items()):
            task = rollout_id.rpartition("-")[0]
            line = {"rollout": rollout_id, "task": task, "messages": messages_to_dict(messages)}
            log.write(json.dumps(line) + "\n")


def _memory_of(log: Path) -> RecallWorldModel:
    memory = LoggedMemory(scope=Scope.TASK)
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            rollout = json.loads(line)
            memory.learn(
                messages_from_dict(rollout["messages"]),
                RunInfo(rollout["rollout"], group=rollout["task"], task=rollout["task"]),
            )
    return memory
