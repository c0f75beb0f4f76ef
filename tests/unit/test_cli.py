"""The command line: what goes to stdout, what to stderr, and the exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from obsspec_agents.demos.terminal import demo as demo_module
from obsspec_agents.demos.terminal.demo import DemoResult
from obsspec_agents.demos.terminal.play import PlayedSet

from obsspec_agents import SandboxError, cli
from obsspec_agents.report import Difference
from obsspec_agents.speculator import Speculator

RECORDING = Path(__file__).with_name("docs_recording.jsonl")
OBSSPEC = [sys.executable, "-m", "obsspec_agents"]


def obsspec(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*OBSSPEC, *args], capture_output=True, text=True, check=False)


def test_help_names_the_commands() -> None:
    shown = obsspec("--help")
    assert shown.returncode == 0
    assert "demo" in shown.stdout
    assert "replay" in shown.stdout


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["replay", "missing.jsonl"], "missing.jsonl"),
        (["replay", str(RECORDING), "--unknown", "guess"], "guess"),
        (["replay", str(RECORDING), "--host", "0.0.0.0"], "0.0.0.0"),
        (["replay", __file__], "test_cli.py"),
        (["demo", "--tool-rtt", "-1"], "-1"),
        (["demo", "--concurrency", "0"], "0"),
        (["fly"], "fly"),
    ],
)
def test_what_cannot_work_is_named_and_exits_with_2(args: list[str], named: str) -> None:
    failed = obsspec(*args)
    assert failed.returncode == 2, failed
    assert named in failed.stderr
    assert "Traceback" not in failed.stderr
    assert failed.stdout == ""


def test_replay_serves_until_interrupted_and_prints_json_alone() -> None:
    command = [*OBSSPEC, "replay", str(RECORDING), "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        with urllib.request.urlopen(f"{url}/models") as answer:
            assert json.load(answer)["data"][0]["id"] == "policy"
        server.send_signal(signal.SIGINT)
        rest, errors = server.communicate()
    assert rest == ""
    assert "Traceback" not in errors


class FakeDemo:
    """Stands in for the three minutes of the real one."""

    difference: Difference | None = None
    error: Exception | None = None

    def __init__(self, *, folder: Path, report: Any, **parameters: Any) -> None:
        self.folder, self.report = folder, report

    async def run(self) -> DemoResult:
        if self.error is not None:
            raise self.error
        runs = []
        for name in ("off", "cold", "warm"):
            self.report(name, 0, 1)
            self.report(name, 1, 1)
            speculator = Speculator(enabled=name != "off")
            speculator.close()
            played = PlayedSet(name, 1.5, speculator, speculates=name != "off")
            played.transcripts["task-B1"] = []
            played.messages["task-B1"] = []
            runs.append(played)
        return DemoResult(runs, self.difference, self.folder, 4)


def run_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *args: str) -> int:
    monkeypatch.setattr(demo_module, "Demo", FakeDemo)
    monkeypatch.setattr(sys, "argv", ["obsspec", "demo", "--folder", str(tmp_path), *args])
    with ThreadPoolExecutor(1) as thread:  # asyncio.run would replace the test's own loop
        ended = thread.submit(cli.main).exception()
    assert isinstance(ended, SystemExit)
    assert isinstance(ended.code, int)
    return ended.code


def test_demo_json_is_all_of_stdout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_demo(monkeypatch, tmp_path, "--json") == 0
    captured = capsys.readouterr()
    shown = json.loads(captured.out)
    assert shown["rollouts"] == 1
    assert shown["transcripts_identical"] is True
    assert set(shown["runs"][2]) == {
        "name",
        "seconds",
        "tool_seconds",
        "hidden_seconds",
        "committed",
        "missed",
        "skipped",
        "wasted_tokens",
    }
    assert "set B, warm: 1/1" in captured.err


def test_demo_prints_a_table_a_timeline_and_the_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_demo(monkeypatch, tmp_path) == 0
    text = capsys.readouterr().out
    assert "hidden seconds, sum" in text
    assert "not sampled from a model" in " ".join(text.split())
    assert "durations" in text
    assert "All 1 transcripts are identical" in text


def test_demo_exits_with_1_when_transcripts_differ(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FakeDemo, "difference", Difference("task-B1", 3, "[red]a[/red]", "b"))
    assert run_demo(monkeypatch, tmp_path) == 1
    text = capsys.readouterr().out
    assert "DIFFER" in text
    assert "[red]a[/red]" in text
    assert run_demo(monkeypatch, tmp_path, "--json") == 1


@pytest.mark.parametrize("grouped", [False, True])
def test_demo_refuses_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    grouped: bool,
) -> None:
    error: Exception = SandboxError("install bubblewrap")
    monkeypatch.setattr(FakeDemo, "error", ExceptionGroup("", [error]) if grouped else error)
    assert run_demo(monkeypatch, tmp_path) == 2
    captured = capsys.readouterr()
    assert "install bubblewrap" in captured.err
    assert captured.out == ""
