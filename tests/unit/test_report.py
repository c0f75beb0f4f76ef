"""Summaries, tables, timelines and comparisons, from events alone."""

from __future__ import annotations

import io

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from rich.console import Console

from obsspec_agents import Summary
from obsspec_agents.events import (
    DiscardReason,
    Event,
    GenerationCommitted,
    GenerationDiscarded,
    ObservationPredicted,
    PolicyAnswered,
    RunEnded,
    RunStarted,
    SpeculationFailed,
    StepEnded,
    StepOutcome,
    ToolEnded,
)
from obsspec_agents.report import (
    RunRow,
    comparison_table,
    first_difference,
    spans,
    timeline,
    transcript,
)


def story(run: str = "r") -> list[Event]:
    """A turn, a tool of 2 s, a generation hidden in it, one dropped, one skipped step."""
    step = {"run": run, "step": "1"}
    return [
        RunStarted(at=0, run=run),
        PolicyAnswered(at=1, run=run, started=0, seconds=1, tokens=10, joined=False, version=None),
        ObservationPredicted(
            at=1.5,
            call="c",
            tool="t",
            predictor="p",
            probability=0.5,
            seen=True,
            seconds=0.5,
            **step,
        ),
        ToolEnded(at=3, call="c", tool="t", seconds=2, status="success", **step),
        GenerationDiscarded(
            at=3,
            speculation="s1",
            reason=DiscardReason.CONTRADICTED,
            started=1.5,
            seconds=1.5,
            finished=False,
            wasted_tokens=7,
            **step,
        ),
        StepEnded(at=3, outcome=StepOutcome.MISSED, reason="contradicted", **step),
        GenerationCommitted(
            at=5,
            speculation="s2",
            started=3.5,
            claimed=4.5,
            seconds=1.5,
            hidden_seconds=1.0,
            tokens=9,
            version=None,
            **step,
        ),
        StepEnded(at=5, outcome=StepOutcome.COMMITTED, seen=True, **step),
        StepEnded(at=5, outcome=StepOutcome.COMMITTED, seen=False, **step),
        StepEnded(at=6, outcome=StepOutcome.SKIPPED, reason="late", **step),
        StepEnded(at=7, outcome=StepOutcome.ENDED, reason="run_ended", **step),
        SpeculationFailed(at=7, stage="prediction", error="ValueError: x", **step),
        RunEnded(at=8, run=run, tool_seconds=2.0),
    ]


def summed() -> Summary:
    summary = Summary()
    for event in story():
        summary(event)
    return summary


def test_a_summary_adds_up_what_happened() -> None:
    summary = summed()
    assert (summary.committed, summary.committed_seen, summary.committed_new) == (2, 1, 1)
    assert (summary.missed, summary.skipped, summary.failures) == (1, 1, 1)
    assert (summary.runs, summary.turns, summary.wasted_tokens) == (1, 1, 7)
    assert (summary.hidden_seconds, summary.tool_seconds) == (1.0, 2.0)
    assert (summary.prediction_latency, summary.tool_latency) == (0.5, 2.0)
    assert summary.reasons["late"] == 1


def printed(rows: list[RunRow]) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(comparison_table(rows))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_table_shows_hidden_seconds_beside_wall_time() -> None:
    text = printed(
        [RunRow("off", 10.0, Summary(), speculates=False), RunRow("warm", 7.5, summed())]
    )
    rows = {
        line.split("│")[1].strip(): line.split("│")[2:4]
        for line in text.splitlines()
        if line.startswith("│")
    }
    assert [cell.strip() for cell in rows["wall seconds"]] == ["10.0", "7.5"]
    assert [cell.strip() for cell in rows["of off"]] == ["1.00", "0.75"]
    assert [cell.strip() for cell in rows["hidden seconds, sum"]] == ["-", "1.0"]
    assert [cell.strip() for cell in rows["committed, new calls"]] == ["-", "1"]


def test_the_table_of_nothing_is_empty_not_an_error() -> None:
    assert printed([]) is not None


def test_a_timeline_draws_to_scale() -> None:
    found = spans([*story("r"), *story("other")], "r")
    assert [(s.row, s.kind, s.start, s.end) for s in found] == [
        ("policy", "policy", 0, 1),
        ("tool", "tool", 1, 3),
        ("ahead", "discarded", 1.5, 3.0),
        ("ahead", "committed", 3.5, 5.0),
    ]
    lines = timeline([("warm", found)], width=50).splitlines()
    assert lines[0] == "warm policy " + "█" * 10 + " 5.0 s"
    assert lines[1] == "warm tool   " + " " * 10 + "▒" * 20
    assert lines[2] == "warm ahead  " + " " * 15 + "x" * 15 + " " * 5 + "▓" * 15


def test_a_timeline_of_nothing_says_so() -> None:
    assert timeline([("off", [])]) == "(nothing to show)"


def conversation(answer: str = "fine", call_id: str = "c1") -> list:
    return [
        HumanMessage("go"),
        AIMessage("", tool_calls=[{"name": "t", "args": {"x": 1}, "id": call_id}]),
        ToolMessage("out", tool_call_id=call_id, name="t"),
        AIMessage(answer),
    ]


@pytest.mark.parametrize(
    ("other", "index"),
    [
        (conversation("not fine"), 3),
        (conversation(call_id="c2"), 1),
        (conversation()[:3], 3),
        ([*conversation(), HumanMessage("more")], 4),
        (
            [
                *conversation()[:2],
                ToolMessage("out", tool_call_id="c1", status="error"),
                conversation()[3],
            ],
            2,
        ),
    ],
)
def test_any_difference_is_found(other: list, index: int) -> None:
    difference = first_difference({"a": transcript(conversation())}, {"a": transcript(other)})
    assert difference is not None
    assert (difference.rollout, difference.index) == ("a", index)
    assert "message" in str(difference)


def test_equal_transcripts_have_no_difference_whatever_their_message_ids() -> None:
    again = [m.model_copy(update={"id": "other"}) for m in conversation()]
    assert first_difference({"a": transcript(conversation())}, {"a": transcript(again)}) is None


def test_a_missing_rollout_is_a_difference() -> None:
    difference = first_difference({"a": transcript(conversation())}, {})
    assert difference is not None
    assert difference.rollout == "a"
