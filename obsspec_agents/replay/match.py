"""Which recorded answer a request gets: a pure function of the request and its seed.

Nothing here knows what was asked before, by whom, or when. A scripted conversation finds
its place again from the tool call ids that the server itself handed out, which every
request brings back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from obsspec_agents.replay.entry import SEED, Entry, Sample
from obsspec_agents.replay.nearest import Difference, nearest
from obsspec_agents.replay.recording import Recording
from obsspec_agents.replay.request import ChatRequest, canonical, message_text

__all__ = ["Index", "Match", "call_id"]

_CALL_ID = re.compile(r"call-(?P<slug>.+)-(?P<sample>\d+)-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Match:
    """The recording that a request is answered with."""

    entry: Entry
    sample_index: int
    values: Mapping[str, str]
    """What the sample's placeholders stand for."""
    digest: str
    """A hash of request and seed, from which the answer's ids are made."""
    difference: Difference | None = None
    """None: the recording holds this request. Else it is only the nearest one."""

    @property
    def sample(self) -> Sample:
        """The sample that request and seed choose."""
        return self.entry.samples[self.sample_index]


class Index:
    """A recording, ready to be looked up in constant time."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.models = {recording.model: None}
        """The models that the recording has answers of, the header's first."""
        self._exact: dict[str, Entry] = {}
        self._scripted: dict[tuple[str, str | None, int | None], Entry] = {}
        self._slugs = {entry.slug: entry for entry in recording.entries}
        for entry in recording.entries:
            if entry.request is not None:
                self._exact[canonical(entry.request)] = entry
                if isinstance(model := entry.request.get("model"), str):
                    self.models[model] = None
            elif entry.when is not None:
                self._scripted[entry.when.user, entry.when.after, entry.when.sample] = entry

    def find(self, request: ChatRequest) -> Match | None:
        """The recording that answers a request, or else the nearest; None if it is empty."""
        entry = self._exact.get(request.canonical)
        difference: Difference | None = None
        values: dict[str, str] = {}
        if entry is None:
            user, after, sample = self._place(request.messages)
            for key in ((user, after, sample), (user, after, None)):
                if entry is None:
                    entry = self._scripted.get(key)
            if entry is None:
                found = nearest(self.recording.entries, request, user, after, sample)
                if found is None:
                    return None
                entry, difference = found
            values, unmatched = _capture(entry, request.messages)
            if difference is None:
                difference = unmatched
        digest = _sha256(f"{request.canonical}\0{request.seed}")
        chosen = _choose(entry.samples, digest)
        return Match(entry, chosen, {**values, SEED: request.seed}, digest, difference)

    def _place(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str | None, int | None]:
        """(text of the first user message, the entry that answered last, with which sample)."""
        user = next((message_text(m) for m in messages if m["role"] == "user"), "")
        last = next((m for m in reversed(messages) if m["role"] == "assistant"), None)
        if last is None:
            return user, None, None
        for call in last.get("tool_calls") or ():
            found = _CALL_ID.fullmatch(name) if isinstance(name := call.get("id"), str) else None
            if found and (entry := self._slugs.get(found["slug"])):
                return user, entry.id, int(found["sample"])
        return user, "", None


def call_id(match: Match, index: int) -> str:
    """The id of a tool call of an answer. It tells :class:`Index` where to go on."""
    mark = _sha256(f"{match.digest}\0{index}")[:12]
    return f"call-{match.entry.slug}-{match.sample_index}-{mark}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _choose(samples: Sequence[Sample], digest: str) -> int:
    """Which sample, by weight."""
    point = int(digest[:13], 16) / 16**13 * sum(sample.weight for sample in samples)
    for index, sample in enumerate(samples):
        point -= sample.weight
        if point < 0:
            return index
    return len(samples) - 1


def _capture(
    entry: Entry, messages: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, str], Difference | None]:
    """What an entry quotes of the last observations, and the first that isn't there."""
    if not entry.capture:
        return {}, None
    last: list[str] = []
    for message in reversed(messages):
        if message["role"] != "tool":
            break
        last.append(message_text(message))
    text = "\n".join(reversed(last))
    values: dict[str, str] = {}
    missing: Difference | None = None
    for name, pattern in entry.capture.items():
        found = pattern.search(text)
        values[name] = (found[1] or "") if found else ""
        if (found is None or found[1] is None) and missing is None:
            missing = Difference.of(f"capture.{name}", pattern.pattern, text)
    return values, missing
