"""The cutting rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obsspec_agents.replay.tokens import cut, estimate


@given(st.text())
def test_tokens_join_to_the_text(text: str) -> None:
    assert "".join(cut(text)) == text
    assert all(cut(text))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        ("Let me look.", ["Let", " me", " look", "."]),
        ("information", ["infor", "matio", "n"]),
        ("a\n\n  b", ["a", "\n\n  ", "b"]),
        ('{"command": "ls"}', ['{"', "comma", "nd", '":', ' "', "ls", '"}']),
    ],
)
def test_tokens(text: str, tokens: list[str]) -> None:
    assert cut(text) == tokens


def test_prompts_are_estimated_at_four_characters_a_token() -> None:
    assert [estimate("x" * n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
