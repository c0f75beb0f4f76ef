"""The demo end to end on a few of its tasks, in a real shell, at a faster pace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from obsspec_agents.demos.terminal import demo as demo_module
from obsspec_agents.demos.terminal.demo import Demo, set_a, set_b
from obsspec_agents.demos.terminal.environment import TASKS

from obsspec_agents.request import Request


def small(folder: Path) -> Demo:
    return Demo(folder=folder, tasks=TASKS[:3], round_trip_s=0.3, pace=0.2, concurrency=16)


def test_the_sets_are_what_the_comparison_needs() -> None:
    a, b = set_a(), set_b()
    assert len(TASKS) >= 14
    assert len(b) >= 48
    assert {r.task.name for r in b} - {r.task.name for r in a} == {t.name for t in TASKS[-2:]}
    assert not {r.id for r in a} & {r.id for r in b}
    assert all(sum(r.task is task for r in b) == 4 for task in TASKS)


async def test_off_cold_and_warm_say_the_same(tmp_path: Path) -> None:
    result = await small(tmp_path).run()
    assert result.identical, result.difference
    shown = result.as_json()
    assert shown["rollouts"] == 12
    assert shown["transcripts_identical"] is True
    off, cold, warm = shown["runs"]
    assert [r["name"] for r in shown["runs"]] == ["off", "cold", "warm"]
    assert off["committed"] == off["missed"] == off["hidden_seconds"] == 0
    assert warm["committed"] > 0
    assert warm["hidden_seconds"] > 0
    assert cold["missed"] + cold["committed"] + cold["skipped"] > 0
    assert off["tool_seconds"] > 0
    json.dumps(shown)
    for name in ("off", "cold", "warm"):
        assert (tmp_path / name / "trace.jsonl").stat().st_size > 0
    assert result.shown_rollout() in result.runs[0].transcripts


async def test_a_wrong_commit_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 1 broken on purpose: what a tool said no longer counts."""

    def blind_key(request: Request) -> str:
        said = [(m.type, getattr(m, "tool_call_id", None)) for m in request.messages]
        return json.dumps(said)

    monkeypatch.setattr(Request, "key", property(blind_key))
    monkeypatch.setattr(
        demo_module.Speculator, "tool_ended", _never_contradict(demo_module.Speculator.tool_ended)
    )
    result = await small(tmp_path).run()
    assert not result.identical
    assert result.difference is not None


def _never_contradict(tool_ended):
    def patched(self, run, active, call_id, observation, status):
        live = active.step.live
        if live:
            observation = live[0].assumed[call_id]
        return tool_ended(self, run, active, call_id, observation, status)

    return patched
