"""The demo's tasks: every scripted turn can be reached, and a rollout repeats exactly.

``python -m tests.unit.test_demo_tasks`` plays sets A and B of the demo at full speed and
prints what the tasks are made of, with what a memory of A knows about B.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import ToolNode
from obsspec_agents.demos.terminal.agent import build_graph, rollout_config
from obsspec_agents.demos.terminal.demo import set_a, set_b
from obsspec_agents.demos.terminal.environment import (
    NORMALIZERS,
    TASKS,
    Task,
    make_workspace,
    seed_of,
)
from obsspec_agents.demos.terminal.play import Rollout
from obsspec_agents.demos.terminal.script import MODEL, recording_lines, write_recording
from obsspec_agents.demos.terminal.shell import Shell, bash_tool
from obsspec_agents.demos.terminal.tasks import Say, Turn

from obsspec_agents import Observation, PendingCall, RecallWorldModel, RunInfo, Scope
from obsspec_agents.observation import normalize
from obsspec_agents.replay import RecordedEndpoint, check_known
from obsspec_agents.report import first_difference, transcript


def normal(text: str) -> str:
    """What the policy sees of the text in the demo."""
    message = normalize(ToolMessage(text, tool_call_id="c", name="bash"), NORMALIZERS)
    return str(message.content)


NAMES = [task.name for task in TASKS]
Messages = dict[str, list[BaseMessage]]

# The script


def test_the_script_holds_together() -> None:
    entries = list(recording_lines())[1:]
    by_id = {entry["id"]: entry for entry in entries}
    assert len(by_id) == len(entries), "two entries have one id"
    assert len({task.prompt for task in TASKS}) == len(set(NAMES)) == len(TASKS)
    continued = {entry["when"]["after"] for entry in entries}
    for entry in entries:
        entry_id, after = entry["id"], entry["when"]["after"]
        if after is None:
            assert entry["capture"] == {}
        else:
            before = by_id[after.partition("#")[0]]
            assert before["when"]["user"] == entry["when"]["user"]
            assert entry["capture"], f"{entry_id} quotes nothing"
        for index, sample in enumerate(entry["samples"]):
            quoted = set(re.findall(r"\{\{(\w+)\}\}", sample["content"]))
            assert quoted == set(entry["capture"]), f"{entry_id}: {sample['content']}"
            goes_on = bool({entry_id, f"{entry_id}#{index}"} & continued)
            assert goes_on == ("tool_calls" in sample), f"{entry_id}#{index}"


def test_siblings_differ() -> None:
    """In their words at every turn, and now and then in their commands."""
    for task in TASKS:
        turns = list(_all_turns(task.turns))
        assert sum(len({say.text for say in turn.samples}) > 1 for turn in turns) > len(turns) / 2
        assert any(len({say.command for say in turn.samples}) > 1 for turn in turns), task.name


def test_no_command_waits() -> None:
    for task in TASKS:
        for say in _all_says(task.turns):
            assert not re.search(r"\bsleep\b", say.command or ""), say.command


def test_seeds_are_stable() -> None:
    assert seed_of("invoice-tests-B2") == 0x43D38A81
    assert len({seed_of(f"{name}-B{number}") for name in NAMES for number in range(9)}) == len(
        NAMES
    ) * len(range(9))


def test_durations_are_normalised() -> None:
    assert normal("Ran 12 tests in 0.012s") == "Ran 12 tests in <t> s"
    assert normal("real\t0m1.203s\nuser\t0m0.1s") == "real\t<t> s\nuser\t<t> s"
    assert normal("built in 3.21 seconds") == "built in <t> s"
    for other in ("version 1.2.3", "12 s", "3.5 skus", "812.5 ms", "4.5sec2"):
        assert normal(other) == other


# Every turn, after every command that leads to it


@dataclass
class Walk:
    """Walks through a task until each turn was reached from each command before it."""

    task: Task
    folder: Path
    met: Counter[tuple[int, str | None]] = field(default_factory=Counter)

    def run(self) -> None:
        number = 0
        while self._unmet(self.task.turns, None):
            number += 1
            assert number < 20, "the walk makes no progress"
            workspace = make_workspace(self.task, f"{self.task.name}-W{number}", self.folder)
            self._walk(Shell(workspace, round_trip_s=0))
            workspace.remove()

    def _walk(self, shell: Shell) -> None:
        turns: tuple[Turn, ...] = self.task.turns
        asked: str | None = None
        observation = ""
        while turns:
            turn, rest = turns[0], turns[1:]
            self.met[id(turn), asked] += 1
            values = {name: _value(regex, observation) for name, regex in turn.capture.items()}
            say = max(turn.samples, key=lambda s: len(self._unmet(_after(s, rest), s.command)))
            if say.command is None:
                assert not _after(say, rest), f"turns after the answer {say.text!r}"
                return
            command = asked = say.command
            turns = _after(say, rest)
            assert turns, f"nothing follows {command!r}"
            for name, value in values.items():
                command = command.replace("{{" + name + "}}", value)
            observation = normal(shell.run(command))
            assert len(observation) <= 1500, f"{len(observation)} characters from {command!r}"

    def _unmet(self, turns: tuple[Turn, ...], command: str | None) -> set[tuple[int, str | None]]:
        """What a walk from here could still reach for the first time."""
        if not turns:
            return set()
        here = (id(turns[0]), command)
        found = set() if self.met[here] else {here}
        for say in turns[0].samples:
            found |= self._unmet(_after(say, turns[1:]), say.command)
        return found


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    """Of all tasks, under way on as many threads as there are processors."""
    folder = tmp_path_factory.mktemp("walks")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {task.name: pool.submit(Walk(task, folder).run) for task in TASKS}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", NAMES)
def test_every_turn_is_reached_with_its_captures(name: str, walks: dict[str, Future[None]]) -> None:
    walks[name].result()


def _after(say: Say, rest: tuple[Turn, ...]) -> tuple[Turn, ...]:
    return (*say.then, *(rest if say.rejoin else ()))


def _value(regex: str, observation: str) -> str:
    match = re.search(regex, observation)
    assert match, f"{regex!r} is not in the observation:\n{observation}"
    assert match[1]
    return match[1]


def _all_turns(turns: Iterable[Turn]) -> Iterator[Turn]:
    for turn in turns:
        yield turn
        for say in turn.samples:
            yield from _all_turns(say.then)


def _all_says(turns: Iterable[Turn]) -> Iterator[Say]:
    for turn in _all_turns(turns):
        yield from turn.samples


# Whole rollouts at the recorded endpoint


class NormalShell(Shell):
    """A shell without durations, for a tool node that knows nothing of normalisers."""

    async def arun(self, command: str) -> str:
        return normal(await super().arun(command))


async def play(recording: Path, rollouts: Sequence[Rollout], base: Path, at_once: int) -> Messages:
    """Play rollouts with a plain tool node: no pace, no round trip, nothing unknown."""
    shells: dict[str, Shell] = {}
    places = asyncio.Semaphore(at_once)
    async with RecordedEndpoint(recording, pace=0, unknown="error") as endpoint:
        model = ChatOpenAI(model=MODEL, base_url=endpoint.url, api_key="none", max_retries=0)
        graph = build_graph(model, ToolNode([bash_tool(shells)]))

        async def one(rollout: Rollout) -> list[BaseMessage]:
            async with places:
                workspace = make_workspace(rollout.task, rollout.id, base)
                shells[rollout.id] = NormalShell(workspace, round_trip_s=0)
                state = await graph.ainvoke(
                    {"messages": [("user", rollout.task.prompt)]},
                    rollout_config(rollout.task.name, rollout.id),
                )
                workspace.remove()
            messages: list[BaseMessage] = state["messages"]
            return messages

        played = await asyncio.gather(*(one(rollout) for rollout in rollouts))
        assert endpoint.unknown == 0
    return {rollout.id: messages for rollout, messages in zip(rollouts, played, strict=True)}


async def test_a_rollout_repeats_exactly(tmp_path: Path) -> None:
    recording = write_recording(tmp_path / "policy.jsonl")
    rollouts = [Rollout(task, f"{task.name}-B2") for task in TASKS]
    first = await play(recording, rollouts, tmp_path / "here", 3)
    again = await play(recording, rollouts[::-1], tmp_path / "elsewhere" / "deeper", 5)
    difference = first_difference(
        *({i: transcript(m) for i, m in r.items()} for r in (first, again))
    )
    assert difference is None, difference
    for messages in first.values():
        calls = [m for m in messages if isinstance(m, AIMessage)]
        for message in calls:
            check_known(message)
        assert not calls[-1].tool_calls
        assert 5 <= len(calls) - 1 <= 10


# Statistics, for people


async def main() -> None:
    """Print them."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        recording = write_recording(base / "policy.jsonl")
        a = await play(recording, set_a(), base / "a", 2)
        before = _cpu_seconds()
        b = await play(recording, set_b(), base / "b", 2)
        cpu = _cpu_seconds() - before
        each = await _cpu_of_each(recording, base)
    calls = [len(list(_calls(messages))) for messages in b.values()]
    print(f"{len(TASKS)} tasks; A {len(a)} rollouts, B {len(b)} with {sum(calls)} commands")
    print(f"commands a rollout: {min(calls)} to {max(calls)}, mean {statistics.mean(calls):.1f}")
    print(f"CPU seconds of B's commands: {cpu:.0f}, mean {cpu / sum(calls):.3f}")
    ordered = sorted(each)
    print(
        f"one by one: mean {statistics.mean(each):.3f}, p50 {ordered[len(each) // 2]:.3f}, "
        f"p95 {ordered[len(each) * 95 // 100]:.3f}, max {ordered[-1]:.3f}"
    )
    memory = RecallWorldModel(scope=Scope.TASK)
    for rollout_id, messages in a.items():
        memory.learn(messages, _info(rollout_id))
    unseen = {task.name for task in TASKS} - {rollout.task.name for rollout in set_a()}
    print("of B's calls, known to a memory of A (tasks of A only, then all):")
    rows = [(i, *_known(memory, i, call, seen)) for i, m in b.items() for call, seen in _calls(m)]
    for part in ([r for r in rows if _info(r[0]).task not in unseen], rows):
        outcomes = Counter(outcome for _, outcome, _ in part)
        shares = {name: f"{count / len(part):.0%}" for name, count in sorted(outcomes.items())}
        print(f"  {len(part)} calls: {shares}")
    by_task = {n: [r for r in rows if _info(r[0]).task == n] for n in NAMES}
    for task, part in by_task.items():
        hit = sum(outcome.startswith("right") for _, outcome, _ in part) / len(part)
        own = _differing(b, task) / len(part)
        print(f"  {task:16} {len(part):3} calls, right {hit:4.0%}, differs by rollout {own:4.0%}")
    own = sum(_differing(b, n) for n in NAMES) / len(rows)
    print(f"calls that every sibling sees answered differently: {own:.0%}")


