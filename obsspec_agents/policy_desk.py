"""The policy's side of a speculator: finds the generation that a real request equals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from obsspec_agents.events import (
    DiscardReason,
    GenerationCommitted,
    GenerationRefetched,
    PolicyAnswered,
    StepOutcome,
)
from obsspec_agents.policy_turn import PolicyTurn, TurnOwner
from obsspec_agents.request import Request, UnkeyableRequestError
from obsspec_agents.run_state import ActiveStep, Asked, Flight, RunState
from obsspec_agents.step_ledger import Dropped, outcome_unjoined

if TYPE_CHECKING:
    from obsspec_agents.speculator import Speculator

__all__ = ["PolicyDesk"]


class PolicyDesk(TurnOwner):
    """Opens and closes the policy turns of a speculator, whose lock it shares."""

    def __init__(self, speculator: Speculator) -> None:
        self._owner = speculator
        self.clock = speculator.clock

    def called(self, run: RunState, asked: Asked) -> PolicyTurn:
        """The graph asks the policy. Gives a turn, with a generation to join if one is
        equal to the request."""
        flight = self._claim(run, asked) if run.steps else None
        return PolicyTurn(self, run, asked, flight, self._owner.policy_version)

    def _claim(self, run: RunState, asked: Asked) -> Flight | None:
        owner, request = self._owner, asked.request
        key = self._key(run, request)
        claimed: Flight | None = None
        ended: list[tuple[ActiveStep, StepOutcome, str, bool]] = []
        dropped: list[Dropped] = []
        with owner.lock:
            for step_key, active in list(run.steps.items()):
                step = active.step
                if any(
                    flight.speculation.request_key == key
                    and not owner.launcher.reachable(flight, request)
                    for flight in active.flights.values()
                ):
                    step.discard_all(DiscardReason.UNREACHABLE)
                speculation = key and step.claim(
                    key, owner.policy_version, any_version=owner.allow_other_versions
                )
                if speculation:
                    claimed = active.flights.pop(speculation.id)
                    ended.append((active, StepOutcome.COMMITTED, "", speculation.seen))
                elif asked.may_follow(active.owner) and request.answers(step.calls):
                    ended.append((active, *outcome_unjoined(step), False))
                else:
                    dropped += owner.ledger.take_dropped(run, active)
                    continue
                step.discard_all(DiscardReason.REQUEST_DIFFERS)
                dropped += owner.ledger.take_dropped(run, active)
                del run.steps[step_key]
                if speculation:
                    break
        owner.ledger.drop(dropped)
        for active, outcome, reason, seen in ended:
            owner.ledger.ended(run, active, outcome, reason, seen=seen)
        if claimed is not None:
            owner.launcher.land(claimed)
        return claimed

    def _key(self, run: RunState, request: Request) -> str | None:
        with self._owner.lock:
            if not any(active.step.live for active in run.steps.values()):
                return None
        try:
            return request.key
        except UnkeyableRequestError:
            return None

    def answered(self, turn: PolicyTurn, error: BaseException | None) -> None:
        """A policy call is over (see :class:`PolicyTurn`)."""
        with self._owner.log.guard("policy", turn.run.info.id):
            self._answered(turn, error)

    def _answered(self, turn: PolicyTurn, error: BaseException | None) -> None:
        at, run, flight = self.clock(), turn.run, turn.flight
        if flight is not None and not flight.generation.finished:
            self._owner.launcher.abort(flight)
        if error is None:
            if self._owner.enabled:
                with self._owner.lock:
                    run.remember(turn.call_ids, turn.asked)
            if flight is not None:
                self._committed(turn, flight)
            elif not turn.refetched:
                self._owner.pace.add(turn.tokens, at - turn.started)
        self._owner.log.emit(
            PolicyAnswered(
                at=at,
                run=run.info.id,
                started=turn.started,
                seconds=at - turn.started,
                tokens=turn.tokens,
                joined=flight is not None,
                version=turn.version,
                error=None if error is None else type(error).__name__,
            )
        )

    def _committed(self, turn: PolicyTurn, flight: Flight) -> None:
        generation, run = flight.generation, turn.run
        started = turn.started if generation.started is None else generation.started
        ended = self.clock() if generation.ended is None else generation.ended
        with self._owner.lock:
            inside = run.tools.inside(started, ended)
        unspeculated = self._owner.pace.seconds(turn.tokens)
        self._owner.log.emit(
            GenerationCommitted(
                at=self.clock(),
                run=run.info.id,
                step=flight.speculation.step.id,
                speculation=flight.speculation.id,
                started=started,
                claimed=turn.started,
                seconds=ended - started,
                hidden_seconds=inside if unspeculated is None else min(inside, unspeculated),
                tokens=turn.tokens,
                version=flight.speculation.version,
            )
        )

    def refetched(self, turn: PolicyTurn, error: BaseException) -> str | None:
        """A joined generation met a transport fault (see :class:`PolicyTurn`)."""
        if turn.flight is not None:
            speculation = turn.flight.speculation
            self._owner.log.emit(
                GenerationRefetched(
                    at=self.clock(),
                    run=turn.run.info.id,
                    step=speculation.step.id,
                    speculation=speculation.id,
                    error=type(error).__name__,
                )
            )
        return self._owner.policy_version
