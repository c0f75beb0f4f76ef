"""The tokens of an answer, their times, and what a limit leaves of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from obsspec_agents.replay import Entry, Pace, Recording, Sample, ToolCall, When
from obsspec_agents.replay.answer import Answer, compose
from obsspec_agents.replay.match import Index
from obsspec_agents.replay.request import ChatRequest
from tests.unit.replay.recordings import chat

PACE = Pace(first_token_s=1.0, tokens_per_s=10.0)
CALL = ToolCall("bash", {"command": "ls"})  # seven tokens, and four for the call


def made(sample: Sample, **fields: Any) -> Answer:
    recording = Recording("policy", (Entry("e", (sample,), when=When("u")),), PACE).checked()
    request = ChatRequest.parse(json.dumps(chat("u", **fields)).encode())
    match = Index(recording).find(request)
    assert match is not None
    return compose(match, request, recording.pace)


def timeline(answer: Answer) -> list[tuple[float, int]]:
    return [(round(piece.at, 6), piece.tokens) for piece in answer.pieces()]


def test_the_first_token_then_a_constant_rate() -> None:
    answer = made(Sample("a b c"))
    assert answer.tokens == 3
    assert answer.seconds == pytest.approx(1.2)
    assert timeline(answer) == [(1.0, 1), (1.1, 1), (1.2, 1)]
    assert [answer.generated(s) for s in (0.5, 1.0, 1.15, 9)] == [0, 1, 2, 3]


def test_tool_calls_have_tokens_too() -> None:
    answer = made(Sample("a", (CALL,)))
    assert answer.tokens == 1 + 4 + 7
    assert timeline(answer)[:3] == [(1.0, 1), (1.4, 4), (1.5, 1)]
    assert answer.seconds == pytest.approx(2.1) == timeline(answer)[-1][0]


def test_an_empty_answer_takes_one_token() -> None:
    answer = made(Sample(""))
    assert (answer.tokens, answer.seconds, timeline(answer)) == (1, 1.0, [])


def test_a_sample_may_have_its_own_pace() -> None:
    assert made(Sample("a b", pace=Pace(3.0, 1.0))).seconds == 4.0


def test_recorded_chunks_come_at_their_own_times() -> None:
    chunks = ((0.5, "a b"), (0.25, ""), (0.25, " c"))
    answer = made(Sample("a b c", (CALL,), chunks=chunks))
    assert timeline(answer)[:4] == [(0.5, 2), (1.0, 1), (1.4, 4), (1.5, 1)]
    assert made(Sample("a b c", chunks=chunks)).seconds == 1.0


def test_many_chunks_are_quick_to_place() -> None:
    chunks = tuple((0.001, " x") for _ in range(5000))
    answer = made(Sample(" x" * 5000, chunks=chunks))
    assert len(timeline(answer)) == 5000


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_limit_cuts_the_content(field: str) -> None:
    answer = made(Sample("a b c", (CALL,), logprobs=(-1.0, -2.0, -3.0)), **{field: 2})
    assert (answer.content, answer.logprobs, answer.calls) == (("a", " b"), (-1.0, -2.0), ())
    assert (answer.finish_reason, answer.tokens) == ("length", 2)


def test_a_limit_cuts_the_arguments_of_a_call() -> None:
    answer = made(Sample("a", (CALL, CALL)), max_tokens=8)
    assert ["".join(call.arguments) for call in answer.calls] == ['{"command']
    assert (answer.finish_reason, answer.tokens) == ("length", 8)


def test_a_call_without_its_name_is_no_call() -> None:
    answer = made(Sample("a", (CALL,)), max_tokens=4)
    assert (answer.calls, answer.finish_reason) == ((), "length")


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    limited, plain = made(Sample("a", (CALL,)), max_tokens=12), made(Sample("a", (CALL,)))
    assert (limited.finish_reason, limited.tokens) == (plain.finish_reason, plain.tokens)


def test_a_limit_cuts_recorded_chunks() -> None:
    chunks = ((0.5, "a b"), (0.5, " c d"), (0.5, " e"))
    answer = made(Sample("a b c d e", chunks=chunks), max_tokens=3)
    assert timeline(answer) == [(0.5, 2), (1.0, 1)]
    assert answer.seconds == 1.0


def test_arguments_in_a_string_are_sent_as_they_are() -> None:
    answer = made(Sample("", (ToolCall("bash", '{"a":  "{{seed}}", '),)), seed=1)
    assert "".join(answer.calls[0].arguments) == '{"a":  "{{seed}}", '


def test_values_can_not_break_out_of_the_arguments() -> None:
    sample = Sample("", (ToolCall("bash", {"a": ["{{seed}}"], "n": 1}),))
    answer = made(sample, seed=-3)
    assert json.loads("".join(answer.calls[0].arguments)) == {"a": ["-3"], "n": 1}