async def _cpu_of_each(recording: Path, base: Path) -> list[float]:
    spent: list[float] = []
    plain = Shell.arun

    async def timed(shell: Shell, command: str) -> str:
        before = _cpu_seconds()
        text = await plain(shell, command)  # one at a time, so the difference is this one's
        spent.append(_cpu_seconds() - before)
        return text

    Shell.arun = timed  # type: ignore[method-assign]
    await play(recording, set_b()[: len(TASKS)], base / "each", 1)
    Shell.arun = plain  # type: ignore[method-assign]
    return spent


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _info(rollout_id: str) -> RunInfo:
    task = rollout_id.rpartition("-")[0]
    return RunInfo(rollout_id, group=task, task=task)


def _calls(messages: list[BaseMessage]) -> Iterator[tuple[PendingCall, Observation]]:
    run = RunInfo("")
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            answer = messages[index - 1]
            assert isinstance(answer, AIMessage)
            call = answer.tool_calls[0]
            pending = PendingCall(
                str(call["id"]), call["name"], call["args"], run, messages[:index]
            )
            yield pending, Observation.of(message)


def _known(
    memory: RecallWorldModel, rollout_id: str, call: PendingCall, observation: Observation
) -> tuple[str, float]:
    asked = PendingCall(call.id, call.name, call.args, _info(rollout_id), call.messages)
    predictions = memory.predict(asked)
    if not predictions:
        return "no prediction", 0.0
    best = predictions[0]
    return ("right" if best.observation == observation else "wrong"), best.probability


def _differing(played: Messages, task: str) -> int:
    """Calls of a task that each sibling who made them saw answered in another way."""
    seen: dict[str, list[Observation]] = {}
    for rollout_id, messages in played.items():
        if _info(rollout_id).task == task:
            own = {call.canonical_args: observation for call, observation in _calls(messages)}
            for args, observation in own.items():
                seen.setdefault(args, []).append(observation)
    contents = ([str(observation.content) for observation in group] for group in seen.values())
    return sum(len(group) for group in contents if len(set(group)) == len(group) > 1)


if __name__ == "__main__":
    asyncio.run(main())
