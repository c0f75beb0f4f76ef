"""Recall: the tool will return what it returned to the same call before.

Two memories answer, the narrower first: calls with the same history (see
:mod:`obsspec_agents.world_model.history`), name and arguments; else calls with the same
name and arguments whenever they were made. Neither crosses its scope.

A key that was seen ``n`` times and led to an observation ``c`` times gives it the
probability ``c / (n + 1)``: one sighting is worth a half, agreement brings it towards 1,
and the rest is kept for what has not been seen yet (Laplace's rule of succession with one
open place).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from langchain_core.messages import BaseMessage

from obsspec_agents.errors import ConfigurationError
from obsspec_agents.observation import Observation
from obsspec_agents.world_model.base import PendingCall, Prediction, RunInfo, Scope, WorldModel
from obsspec_agents.world_model.history import HistoryDigests, digest_of, finished_calls
from obsspec_agents.world_model.memory_file import MemoryFile, Sighting

__all__ = ["RecallWorldModel"]

_MAX_CANDIDATES = 8


class RecallWorldModel(WorldModel):
    """Predicts that a call returns what it returned before. Thread-safe, never blocks.

    Every finished call makes two entries, with and without its history. An entry keeps up
    to eight different observations; the rarest, oldest first, give way. Observations
    that are no plain text or too long are counted, but not kept.

    With a file, the memory is loaded at construction and written behind by one thread;
    observations that look like they hold a secret stay in memory only, and so does what a
    run without the label of the scope has seen. :meth:`close` joins the thread.

    Args:
        scope: with whom what was seen is shared. A run without a label of that scope
            shares with nobody.
        path: a local file that backs the memory, for every scope but ``run``.
        max_entries: the least recently used entries beyond this are forgotten.
        max_observation_chars: longer observations are not kept.

    Raises:
        ConfigurationError: a value that can't work, or a file that is damaged, foreign or
            of another format version.
    """

    name = "recall"
    instant = True

    def __init__(
        self,
        scope: Scope | str = Scope.RUN,
        path: str | Path | None = None,
        *,
        max_entries: int = 50_000,
        max_observation_chars: int = 32_768,
    ) -> None:
        self.scope = _scope(scope)
        if max_entries < 2:
            raise ConfigurationError(f"max_entries must be at least 2, not {max_entries}")
        if max_observation_chars < 1:
            raise ConfigurationError(
                f"max_observation_chars must be at least 1, not {max_observation_chars}"
            )
        if path is not None and self.scope is Scope.RUN:
            raise ConfigurationError(
                f"a memory file ({str(path)!r}) is of no use with scope 'run', which forgets "
                "at the end of each run: use scope 'group', 'task' or 'all', or no path"
            )
        self._max_entries = max_entries
        self._max_chars = max_observation_chars
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._keys_of_run: dict[str, set[bytes]] = {}
        self._histories = HistoryDigests()
        self._last = 0
        self._file: MemoryFile | None = None
        if path is not None:
            self._file = MemoryFile(path, max_keys=max_entries, max_candidates=_MAX_CANDIDATES)
            for sighting in self._file.load():
                self._count(sighting)
            weakref.finalize(self, self._file.close)

    def predict(self, call: PendingCall) -> Sequence[Prediction]:
        """What the call returned before, likeliest first; of equals, the latest first.

        ``seen`` is set on all of them: only known calls are predicted.
        """
        with self._lock:
            for key in self._keys(call):
                entry = self._entries.get(key)
                if entry is not None:
                    self._entries.move_to_end(key)
                    return [
                        Prediction(observation, probability, self.name, seen=True)
                        for observation, probability in entry.candidates()
                    ]
        return ()

    def observe(self, call: PendingCall, observation: Observation) -> None:
        """Remember what a call returned."""
        with self._lock:
            self._learn(call.run, self._keys(call), observation)

    def learn(self, messages: Sequence[BaseMessage], run: RunInfo) -> int:
        """Remember every finished call of a transcript, as if it had been observed.

        A warm start from the logs of siblings or of an earlier epoch: ``run`` says which
        labels they had. Returns the number of calls. Takes about 20 µs a call.
        """
        learned = 0
        for history, exchange in finished_calls(messages):
            keys = _keys(self._owner(run), history, exchange.name, exchange.args)
            with self._lock:
                self._learn(run, keys, exchange.observation)
            learned += 1
        return learned

    def end_run(self, run: RunInfo) -> None:
        """Forget what was only for this run."""
        with self._lock:
            self._histories.forget(run.id)
            for key in self._keys_of_run.pop(run.id, ()):
                self._entries.pop(key, None)

    def flush(self) -> None:
        """Wait until the file, if there is one, holds all that was observed so far."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Write what is left to the file and join its thread. Idempotent."""
        if self._file is not None:
            self._file.close()

    def _owner(self, run: RunInfo) -> str:
        """Whose memory a run uses; a scope is part of it, so a label is never an id."""
        label = {Scope.GROUP: run.group, Scope.TASK: run.task, Scope.ALL: ""}.get(self.scope)
        return f"run:{run.id}" if label is None else f"{self.scope.value}:{label}"

    def _keys(self, call: PendingCall) -> tuple[bytes, bytes]:
        history = self._histories.digest(call.run.id, call.messages)
        return _keys(self._owner(call.run), history, call.name, call.canonical_args)

    def _learn(self, run: RunInfo, keys: tuple[bytes, bytes], observation: Observation) -> None:
        text = observation.text
        kept = None if text is None or len(text) > self._max_chars else observation
        private = self._owner(run) == f"run:{run.id}"
        self._last = max(self._last + 1, time.time_ns())
        for key in keys:
            self._count(Sighting(key, kept, 1, self._last), run.id if private else None)
            if self._file is not None and not private:
                self._file.add(key, kept, self._last)

    def _count(self, sighting: Sighting, run: str | None = None) -> None:
        entry = self._entries.get(sighting.key)
        if entry is None:
            entry = self._entries[sighting.key] = _Entry(run)
            if run is not None:
                self._keys_of_run.setdefault(run, set()).add(sighting.key)
            if len(self._entries) > self._max_entries:
                self._forget_oldest()
        self._entries.move_to_end(sighting.key)
        entry.add(sighting)
        self._last = max(self._last, sighting.last)

    def _forget_oldest(self) -> None:
        key, entry = self._entries.popitem(last=False)
        if entry.run is not None:
            keys = self._keys_of_run[entry.run]
            keys.discard(key)
            if not keys:
                del self._keys_of_run[entry.run]


