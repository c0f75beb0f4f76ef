"""How a tool's result becomes an observation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.types import Command

from obsspec_agents import ANSI_CODES, ConfigurationError, Normalizer, Observation
from obsspec_agents.observation import normalize, observations_in

MESSAGE = ToolMessage("x", tool_call_id="c", name="shell")
ERROR = ToolMessage("y", tool_call_id="d", name="shell", status="error")
BOTH = {"c": Observation("x"), "d": Observation("y", "error")}


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (MESSAGE, {"c": Observation("x")}),
        ([MESSAGE, ERROR], BOTH),
        (Command(update={"messages": [MESSAGE, ERROR], "other": 1}), BOTH),
        (Command(update={"other key": [MESSAGE]}), {"c": Observation("x")}),
        ([Command(update={"messages": [MESSAGE]}), ERROR], BOTH),
        (Command(update=[("messages", [MESSAGE])]), {"c": Observation("x")}),
        (Command(goto="end"), {}),
        (Command(update={"messages": [HumanMessage("x")]}), {}),
        ({"messages": [MESSAGE]}, {"c": Observation("x")}),
        (None, {}),
        ("x", {}),
        (object(), {}),
    ],
)
def test_observations_are_found_in_whatever_is_returned(result: Any, found: Any) -> None:
    assert observations_in(result) == found


def test_equality_is_type_for_type_and_character_for_character() -> None:
    assert Observation("x") == Observation("x")
    assert Observation("x") != Observation("x ")
    assert Observation("x") != Observation("x", "error")
    assert Observation("x") != Observation(["x"])
    assert Observation("é") != Observation("é".encode().decode("latin-1"))


def test_there_and_back() -> None:
    message = Observation("x", "error").message(tool_call_id="c", name="shell")
    assert (message.content, message.status, message.name) == ("x", "error", "shell")
    assert Observation.of(message) == Observation("x", "error")
    assert Observation([{"type": "text", "text": "x"}]).text is None


def test_normalisers_rewrite_text_and_text_blocks_in_order() -> None:
    first = Normalizer("first", lambda text: text.replace("a", "b"))
    second = Normalizer.substitute("second", "b+", "c")
    image = {"type": "image_url", "image_url": {"url": "aaa"}}
    message = ToolMessage(["aab", {"type": "text", "text": "a"}, image], tool_call_id="c")
    changed = normalize(message, [first, second])
    assert changed.content == ["c", {"type": "text", "text": "c"}, image]
    assert message.content[0] == "aab"


def test_a_message_that_stays_is_the_same_object() -> None:
    elsewhere = Normalizer.substitute("n", "x", "y", tools=["other"])
    assert normalize(MESSAGE, [elsewhere]) is MESSAGE
    assert normalize(MESSAGE, []) is MESSAGE


@given(st.text())
def test_control_sequences_go_and_nothing_else(text: str) -> None:
    text = text.replace("\x1b", "")
    coloured = f"\x1b[1;31m{text}\x1b[0m\x1b[2K"
    changed = normalize(ToolMessage(coloured, tool_call_id="c"), [ANSI_CODES])
    assert changed.content == text


def test_a_pattern_that_is_none_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"'broken': '\(' is not a regular expression"):
        Normalizer.substitute("broken", "(", "")
