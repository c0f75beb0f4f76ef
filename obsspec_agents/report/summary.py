"""A run of runs in numbers: a fold over events, live or read back from a trace."""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from dataclasses import dataclass, field

from obsspec_agents.events import (
    Event,
    GenerationCommitted,
    GenerationDiscarded,
    GenerationRefetched,
    ObservationPredicted,
    PolicyAnswered,
    RunEnded,
    RunStarted,
    SpeculationFailed,
    StepEnded,
    StepOutcome,
    ToolEnded,
)

__all__ = ["Summary"]


@dataclass
class Summary:
    """What the runs so far gained and cost. Is itself a sink. Thread-safe."""

    runs: int = 0
    turns: int = 0
    """Policy calls of the graphs: N turns, N calls, with speculation or without."""
    committed_seen: int = 0
    """Steps whose next generation was committed, every call of theirs seen before."""
    committed_new: int = 0
    """The same with at least one call that had not been seen before."""
    missed: int = 0
    skipped: int = 0
    refetched: int = 0
    failures: int = 0
    hidden_seconds: float = 0.0
    policy_seconds: float = 0.0
    """Sum over all policy calls of the time that their graph waited for them."""
    tool_seconds: float = 0.0
    """Sum over ended runs of the union of their tool intervals."""
    wasted_tokens: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Skip and discard reasons, by step."""
    _predictions: list[float] = field(default_factory=list, repr=False)
    _tools: list[float] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def committed(self) -> int:
        """Steps whose next generation was committed."""
        return self.committed_seen + self.committed_new

    @property
    def prediction_latency(self) -> float | None:
        """Median seconds of a prediction; None before the first."""
        return statistics.median(self._predictions) if self._predictions else None

    @property
    def tool_latency(self) -> float | None:
        """Median seconds of a tool call; None before the first."""
        return statistics.median(self._tools) if self._tools else None

    def __call__(self, event: Event) -> None:
        """Take one event."""
        with self._lock:
            self._add(event)

    def _add(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.runs += 1
            case RunEnded():
                self.tool_seconds += event.tool_seconds
            case PolicyAnswered():
                self.turns += 1
                self.policy_seconds += event.seconds
            case StepEnded():
                self._add_step(event)
            case GenerationCommitted():
                self.hidden_seconds += event.hidden_seconds
            case GenerationDiscarded():
                self.wasted_tokens += event.wasted_tokens
            case GenerationRefetched():
                self.refetched += 1
            case SpeculationFailed():
                self.failures += 1
            case ObservationPredicted():
                self._predictions.append(event.seconds)
            case ToolEnded():
                self._tools.append(event.seconds)
            case _:
                pass

    def _add_step(self, event: StepEnded) -> None:
        if event.reason:
            self.reasons[event.reason] += 1
        match event.outcome:
            case StepOutcome.COMMITTED if event.seen:
                self.committed_seen += 1
            case StepOutcome.COMMITTED:
                self.committed_new += 1
            case StepOutcome.MISSED:
                self.missed += 1
            case StepOutcome.SKIPPED:
                self.skipped += 1
            case StepOutcome.ENDED:
                pass
