"""The answer that a match makes: its text and ids, its tokens, and when each of them comes.

Everything here is settled before the first token is sent, so that streaming or not,
alone or among many, the same request and seed get the same answer.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from obsspec_agents.replay.entry import Pace, fill
from obsspec_agents.replay.match import Match, call_id
from obsspec_agents.replay.request import ChatRequest
from obsspec_agents.replay.tokens import CALL_TOKENS, cut, estimate

__all__ = ["Answer", "Piece", "compose"]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of an answer, ids and arguments filled in."""

    id: str
    name: str
    arguments: tuple[str, ...]
    """The tokens of the arguments' JSON."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one chunk of a stream adds."""

    at: float
    """Seconds after the request, at the recorded pace."""
    tokens: int
    delta: Mapping[str, Any]
    first: int | None = None
    """For content: the index of its first token."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, complete."""

    id: str
    model: str
    known: bool
    """Whether the recording holds the request; else it is the nearest recording's answer."""
    content: tuple[str, ...]
    """The tokens of the content."""
    logprobs: tuple[float, ...]
    """Of each of them; empty: not recorded."""
    calls: tuple[Call, ...]
    finish_reason: str
    prompt_tokens: int
    pace: Pace
    times: tuple[float, ...] = field(default=(), repr=False)
    """A recorded stream: seconds from the request to each of its chunks."""
    ends: tuple[int, ...] = field(default=(), repr=False)
    """The content's tokens up to the end of each."""

    @property
    def tokens(self) -> int:
        """Completion tokens; an empty answer has one, its end."""
        calls = sum(CALL_TOKENS + len(call.arguments) for call in self.calls)
        return len(self.content) + calls or 1

    @property
    def seconds(self) -> float:
        """From the request to the last token, at the recorded pace."""
        return self._at(self.tokens - 1)

    def generated(self, seconds: float) -> int:
        """How many tokens are there after that many seconds, at the recorded pace."""
        return sum(self._at(index) <= seconds for index in range(self.tokens))

    def _at(self, index: int) -> float:
        if not self.times:
            return self.pace.first_token_s + index / self.pace.tokens_per_s
        chunk = bisect_right(self.ends, index)
        if chunk < len(self.times):
            return self.times[chunk]
        return self.times[-1] + (index - self.ends[-1] + 1) / self.pace.tokens_per_s

    def pieces(self) -> Iterator[Piece]:
        """The chunks of a stream, in order of time."""
        done = 0
        for end in self.ends or range(1, len(self.content) + 1):
            if text := "".join(self.content[done:end]):
                yield Piece(self._at(end - 1), end - done, {"content": text}, first=done)
            done = end
        for index, call in enumerate(self.calls):
            head = {"name": call.name, "arguments": ""}
            delta = {"index": index, "id": call.id, "type": "function", "function": head}
            done += CALL_TOKENS
            yield Piece(self._at(done - 1), CALL_TOKENS, {"tool_calls": [delta]})
            for part in call.arguments:
                delta = {"index": index, "function": {"arguments": part}}
                done += 1
                yield Piece(self._at(done - 1), 1, {"tool_calls": [delta]})


def compose(match: Match, request: ChatRequest, pace: Pace) -> Answer:
    """The answer to a request.

    Args:
        match: what it was found to be answered with.
        request: for the model's name, the size of the prompt and the limit on length.
        pace: of samples that have none of their own.
    """
    sample = match.sample
    texts = [text for _, text in sample.chunks] or [fill(sample.content, match.values)]
    cuts = [cut(text) for text in texts]
    calls = []
    for index, call in enumerate(sample.tool_calls):
        arguments = call.arguments
        if not isinstance(arguments, str):
            arguments = json.dumps(_filled(arguments, match.values), ensure_ascii=False)
        calls.append(Call(call_id(match, index), call.name, tuple(cut(arguments))))
    answer = Answer(
        id=f"chatcmpl-{match.digest[:24]}",
        model=request.model,
        known=match.difference is None,
        content=tuple(token for tokens in cuts for token in tokens),
        logprobs=sample.logprobs,
        calls=tuple(calls),
        finish_reason=sample.reason,
        prompt_tokens=estimate(request.canonical),
        pace=sample.pace or pace,
        times=tuple(accumulate(delay for delay, _ in sample.chunks)),
        ends=tuple(accumulate(len(tokens) for tokens in cuts)) if sample.chunks else (),
    )
    limit = request.max_tokens
    return answer if limit is None or answer.tokens <= limit else _shortened(answer, limit)


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return fill(value, values)
    if isinstance(value, Mapping):
        return {name: _filled(inner, values) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_filled(inner, values) for inner in value]
    return value


def _shortened(answer: Answer, limit: int) -> Answer:
    """The answer that a limit on its tokens leaves: a call without its name is no call."""
    content = answer.content[:limit]
    left = limit - len(content)
    calls = []
    for call in answer.calls:
        if left < CALL_TOKENS:
            break
        kept = call.arguments[: left - CALL_TOKENS]
        calls.append(replace(call, arguments=kept))
        left -= CALL_TOKENS + len(kept)
    # As many chunks as it takes to reach the limit.
    count = bisect_left(answer.ends, len(content)) + 1
    return replace(
        answer,
        content=content,
        logprobs=answer.logprobs[:limit],
        calls=tuple(calls),
        finish_reason="length",
        times=answer.times[:count],
        ends=tuple(min(end, len(content)) for end in answer.ends[:count]),
    )
