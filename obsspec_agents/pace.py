"""What a policy call takes unspeculated, learned online from the calls that were plain.

Seconds are modelled as ``a + b * tokens`` by least squares (first token, then a constant
rate), which is what a server under steady load does. It is the cap on hidden seconds: a
speculation may run slower than a plain call, and the excess hides nothing.
"""

from __future__ import annotations

import threading

__all__ = ["Intervals", "Pace"]

_FASTEST_S = 1e-9
"""Seconds a token; below it, a clock did not move, and nothing was measured."""


class Pace:
    """Running sums over plain calls. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n = 0
        self._tokens = self._seconds = self._tokens2 = self._product = 0.0

    def add(self, tokens: int | None, seconds: float) -> None:
        """A plain call was measured; without a token count it says nothing."""
        if not tokens:
            return
        with self._lock:
            self._n += 1
            self._tokens += tokens
            self._seconds += seconds
            self._tokens2 += tokens * tokens
            self._product += tokens * seconds

    def _line(self) -> tuple[float, float] | None:
        if not self._n:
            return None
        spread = self._n * self._tokens2 - self._tokens**2
        if spread > 0:
            slope = (self._n * self._product - self._tokens * self._seconds) / spread
            base = (self._seconds - slope * self._tokens) / self._n
            if slope > 0 and base >= 0:
                return base, slope
        return 0.0, self._seconds / self._tokens

    def seconds(self, tokens: int | None) -> float | None:
        """What a plain call of that many tokens takes; None before one was measured."""
        with self._lock:
            line = self._line()
        return None if line is None or not tokens else line[0] + line[1] * tokens

    def tokens(self, seconds: float) -> int:
        """How many tokens a plain call has generated after that many seconds; 0 if unknown."""
        with self._lock:
            line = self._line()
        if line is None or line[1] < _FASTEST_S:
            return 0
        return max(0, round((seconds - line[0]) / line[1]))


class Intervals:
    """The times at which at least one tool of a run was running. Not thread-safe."""

    def __init__(self) -> None:
        self._open: dict[str, float] = {}
        self._closed: list[tuple[float, float]] = []

    def start(self, key: str, at: float) -> None:
        """A tool started."""
        self._open[key] = at

    def end(self, key: str, at: float) -> None:
        """It ended."""
        start = self._open.pop(key, at)
        self._closed = _union([*self._closed, (start, at)])

    def inside(self, start: float, end: float) -> float:
        """Seconds of ``[start, end]`` that lie inside the union."""
        spans = _union([*self._closed, *((s, end) for s in self._open.values() if s < end)])
        return sum(max(0.0, min(end, e) - max(start, s)) for s, e in spans)

    @property
    def seconds(self) -> float:
        """Length of the union of the ended intervals."""
        return sum(end - start for start, end in self._closed)


def _union(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
