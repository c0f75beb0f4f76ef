"""How recorded text is cut into tokens: a declared rule, not a tokenizer.

A token is up to five word characters or up to three others, with the space before it; a
longer run of white space is one. That is about four characters a token over prose and
code, needs no vocabulary, and the pieces always join to the text that they were cut from.
"""

from __future__ import annotations

import re

__all__ = ["CALL_TOKENS", "cut", "estimate"]

CALL_TOKENS = 4
"""Tokens that a tool call costs before its arguments: its mark-up and its name."""

_CHARACTERS_PER_TOKEN = 4
_TOKEN = re.compile(r"\s?\w{1,5}|\s?[^\w\s]{1,3}|\s+")


def cut(text: str) -> list[str]:
    """The tokens of a text, in order; ``"".join(cut(text)) == text``."""
    return _TOKEN.findall(text)


def estimate(text: str) -> int:
    """About how many tokens a long text has, from its length alone (prompts)."""
    return -(-len(text) // _CHARACTERS_PER_TOKEN)
