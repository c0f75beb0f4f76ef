"""Which recording answers a request."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from obsspec_agents.replay import Entry, Pace, Recording, Sample, ToolCall, When
from obsspec_agents.replay.answer import compose
from obsspec_agents.replay.match import Index, Match
from obsspec_agents.replay.request import ChatRequest, RequestError
from obsspec_agents.replay.wire import completion
from tests.unit.replay.recordings import GREETING, RECORDING, TASK, chat, results

INDEX = Index(RECORDING)


def parse(payload: dict[str, Any]) -> ChatRequest:
    return ChatRequest.parse(json.dumps(payload).encode())


def find(payload: dict[str, Any]) -> Match:
    match = INDEX.find(parse(payload))
    assert match is not None
    return match


def answer(payload: dict[str, Any]) -> dict[str, Any]:
    request, match = parse(payload), find(payload)
    message: dict[str, Any] = completion(compose(match, request, Pace()), request)["choices"][0][
        "message"
    ]
    return message


def seed_for(sample: int) -> int:
    return next(s for s in range(100) if find(chat(TASK, seed=s)).sample_index == sample)


def test_exact_ignores_transport_fields_only() -> None:
    transport = {
        "priority": 1,
        "request_id": "r",
        "cache_salt": "s",
        "user": "u",
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for payload in (
        GREETING,
        {**GREETING, **transport},
        {**GREETING, "extra_body": transport, "extra_headers": {"a": "b"}},
        dict(reversed(GREETING.items())),
    ):
        assert find(payload).entry.id == "greeting"
        assert find(payload).difference is None
    for field, value in [("temperature", 1), ("max_tokens", 5), ("tools", [])]:
        difference = find({**GREETING, field: value}).difference
        assert difference is not None
        assert (difference.at, difference.recorded) == (field, "absent")


def test_a_whole_number_is_one_number() -> None:
    recorded = {**GREETING, "temperature": 1.0}
    index = Index(Recording("policy", (Entry("a", (Sample("x"),), request=recorded),)))
    match = index.find(parse({**GREETING, "temperature": 1}))
    assert match is not None
    assert match.difference is None


def test_samples_are_chosen_by_request_and_seed_alone() -> None:
    by_seed = [find(chat(TASK, seed=seed)).sample_index for seed in range(50)]
    assert by_seed == [find(chat(TASK, seed=seed)).sample_index for seed in range(50)]
    assert set(by_seed) == {0, 1, 2}
    streamed = [find(chat(TASK, seed=seed, stream=True)).sample_index for seed in range(50)]
    assert streamed == by_seed
    hotter = [find(chat(TASK, seed=seed, temperature=1)).sample_index for seed in range(50)]
    assert hotter != by_seed


def test_weights() -> None:
    samples = (Sample("often", weight=9), Sample("rare"))
    index = Index(Recording("policy", (Entry("a", samples, when=When("u")),)))
    counts: Counter[int] = Counter()
    for seed in range(1000):
        match = index.find(parse(chat("u", seed=seed)))
        assert match is not None
        counts[match.sample_index] += 1
    assert 60 < counts[1] < 140


def test_a_scripted_conversation_goes_on_from_the_ids_it_handed_out() -> None:
    system = {"role": "system", "content": "anything"}
    first = answer(chat(system, TASK, seed=seed_for(0)))
    assert first["tool_calls"][0]["id"].startswith("call-build.1-")
    history = [system, *chat(TASK)["messages"], *results(first, "3 failed, 2 passed")]
    second = answer(chat(*history))
    assert second["content"] == "3 tests failed."
    assert json.loads(second["tool_calls"][0]["function"]["arguments"]) == {"command": "fix 3"}
    third = find(chat(*history, *results(second, "ok"), seed=5))
    assert (third.entry.id, third.difference) == ("build/3", None)


def test_the_continuation_of_one_sample_comes_first() -> None:
    both = answer(chat(TASK, seed=seed_for(2)))
    assert len(both["tool_calls"]) == 2
    match = find(chat(TASK, *results(both, "a", "b")))
    assert (match.entry.id, match.difference) == ("build/2-both", None)


def test_captures_search_all_of_the_last_observations() -> None:
    recording = Recording(
        "policy",
        (
            Entry("a", (Sample("", (ToolCall("t", {}), ToolCall("t", {}))),), when=When("u")),
            Entry(
                "b",
                (Sample("{{x}}|{{y}}"),),
                when=When("u", "a"),
                capture={"x": re.compile("x=(.)"), "y": re.compile("y=(.)")},
            ),
        ),
    )
    index = Index(recording)
    calls = [{"id": f"call-a-0-{'0' * 12}"}, {"id": f"call-a-0-{'1' * 12}"}]
    parts: Any = [{"type": "text", "text": "y="}, {"type": "text", "text": "{{x}}"}]
    messages = results({"content": "", "tool_calls": calls}, "x=1", parts)
    match = index.find(parse(chat("u", *messages)))
    assert match is not None
    assert match.difference is None
    assert dict(match.values) == {"x": "1", "y": "{", "seed": ""}


def test_a_capture_that_finds_nothing_makes_an_unknown_request() -> None:
    first = answer(chat(TASK, seed=seed_for(0)))
    match = find(chat(TASK, *results(first, "all passed")))
    assert match.entry.id == "build/2"
    assert match.values["failed"] == ""
    assert match.difference is not None
    assert match.difference.at == "capture.failed"
    assert match.difference.requested == "all passed"


def test_values_are_not_filled_in_twice() -> None:
    first = answer(chat(TASK, seed=seed_for(0)))
    recording = Recording(
        "policy",
        (
            RECORDING.entries[1],
            Entry(
                "b",
                (Sample("<{{v}}>"),),
                when=When(TASK, "build/1"),
                capture={"v": re.compile("(.*)")},
            ),
        ),
    )
    payload = parse(chat(TASK, *results(first, "{{seed}}"), seed=9))
    match = Index(recording).find(payload)
    assert match is not None
    assert "".join(compose(match, payload, Pace()).content) == "<{{seed}}>"


@pytest.mark.parametrize(
    ("payload", "entry", "at", "requested"),
    [
        (chat("Hi!"), "greeting", "messages[0].content", "Hi!"),
        (chat("Make the build fail."), "build/1", "first user message", "Make the build fail."),
        (chat("Hi", "Hi"), "greeting", "messages[1]", '{"content": "Hi", "role": "user"}'),
        (
            chat(TASK, {"role": "assistant", "content": "I made this up."}),
            "build/1",
            "last assistant message",
            "one without a tool call id of this recording",
        ),
        (
            chat(
                TASK,
                *results(
                    {"content": "", "tool_calls": [{"id": "call-build.3-0-0123456789ab"}]}, ""
                ),
            ),
            "build/1",
            "last assistant message",
            "made by build/3#0",
        ),
    ],
)
def test_unknown_requests_get_the_nearest(
    payload: dict[str, Any], entry: str, at: str, requested: str
) -> None:
    match = find(payload)
    assert match.entry.id == entry
    assert match.difference is not None
    assert (match.difference.at, match.difference.requested) == (at, requested)


def test_a_long_difference_is_shown_from_where_it_begins() -> None:
    recorded = {**GREETING, "messages": [{"role": "user", "content": "x" * 5000 + "A" * 500}]}
    index = Index(Recording("policy", (Entry("a", (Sample("x"),), request=recorded),)))
    match = index.find(parse(chat("x" * 5000 + "B" * 500)))
    assert match is not None
    assert match.difference is not None
    assert match.difference.recorded == "…" + "x" * 40 + "A" * 120 + "…"
    assert match.difference.requested == "…" + "x" * 40 + "B" * 120 + "…"


def test_an_empty_recording_has_no_nearest() -> None:
    assert Index(Recording("policy")).find(parse(GREETING)) is None


@pytest.mark.parametrize(
    ("payload", "param"),
    [
        ({"model": "policy"}, "messages"),
        (chat(), "messages"),
        ({"messages": GREETING["messages"]}, "model"),
        (chat({"role": "robot", "content": ""}), "messages[0]"),
        (chat({"role": "user", "content": 3}), "messages[0].content"),
        (chat({"role": "assistant", "content": None, "tool_calls": "x"}), "messages[0].tool_calls"),
        (chat("a", seed="1"), "seed"),
        (chat("a", seed=True), "seed"),
        (chat("a", stream="yes"), "stream"),
        (chat("a", stream_options=1), "stream_options"),
        (chat("a", n=2), "n"),
        (chat("a", max_tokens=0), "max_tokens"),
        (chat("a", max_completion_tokens=1.5), "max_completion_tokens"),
        (chat("a", logprobs=5), "logprobs"),
        (chat("a", top_logprobs=2), "top_logprobs"),
        (chat("a", logprobs=True, top_logprobs=21), "top_logprobs"),
    ],
)
def test_malformed_requests(payload: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(payload)
    assert caught.value.status == 400
    assert caught.value.body["error"]["param"] == param


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"a": NaN}', b"\xff", b"[" * 100_000])
def test_bodies_that_are_no_json_object(body: bytes) -> None:
    with pytest.raises(RequestError, match="the body is not"):
        ChatRequest.parse(body)
