"""How steps end: with a commit, a miss, their expiry, a new policy version, or their run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from obsspec_agents.events import DiscardReason, SkipReason, StepEnded, StepOutcome
from obsspec_agents.run_state import ActiveStep, Flight, RunState
from obsspec_agents.runs import tracker
from obsspec_agents.steps import Step

if TYPE_CHECKING:
    from obsspec_agents.speculator import Speculator

__all__ = ["Dropped", "StepLedger", "outcome_unjoined"]

Dropped = tuple[RunState, ActiveStep, Flight]
"""A flight whose speculation is discarded, and where it was."""


class StepLedger:
    """Ends the steps of a speculator, whose lock it shares, and says so.

    State changes under the lock; what they mean for tasks and listeners follows outside.
    """

    def __init__(self, speculator: Speculator) -> None:
        self._owner = speculator

    def take_dropped(self, run: RunState, active: ActiveStep) -> list[Dropped]:
        """Under the lock: take the flights whose speculations are discarded."""
        gone = [f for f in active.flights.values() if f.speculation.discarded is not None]
        for flight in gone:
            del active.flights[flight.speculation.id]
        return [(run, active, flight) for flight in gone]

    def drop(self, dropped: Iterable[Dropped]) -> None:
        """Close these flights."""
        for run, active, flight in dropped:
            self._owner.launcher.discard(run, active, flight)

    def discard(self, runs: Iterable[RunState], which: Callable[[Step], object]) -> None:
        """Apply a discarding method to every step of these runs, and close what it drops."""
        with self._owner.lock:
            dropped: list[Dropped] = []
            for run in runs:
                for active in run.steps.values():
                    which(active.step)
                    dropped += self.take_dropped(run, active)
        self.drop(dropped)

    def expire(self, run: RunState, active: ActiveStep) -> None:
        """The expiry of a step has passed."""
        with self._owner.lock:
            active.step.discard_all(DiscardReason.EXPIRED)
            dropped = self.take_dropped(run, active)
        self.drop(dropped)

    def watch_owner(self, run: RunState, owner: str | None) -> None:
        """End the steps of a chain when that chain ends."""
        with self._owner.lock:
            if owner is None or owner in run.watched:
                return
            run.watched.add(owner)
        if not tracker().watch(owner, lambda: self.end(run, owner)):
            self.end(run, owner)

    def end(self, run: RunState, owner: str | None = None) -> None:
        """The run has ended, or the chain that owned some of its steps."""
        with self._owner.lock:
            over = [
                (key, active)
                for key, active in run.steps.items()
                if owner is None or active.owner == owner
            ]
            dropped: list[Dropped] = []
            for key, active in over:
                active.step.ended = True
                active.step.discard_all(DiscardReason.RUN_ENDED)
                dropped += self.take_dropped(run, active)
                del run.steps[key]
        self.drop(dropped)
        for _, active in over:
            _, reason = outcome_unjoined(active.step)
            self.ended(run, active, StepOutcome.ENDED, reason)

    def ended(
        self,
        run: RunState,
        active: ActiveStep,
        outcome: StepOutcome,
        reason: str,
        *,
        seen: bool = False,
    ) -> None:
        """A step's outcome is known: nobody waits for its prediction any more."""
        self._owner.launcher.cancel_prediction(active)
        self._owner.log.emit(
            StepEnded(
                at=self._owner.clock(),
                run=run.info.id,
                step=active.step.id,
                outcome=outcome,
                reason=reason,
                seen=seen,
            )
        )


def outcome_unjoined(step: Step) -> tuple[StepOutcome, str]:
    """The outcome of a step whose next request found nothing to join, and why."""
    if step.missed is not None:
        return StepOutcome.MISSED, step.missed
    if step.live:
        return StepOutcome.MISSED, DiscardReason.REQUEST_DIFFERS
    return StepOutcome.SKIPPED, step.skipped or SkipReason.LATE
