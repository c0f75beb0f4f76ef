"""The prompt and the answer: stable at the head, unbreakable, and lossless."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from obsspec_agents.errors import ConfigurationError
from obsspec_agents.observation import Observation
from obsspec_agents.world_model import (
    PendingCall,
    RunInfo,
    observation_from,
    target_text,
    world_model_messages,
)
from tests.unit.world_model.transcripts import Steps, pending, transcript

pieces = st.sampled_from(["<error>", "<success>", "<end>", "\n", " ", "\t", "x", "\x1c", "\u2003"])
tricky = st.lists(pieces, max_size=6).map("".join)
observations = st.builds(
    Observation,
    st.one_of(tricky, st.text(st.characters(codec=None), max_size=20)),
    st.sampled_from(["success", "error"]),
)


@settings(deadline=None)
@given(observations)
@example(Observation("<error>\nx"))
@example(Observation("<success>\nx"))
@example(Observation("x<end>"))
def test_any_observation_survives_the_round_trip(observation: Observation) -> None:
    assert observation_from(target_text(observation)) == observation


@settings(deadline=None)
@given(observations)
def test_an_answer_has_nothing_that_a_chat_template_strips(observation: Observation) -> None:
    text = target_text(observation)
    assert text
    assert text == text.strip()


@settings(deadline=None)
@given(observations, observations)
def test_different_observations_have_different_answers(a: Observation, b: Observation) -> None:
    assert (target_text(a) == target_text(b)) is (a == b)


@pytest.mark.parametrize(
    ("observation", "answer"),
    [
        (Observation("1 passed"), "1 passed"),
        (Observation("a\nb\n"), "a\nb\n<end>"),
        (Observation(""), "<success>\n<end>"),
        (Observation("  indented"), "<success>\n  indented"),
        (Observation("no such file", "error"), "<error>\nno such file"),
        (Observation("", "error"), "<error>\n<end>"),
    ],
)
def test_the_answer_is_the_observation_and_rarely_a_marker(
    observation: Observation, answer: str
) -> None:
    assert target_text(observation) == answer


def test_an_empty_answer_is_no_observation() -> None:
    assert observation_from("") is None


def test_an_answer_without_markers_is_taken_as_it_is() -> None:
    assert observation_from(" a\n") == Observation(" a\n")


def test_the_prompt_holds_history_and_call() -> None:
    messages = world_model_messages(pending("wc f", after=[("ls", "f\n"), ("cat f", "x")]))
    assert [m["role"] for m in messages] == ["system", *["user", "assistant"] * 2, "user"]
    assert messages[0]["content"].endswith(
        json.dumps({"tool": "bash", "description": "Runs a command."})
    )
    assert json.loads(messages[1]["content"]) == {
        "user": "Fix it.",
        "tool": "bash",
        "args": {"command": "ls"},
    }
    assert messages[2]["content"] == "f\n<end>"
    assert json.loads(messages[-1]["content"]) == {"tool": "bash", "args": {"command": "wc f"}}


steps_of_any_size = st.lists(
    st.tuples(st.text(max_size=30), st.text(max_size=30)), min_size=1, max_size=12
)


@settings(deadline=None)
@given(steps_of_any_size)
def test_each_prompt_begins_with_the_one_before(steps: Steps) -> None:
    prompts = [
        world_model_messages(pending(command, after=steps[:turn]))
        for turn, (command, _) in enumerate(steps)
    ]
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before
        assert len(after) == len(before) + 2


def test_a_long_history_is_cut_rarely_and_in_blocks() -> None:
    steps = [(f"command {n}", f"{n} " * 40) for n in range(200)]
    prompts = [world_model_messages(pending(after=steps[:n]), max_chars=4_000) for n in range(200)]
    changes = [
        number
        for number in range(1, 200)
        if prompts[number][: len(prompts[number - 1]) - 1] != prompts[number - 1][:-1]
    ]
    assert 0 < len(changes) < 30
    for number in changes:
        assert len(prompts[number]) < 0.7 * len(prompts[number - 1])
    for number, prompt in enumerate(prompts):
        assert sum(len(m["content"]) for m in prompt[1:]) <= 4_000
        if number:
            assert prompt[-2]["content"] == target_text(Observation(steps[number - 1][1]))


def test_the_latest_exchange_stays_however_long_it_is() -> None:
    steps = [(letter * 9_000, letter * 9_000) for letter in "xo"]
    prompt = world_model_messages(pending(after=steps), max_chars=1_000)
    assert len(prompt) == 4
    assert prompt[-2]["content"].startswith("oooo")


@pytest.mark.parametrize("where", ["observation", "arguments", "human", "description"])
def test_long_texts_lose_their_middle(where: str) -> None:
    long = "BEGIN" + "x" * 100_000 + "FINISH"
    call = {
        "observation": lambda: pending(after=[("ls", long)]),
        "arguments": lambda: pending(long),
        "human": lambda: pending(human=long),
        "description": lambda: pending(description=long),
    }[where]()
    messages = world_model_messages(call, max_chars=8_000)
    text = json.dumps(messages)
    assert "BEGIN" in text
    assert "FINISH" in text
    assert "characters left out" in text
    assert sum(len(m["content"]) for m in messages[1:]) <= 8_000
    json.loads(messages[-1]["content"])


@settings(deadline=None)
@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_no_text_breaks_out_of_its_message(human: str, command: str, text: str) -> None:
    messages = world_model_messages(pending(command, after=[(command, text)], human=human))
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    asked = json.loads(messages[1]["content"])
    assert (asked["user"], asked["args"]) == (human, {"command": command})
    assert observation_from(messages[2]["content"]) == Observation(text)


def test_lone_surrogates_can_be_sent() -> None:
    call = pending("a\ud800", after=[("b\udfff", "c\ud800")], human="d\ud800", description="\udc00")
    for message in world_model_messages(call):
        message["content"].encode()
    assert "c\ufffd" in world_model_messages(call)[2]["content"]


def test_only_the_pending_one_of_parallel_calls_is_asked() -> None:
    calls = [{"name": "bash", "args": {"command": c}, "id": c} for c in "ab"]
    first = [HumanMessage("Do."), AIMessage("", tool_calls=calls)]
    results: list[BaseMessage] = [ToolMessage(f"did {c}", tool_call_id=c) for c in "ba"]
    asked = [
        world_model_messages(PendingCall(c, "bash", {"command": c}, RunInfo("r"), first))
        for c in "ab"
    ]
    assert [[json.loads(m["content"])["args"] for m in a[1:]] for a in asked] == [
        [{"command": "a"}],
        [{"command": "b"}],
    ]
    later = [*first, *results, AIMessage("", tool_calls=[calls[0] | {"id": "c"}])]
    messages = world_model_messages(PendingCall("c", "bash", {"command": "a"}, RunInfo("r"), later))
    assert messages[: len(asked[1])] == asked[1]  # in the order of the results
    assert [m["content"] for m in messages if m["role"] == "assistant"] == ["did b", "did a"]


def test_what_humans_said_stands_where_they_said_it() -> None:
    steps = transcript([("ls", "a")])
    call = pending("pwd")
    messages = [SystemMessage("secret"), *steps, AIMessage("Done."), HumanMessage("More."),
                HumanMessage("Please.")]  # fmt: skip
    prompt = world_model_messages(PendingCall("x", "bash", call.args, call.run, messages))
    assert json.loads(prompt[-1]["content"])["user"] == "More.\n\nPlease."
    assert "secret" not in json.dumps(prompt)


def test_content_blocks_are_shown_as_json() -> None:
    call = pending(after=[("shot", "x")])
    blocks: list[str | dict[str, str]] = [{"type": "text", "text": "hello"}]
    call.messages[2].content = blocks
    assert json.loads(world_model_messages(call)[2]["content"]) == blocks


def test_a_prompt_that_is_too_short_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="999"):
        world_model_messages(pending(), max_chars=999)


def test_the_messages_are_not_changed() -> None:
    call = pending(after=[("ls", "x" * 10_000)])
    before = [m.model_dump() for m in call.messages]
    assert world_model_messages(call, max_chars=1_000) == world_model_messages(
        call, max_chars=1_000
    )
    assert [m.model_dump() for m in call.messages] == before
