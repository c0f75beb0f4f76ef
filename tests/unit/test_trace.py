"""The trace: complete, parsable, without secrets."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from obsspec_agents import ConfigurationError, events
from obsspec_agents.events import RunStarted, SpeculationFailed, StepEnded, StepOutcome
from obsspec_agents.trace import Trace


def lines(trace: Trace) -> list[dict[str, Any]]:
    return [json.loads(line) for line in trace.path.read_text("utf-8").splitlines()]


def test_every_event_is_one_line_after_the_header(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "new" / "folder", 5.0)
    trace(RunStarted(at=6.0, run="r", group="g"))
    trace(StepEnded(at=7.0, run="r", step="s", outcome=StepOutcome.MISSED, reason="expired"))
    trace.close()
    trace.close()
    trace(RunStarted(at=8.0, run="late"))
    header, first, second = lines(trace)
    assert (header["format"], header["version"], header["clock"]) == ("obsspec-trace", 1, 5.0)
    assert header["unix"] > 1e9
    assert first == {"event": "RunStarted", "at": 6.0, "run": "r", "group": "g", "task": None}
    assert (second["outcome"], second["reason"], second["seen"]) == ("missed", "expired", False)


def test_secrets_are_not_written(tmp_path: Path) -> None:
    key = "sk-proj-" + "a1B2c3D4e5F6" * 3
    error = f"401 for Authorization: Bearer {key} at https://user:hunter2@host/v1?api_key={key}"
    trace = Trace(tmp_path, 0.0)
    trace(SpeculationFailed(at=1.0, run="r", step="s", stage="prediction", error=error))
    trace(RunStarted(at=1.0, run="r", group=f"api_key={key}"))
    trace.close()
    text = trace.path.read_text("utf-8")
    assert key not in text
    assert "hunter2" not in text
    assert "401" in text


def test_text_that_can_not_be_encoded_is_escaped(tmp_path: Path) -> None:
    trace = Trace(tmp_path, 0.0)
    trace(RunStarted(at=1.0, run="half \ud83d"))
    trace.close()
    assert lines(trace)[1]["run"] == "half \ud83d"


def test_many_threads_write_whole_lines(tmp_path: Path) -> None:
    trace = Trace(tmp_path, 0.0)

    def write(name: str) -> None:
        for number in range(200):
            trace(RunStarted(at=float(number), run=name))

    threads = [threading.Thread(target=write, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace.close()
    assert len(lines(trace)) == 1 + 8 * 200


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError, match="can't be written"):
        Trace(tmp_path / "file", 0.0)


def test_every_event_is_frozen_and_exported() -> None:
    kinds = [
        value
        for value in vars(events).values()
        if isinstance(value, type) and issubclass(value, events.Event)
    ]
    for kind in kinds:
        assert dataclasses.fields(kind)
        assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        assert kind.__name__ in events.__all__ or kind is events.StepEvent
