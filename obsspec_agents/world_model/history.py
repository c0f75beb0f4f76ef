"""What "the same history" means to a memory, as a digest that grows with the transcript.

The history of a call is what may have shaped the environment that the tool runs in: the
human messages and every finished tool call with its observation, in order. What the policy
said beside its calls is left out, so siblings that word their thoughts differently share.

A transcript of hundreds of messages is digested once. Later calls of the same run compare
it with the remembered one and add only what is new.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from obsspec_agents.observation import Observation
from obsspec_agents.world_model.base import Exchange, canonical_args

__all__ = ["HistoryDigests", "digest_of", "finished_calls"]

_MAX_RUNS = 256
_CHAINS_PER_RUN = 4
"""Sub-agents of one run have transcripts of their own."""


def digest_of(*parts: str | bytes) -> bytes:
    """16 bytes that stand for these parts; text may hold lone surrogates."""
    state = hashlib.blake2b(digest_size=16)
    _feed(state, *parts)
    return state.digest()


def finished_calls(messages: Sequence[BaseMessage]) -> Iterator[tuple[bytes, Exchange]]:
    """Every finished tool call of a transcript, with the digest of the history before it."""
    chain = _Chain()
    before: dict[str | None, bytes] = {}
    for message in messages:
        if isinstance(message, AIMessage) and message.tool_calls:
            digest = chain.digest()
            before.update((call["id"], digest) for call in message.tool_calls)
        exchange = chain.add(message)
        if exchange is not None and isinstance(message, ToolMessage):
            yield before[message.tool_call_id], exchange


class HistoryDigests:
    """The digests of the histories of running agents. Not thread-safe: the owner locks.

    Holds on to the contents of the transcripts that it digested, of at most 256 runs.
    """

    def __init__(self) -> None:
        self._chains: OrderedDict[str, list[_Chain]] = OrderedDict()

    def digest(self, run: str, messages: Sequence[BaseMessage]) -> bytes:
        """The digest of the history in ``messages``; cheap where it extends a known one."""
        chains = self._chains.setdefault(run, [])
        self._chains.move_to_end(run)
        if len(self._chains) > _MAX_RUNS:
            self._chains.popitem(last=False)
        chain = next((chain for chain in chains if chain.begins(messages)), None)
        if chain is None:
            chain = _Chain()
        else:
            chains.remove(chain)
        chains.insert(0, chain)
        del chains[_CHAINS_PER_RUN:]
        for message in messages[len(chain.seen) :]:
            chain.add(message)
        return chain.digest()

    def forget(self, run: str) -> None:
        """Drop what is kept of a run."""
        self._chains.pop(run, None)


class _Chain:
    """A transcript as far as it has been digested."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self._state = hashlib.blake2b(digest_size=16)
        self._calls: dict[str | None, tuple[str, str]] = {}

    def begins(self, messages: Sequence[BaseMessage]) -> bool:
        """Whether these messages extend what has been digested."""
        return len(self.seen) <= len(messages) and all(
            seen == _fingerprint(message)
            for seen, message in zip(self.seen, messages, strict=False)
        )

    def add(self, message: BaseMessage) -> Exchange | None:
        """Digest one more message; the tool call that it finishes, if it does."""
        self.seen.append(_fingerprint(message))
        if isinstance(message, HumanMessage):
            _feed(self._state, "human", _text(message.content))
        elif isinstance(message, AIMessage):
            for call in message.tool_calls:
                self._calls[call["id"]] = (call["name"], canonical_args(call["args"]))
        elif isinstance(message, ToolMessage) and message.tool_call_id in self._calls:
            name, args = self._calls[message.tool_call_id]
            _feed(self._state, "call", name, args, message.status, _text(message.content))
            return Exchange(name, args, Observation.of(message))
        return None

    def digest(self) -> bytes:
        return self._state.copy().digest()


def _fingerprint(message: BaseMessage) -> Any:
    """All of a message that the digest depends on, by reference: equal, equal digest."""
    if isinstance(message, ToolMessage):
        return message.tool_call_id, message.content, message.status
    if isinstance(message, AIMessage):
        return "calls", message.tool_calls
    return message.content if isinstance(message, HumanMessage) else None


def _text(content: str | list[Any]) -> str:
    if isinstance(content, str):
        return "s" + content
    return "j" + json.dumps(content, sort_keys=True, default=repr)


def _feed(state: Any, *parts: str | bytes) -> None:
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
