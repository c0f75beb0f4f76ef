"""Predict, pre-generate, verify, commit or discard: the only owner of speculations.

The tool node tells the speculator when a tool starts and ends; the chat model tells it
when the graph asks for the next policy call. In between it asks the world model, derives
the next request from the last one, and lets the chat model's own hook answer it. The real
request finds that generation by its key, or makes a call as if nothing had happened.

Thread-safe: every transition happens under one lock; no foreign code (world model, sink,
model hook) runs under it. Tasks live on the loop that the policy was last called on, or,
for synchronous graphs, on one loop thread that the speculator owns. All that belongs to a
run ends with the run.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool

from obsspec_agents import events as ev
from obsspec_agents.errors import ConfigurationError
from obsspec_agents.events import DiscardReason, Event, Sink, SkipReason, StepOutcome
from obsspec_agents.launcher import Launcher
from obsspec_agents.loop_thread import LoopThread
from obsspec_agents.model_pool import ModelPool
from obsspec_agents.observation import Normalizer, Observation
from obsspec_agents.pace import Pace
from obsspec_agents.policy_turn import PolicyTurn, TurnOwner
from obsspec_agents.report.summary import Summary
from obsspec_agents.request import Request, UnkeyableRequestError
from obsspec_agents.run_registry import RunRegistry
from obsspec_agents.run_state import ActiveStep, Asked, Flight, RunState
from obsspec_agents.runs import tracker
from obsspec_agents.step_handle import StepHandle
from obsspec_agents.steps import Step
from obsspec_agents.trace import Trace
from obsspec_agents.world_model.base import PendingCall, WorldModel
from obsspec_agents.world_model.recall import RecallWorldModel

__all__ = ["ENABLED_VARIABLE", "Speculator"]

ENABLED_VARIABLE = "OBSSPEC_ENABLED"
"""Set to ``0``, ``false``, ``no`` or ``off`` to turn every speculator of a process off."""


class Speculator(TurnOwner):
    """Owns every speculation of the runs whose model and tools it was given to.

    Args:
        world_model: predicts observations; by default a recall memory in this process,
            with scope ``run``. The caller closes a model that the caller made.
        enabled: False turns all speculation off; so does ``OBSSPEC_ENABLED=0`` in the
            environment, whatever is passed here. Normalisers stay on.
        normalizers: declared rewrites of observations, with and without speculation.
        exclude_tools: names of tools that are never speculated on; the same as metadata
            ``{"speculate": False}`` on the tool.
        expiry_s: seconds after a tool's start at which its speculations are dropped.
        max_in_flight: no generation is begun while so many are; None for no limit.
        max_observation_chars: longer predictions are not used.
        allow_unabortable: also speculate on models whose call can't be aborted.
        allow_other_versions: commit a generation begun under another policy version, too.
        policy_version: of the policy's weights, at the start.
        sink: takes every event, from any thread.
        trace: a run folder for ``trace.jsonl``.
        clock: seconds, monotonic.

    Raises:
        ConfigurationError: a parameter can't work.

    Close it, or use it as a context manager (``with`` or ``async with``), to stop its
    thread and flush its trace.
    """

    def __init__(
        self,
        world_model: WorldModel | None = None,
        *,
        enabled: bool = True,
        normalizers: Sequence[Normalizer] = (),
        exclude_tools: Iterable[str] = (),
        expiry_s: float = 600.0,
        max_in_flight: int | None = None,
        max_observation_chars: int = 100_000,
        allow_unabortable: bool = False,
        allow_other_versions: bool = False,
        policy_version: str | None = None,
        sink: Sink | None = None,
        trace: str | Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check(expiry_s=expiry_s, max_in_flight=max_in_flight, world_model=world_model)
        self.enabled = enabled and not _switched_off()
        self.normalizers = tuple(normalizers)
        self.exclude_tools = frozenset(exclude_tools)
        self.allow_other_versions = allow_other_versions
        self.clock = clock
        self.summary = Summary()
        self.pace = Pace()
        self.world_model = world_model or RecallWorldModel()
        self._owns_world_model = world_model is None
        self._version = policy_version
        self._sink = sink
        self._trace = None if trace is None else Trace(trace, clock())
        self.lock = threading.RLock()
        self._runs = RunRegistry(begun=self._run_begun, ended=self._run_ended)
        self._thread = LoopThread()
        self._models = ModelPool(allow_unabortable=allow_unabortable)
        self._launcher = Launcher(
            self,
            self._models,
            self._thread,
            expiry_s=expiry_s,
            max_in_flight=max_in_flight,
            max_chars=max_observation_chars,
        )
        self._finalizer = weakref.finalize(self, self._thread.close, self._models.aclose)

    def __deepcopy__(self, memo: object) -> Self:
        return self

    # ------------------------------------------------------------------ lifetime

    def close(self) -> None:
        """End every run, stop the thread, flush the trace. Idempotent.

        A call that is joining a generation at that moment makes its own call instead.
        """
        self.enabled = False
        self._runs.end_all()
        self._finalizer()
        if self._owns_world_model:
            self.world_model.close()
        if self._trace is not None:
            self._trace.close()

    async def aclose(self) -> None:
        """The same, without blocking the event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def trace_path(self) -> Path | None:
        """Where the trace is written."""
        return None if self._trace is None else self._trace.path

    # ------------------------------------------------------------------ what users call

    @contextmanager
    def run(self, *, group: str | None = None, task: str | None = None) -> Iterator[str]:
        """Mark a run, for tool loops outside LangGraph; gives the run's id.

        All that happens in this context (threads and tasks that copy it included) is one
        run, which ends here. Inside LangGraph a run is known by itself: the outermost
        graph; its metadata may hold ``obsspec_group`` and ``obsspec_task``.
        """
        with self._runs.mark(group, task) as run:
            yield run.info.id

    @contextmanager
    def step(
        self,
        message: AIMessage,
        *,
        messages: Sequence[BaseMessage] = (),
        tools: Iterable[BaseTool] = (),
    ) -> Iterator[StepHandle]:
        """Speculate while the tools of a policy message run, without a tool node.

        Enter when the tools start; give each result to :meth:`StepHandle.observe`.

        Args:
            message: the policy's answer, with tool calls.
            messages: the conversation before it, for the world model; by default those of
                the request that it answered.
            tools: for their descriptions and their opt-outs.
        """
        handle = StepHandle(self, message, messages, {tool.name: tool for tool in tools})
        handle.start_all()
        try:
            yield handle
        finally:
            handle.end_all()

    @property
    def policy_version(self) -> str | None:
        """The version of the policy's weights."""
        return self._version

    def set_policy_version(self, version: str | None) -> None:
        """The policy's weights have changed: what was begun under others is not committed."""
        with self.lock:
            self._version = version
            dropped = []
            for run in [] if self.allow_other_versions else self._runs.runs:
                for active in run.steps.values():
                    active.step.discard_other_versions(version)
                    dropped += self._take_dropped(run, active)
        self.emit(ev.VersionChanged(at=self.clock(), run="", version=version))
        self._drop(dropped)

    # ------------------------------------------------------------------ the tool's side

    def tool_started(
        self,
        message: AIMessage,
        call_id: str,
        *,
        messages: Sequence[BaseMessage] = (),
        tools: Mapping[str, BaseTool] | None = None,
        config: RunnableConfig | None = None,
        attempt: str = "",
    ) -> tuple[RunState, ActiveStep] | None:
        """A tool of this policy message started. Returns at once; None outside any run.

        ``attempt`` tells apart two executions of the same message's tools.
        """
        run, lineage = self._runs.here(config)
        if run is None:
            return None
        at = self.clock()
        key = f"{message.id or ','.join(str(c['id']) for c in message.tool_calls)}|{attempt}"
        with self.lock:
            while (active := run.steps.get(key)) and active.step.calls[call_id].ended is not None:
                key += "'"  # the same message's tools run once more
            is_new = active is None
            if active is None:
                active = self._new_step(run, key, message, messages, lineage, tools)
                run.steps[key] = active
            active.step.started(call_id, at)
            run.tools.start(f"{key}|{call_id}", at)
        step = active.step
        tool = step.calls[call_id].call["name"]
        if is_new:
            self.emit(ev.StepStarted(at=at, run=run.info.id, step=step.id, calls=len(step.calls)))
        self.emit(ev.ToolStarted(at=at, run=run.info.id, step=step.id, call=call_id, tool=tool))
        if is_new:
            self._watch_owner(run, active)
            self._launcher.launch(run, active, tools)
        return run, active

    def tool_ended(
        self,
        run: RunState,
        active: ActiveStep,
        call_id: str,
        observation: Observation | None,
        status: str,
    ) -> None:
        """A tool ended, with an observation or (raised, ``Command``) without one."""
        at = self.clock()
        step = active.step
        with self.lock:
            call = step.calls[call_id]
            started = at if call.started is None else call.started
            step.observe(call_id, observation, at)
            run.tools.end(f"{step.id}|{call_id}", at)
            dropped = self._take_dropped(run, active)
            late = step.observed and active.predicting is not None
        self.emit(
            ev.ToolEnded(
                at=at,
                run=run.info.id,
                step=step.id,
                call=call_id,
                tool=call.call["name"],
                seconds=at - started,
                status=status,
            )
        )
        self._drop(dropped)
        if late:
            self._launcher.cancel_prediction(active)
        if observation is not None and self.enabled:
            self._learn(run, step, active.calls[call_id], observation)

    def _new_step(
        self,
        run: RunState,
        key: str,
        message: AIMessage,
        messages: Sequence[BaseMessage],
        lineage: tuple[str, ...],
        tools: Mapping[str, BaseTool] | None,
    ) -> ActiveStep:
        asked = run.asked_for(message)
        before = messages or (asked.request.messages if asked else ())
        known = set(asked.lineage) if asked else set()
        calls = {
            str(call["id"]): PendingCall(
                id=str(call["id"]),
                name=call["name"],
                args=call["args"],
                run=run.info,
                messages=[*before, message],
                description=tools[call["name"]].description
                if tools and call["name"] in tools
                else "",
            )
            for call in message.tool_calls
        }
        owner = next((chain for chain in lineage if chain in known), None)
        return ActiveStep(Step(key, message), owner, calls, asked)

    def _watch_owner(self, run: RunState, active: ActiveStep) -> None:
        owner = active.owner
        with self.lock:
            if owner is None or owner in run.watched:
                return
            run.watched.add(owner)
        if not tracker().watch(owner, lambda: self._owner_ended(run, owner)):
            self._owner_ended(run, owner)

    def _learn(
        self, run: RunState, step: Step, call: PendingCall, observation: Observation
    ) -> None:
        with self.guard("memory", run, step.id):
            self.world_model.observe(call, observation)

    # ------------------------------------------------------------------ the policy's side

    def policy_called(self, request: Request) -> PolicyTurn | None:
        """The graph asks the policy. Gives a turn, with a generation to join if one is
        equal to the request; None where there is no run to speak of."""
        run, lineage = self._runs.here()
        if run is None:
            return None
        asked = Asked(request, lineage)
        flight = self._claim(run, asked) if run.steps else None
        return PolicyTurn(self, run, asked, flight, self._version)

    def _claim(self, run: RunState, asked: Asked) -> Flight | None:
        request = asked.request
        key = self._key(run, request)
        claimed: Flight | None = None
        ended: list[tuple[ActiveStep, StepOutcome, str, bool]] = []
        dropped: list[tuple[RunState, ActiveStep, Flight]] = []
        with self.lock:
            for step_key, active in list(run.steps.items()):
                step = active.step
                if any(
                    flight.speculation.request_key == key
                    and not self._launcher.reachable(flight, request)
                    for flight in active.flights.values()
                ):
                    step.discard_all(DiscardReason.UNREACHABLE)
                speculation = key and step.claim(
                    key, self._version, any_version=self.allow_other_versions
                )
                if speculation:
                    claimed = active.flights.pop(speculation.id)
                    ended.append((active, StepOutcome.COMMITTED, "", speculation.seen))
                elif asked.may_follow(active.owner) and request.answers(step.calls):
                    ended.append((active, *_lost(step)))
                else:
                    dropped += self._take_dropped(run, active)
                    continue
                step.discard_all(DiscardReason.REQUEST_DIFFERS)
                dropped += self._take_dropped(run, active)
                del run.steps[step_key]
                if speculation:
                    break
        self._drop(dropped)
        for active, outcome, reason, seen in ended:
            self._launcher.cancel_prediction(active)
            self._step_ended(run, active, outcome, reason, seen=seen)
        if claimed is not None:
            self._launcher.land(claimed)
        return claimed

    def _key(self, run: RunState, request: Request) -> str | None:
        with self.lock:
            if not any(active.step.live for active in run.steps.values()):
                return None
        try:
            return request.key
        except UnkeyableRequestError:
            return None

    def answered(self, turn: PolicyTurn, error: BaseException | None) -> None:
        """A policy call is over (see :class:`PolicyTurn`)."""
        at, run, flight = self.clock(), turn.run, turn.flight
        generation = None if flight is None else flight.generation
        if flight is not None and generation is not None and not generation.finished:
            self._launcher.abort(flight)
        if error is None and self.enabled:
            with self.lock:
                run.remember(turn.call_ids, turn.asked)
        if flight is None and error is None and not turn.refetched:
            self.pace.add(turn.tokens, at - turn.started)
        if flight is not None and error is None:
            self._committed(turn, flight)
        self.emit(
            ev.PolicyAnswered(
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
        started = generation.started or turn.started
        ended = generation.ended or self.clock()
        with self.lock:
            inside = run.tools.inside(started, ended)
        unspeculated = self.pace.seconds(turn.tokens)
        self.emit(
            ev.GenerationCommitted(
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
            self.emit(
                ev.GenerationRefetched(
                    at=self.clock(),
                    run=turn.run.info.id,
                    step=speculation.step.id,
                    speculation=speculation.id,
                    error=type(error).__name__,
                )
            )
        return self._version

    # ------------------------------------------------------------------ ends

    def _take_dropped(
        self, run: RunState, active: ActiveStep
    ) -> list[tuple[RunState, ActiveStep, Flight]]:
        """Under the lock: the flights whose speculations are discarded."""
        gone = [f for f in active.flights.values() if f.speculation.discarded is not None]
        for flight in gone:
            del active.flights[flight.speculation.id]
        return [(run, active, flight) for flight in gone]

    def _drop(self, dropped: list[tuple[RunState, ActiveStep, Flight]]) -> None:
        for run, active, flight in dropped:
            self._launcher.discard(run, active, flight)

    def expire(self, run: RunState, active: ActiveStep) -> None:
        """The expiry of a step has passed."""
        with self.lock:
            active.step.discard_all(DiscardReason.EXPIRED)
            dropped = self._take_dropped(run, active)
        self._drop(dropped)

    def _owner_ended(self, run: RunState, owner: str) -> None:
        self._end_steps(run, lambda active: active.owner == owner)

    def _end_steps(self, run: RunState, which: Callable[[ActiveStep], bool]) -> None:
        with self.lock:
            over = [(key, active) for key, active in run.steps.items() if which(active)]
            dropped = []
            for key, active in over:
                active.step.ended = True
                active.step.discard_all(DiscardReason.RUN_ENDED)
                dropped += self._take_dropped(run, active)
                del run.steps[key]
        self._drop(dropped)
        for _, active in over:
            self._launcher.cancel_prediction(active)
            _, reason, seen = _lost(active.step)
            self._step_ended(run, active, StepOutcome.ENDED, reason, seen=seen)

    def _step_ended(
        self, run: RunState, active: ActiveStep, outcome: StepOutcome, reason: str, *, seen: bool
    ) -> None:
        self.emit(
            ev.StepEnded(
                at=self.clock(),
                run=run.info.id,
                step=active.step.id,
                outcome=outcome,
                reason=reason,
                seen=seen,
            )
        )

    def _run_begun(self, run: RunState) -> None:
        info = run.info
        self.emit(ev.RunStarted(at=self.clock(), run=info.id, group=info.group, task=info.task))

    def _run_ended(self, run: RunState) -> None:
        self._end_steps(run, lambda _: True)
        with self.guard("memory", run):
            self.world_model.end_run(run.info)
        self.emit(ev.RunEnded(at=self.clock(), run=run.info.id, tool_seconds=run.tools.seconds))

    # ------------------------------------------------------------------ events

    @property
    def listening(self) -> bool:
        """Whether anything is to be done at all: speculating, or telling somebody."""
        return self.enabled or self._sink is not None or self._trace is not None

    @contextmanager
    def guard(self, stage: str, run: RunState | None = None, step: str = "") -> Iterator[None]:
        """Around what we do on the user's path: its failure is never the run's."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - silent to the run, loud in the trace
            self.failed(run, step, stage, error)

    def emit(self, event: Event) -> None:
        """Give an event to the summary, the trace and the sink. Never raises."""
        self.summary(event)
        for sink in (self._trace, self._sink):
            if sink is not None:
                try:
                    sink(event)
                except KeyboardInterrupt:
                    raise
                except BaseException:  # noqa: BLE001 - a sink's failure is never the run's
                    self.summary.failures += 1

    def failed(self, run: RunState | None, step: str, stage: str, error: BaseException) -> None:
        """Something of a speculation raised: silent to the run, loud in the trace."""
        self.emit(
            ev.SpeculationFailed(
                at=self.clock(),
                run="" if run is None else run.info.id,
                step=step,
                stage=stage,
                error=_described(error),
            )
        )


def _lost(step: Step) -> tuple[StepOutcome, str, bool]:
    """The outcome of a step whose next request found nothing to join."""
    if step.missed is not None:
        return StepOutcome.MISSED, step.missed, False
    if step.live:
        return StepOutcome.MISSED, DiscardReason.REQUEST_DIFFERS, False
    return StepOutcome.SKIPPED, step.skipped or SkipReason.LATE, False


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an exception may fail to say what it is
        return type(error).__name__


def _switched_off() -> bool:
    return os.environ.get(ENABLED_VARIABLE, "").strip().lower() in ("0", "false", "no", "off")


def _check(*, expiry_s: float, max_in_flight: int | None, world_model: WorldModel | None) -> None:
    if not expiry_s > 0:
        raise ConfigurationError(f"expiry_s must be above 0 seconds, not {expiry_s!r}")
    if max_in_flight is not None and max_in_flight < 1:
        raise ConfigurationError(
            f"max_in_flight must be at least 1, not {max_in_flight!r}; "
            "enabled=False turns speculation off"
        )
    if world_model is not None and not isinstance(world_model, WorldModel):
        raise ConfigurationError(
            f"world_model must be a WorldModel, not {type(world_model).__name__}: "
            "subclass obsspec_agents.WorldModel and define predict or apredict"
        )