@dataclass(slots=True)
class _Entry:
    """What one key has led to."""

    run: str | None = None
    """The only run that it is for, if it is."""
    total: int = 0
    seen: dict[Observation, tuple[int, int]] = field(default_factory=dict)
    """How often each, and when last."""

    def add(self, sighting: Sighting) -> None:
        self.total += sighting.count
        if sighting.observation is None:
            return
        count, last = self.seen.get(sighting.observation, (0, 0))
        self.seen[sighting.observation] = (count + sighting.count, max(last, sighting.last))
        if len(self.seen) > _MAX_CANDIDATES:
            del self.seen[min(self.seen, key=self.seen.__getitem__)]

    def candidates(self) -> list[tuple[Observation, float]]:
        ranked = sorted(self.seen.items(), key=lambda item: item[1], reverse=True)
        return [(observation, count / (self.total + 1)) for observation, (count, _) in ranked]


def _keys(owner: str, history: bytes, name: str, args: str) -> tuple[bytes, bytes]:
    return (
        digest_of("same history", owner, history, name, args),
        digest_of("whenever", owner, name, args),
    )


def _scope(value: Scope | str) -> Scope:
    try:
        return Scope(value)
    except ValueError:
        names = ", ".join(repr(scope.value) for scope in Scope)
        raise ConfigurationError(f"scope must be one of {names}, not {value!r}") from None
