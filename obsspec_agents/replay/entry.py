"""What a recording is made of: entries, their samples, and what samples quote."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "SEED",
    "Entry",
    "Header",
    "Pace",
    "Sample",
    "ToolCall",
    "When",
    "fill",
    "placeholders",
]

SEED = "seed"
"""The name under which a sample quotes the request's seed."""

_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_]\w*)\}\}")


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a server generates one answer."""

    first_token_s: float = 0.15
    """Seconds from the request to the first token."""
    tokens_per_s: float = 60.0
    """Tokens a second from then on."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in a sample."""

    name: str
    arguments: Mapping[str, Any] | str
    """An object, in whose strings placeholders are filled in; a string is sent as it is."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer that an entry may give."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    """None: ``tool_calls`` where there are calls, else ``stop``."""
    weight: float = 1.0
    """Its share among the entry's samples."""
    pace: Pace | None = None
    """None: the recording's."""
    chunks: tuple[tuple[float, str], ...] = ()
    """A recorded stream of the content: seconds since the chunk before, and its text."""
    logprobs: tuple[float, ...] = ()
    """Natural logarithms, one for each token of the content; empty: not recorded."""

    @property
    def reason(self) -> str:
        """Why the answer ends, in the words of OpenAI's ``finish_reason``."""
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")


@dataclass(frozen=True, slots=True)
class When:
    """When a scripted entry answers."""

    user: str
    """The text of the conversation's first user message."""
    after: str | None = None
    """The entry that made the last assistant message; None: there is no such message yet."""
    sample: int | None = None
    """Only after this sample of that entry; None: after any."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded request and its answers. Either ``request`` or ``when`` is set."""

    id: str
    samples: tuple[Sample, ...]
    request: Mapping[str, Any] | None = field(default=None, repr=False)
    when: When | None = None
    capture: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    """Group 1 of each, searched in the last observations, is a value to quote."""

    @property
    def slug(self) -> str:
        """The id as it stands in tool call ids."""
        return self.id.replace("/", ".")


@dataclass(frozen=True, slots=True)
class Header:
    """What a recording says of all its entries."""

    model: str
    pace: Pace = field(default_factory=Pace)
    note: str = ""


def placeholders(text: str) -> set[str]:
    """The names that a text quotes as ``{{name}}``."""
    return set(_PLACEHOLDER.findall(text))


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with the values in place of their placeholders; others stay as they are."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)
