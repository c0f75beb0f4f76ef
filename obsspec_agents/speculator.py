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
from obsspec_agents.event_log import EventLog
from obsspec_agents.events import Sink
from obsspec_agents.launcher import Launcher
from obsspec_agents.loop_thread import LoopThread
from obsspec_agents.model_pool import ModelPool
from obsspec_agents.observation import Normalizer, Observation
from obsspec_agents.pace import Pace
from obsspec_agents.policy_desk import PolicyDesk
from obsspec_agents.policy_turn import PolicyTurn
from obsspec_agents.report.summary import Summary
from obsspec_agents.request import Request
from obsspec_agents.run_registry import RunRegistry
from obsspec_agents.run_state import ActiveStep, Asked, RunState
from obsspec_agents.step_handle import StepHandle
from obsspec_agents.step_ledger import StepLedger
from obsspec_agents.steps import Step
from obsspec_agents.world_model.base import PendingCall, WorldModel
from obsspec_agents.world_model.recall import RecallWorldModel

__all__ = ["ENABLED_VARIABLE", "Speculator"]

ENABLED_VARIABLE = "OBSSPEC_ENABLED"
"""Set to ``0``, ``false``, ``no`` or ``off`` to turn every speculator of a process off."""


class Speculator:
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
        _check_kinds(normalizers=normalizers, exclude_tools=exclude_tools, sink=sink)
        self.enabled = enabled and not _switched_off()
        self.normalizers = tuple(normalizers)
        self.exclude_tools = frozenset(exclude_tools)
        self.allow_other_versions = allow_other_versions
        self.clock = clock
        self.log = EventLog(clock, sink, trace)
        self.pace = Pace()
        self.world_model = world_model or RecallWorldModel()
        self._owns_world_model = world_model is None
        self._version = policy_version
        self.lock = threading.RLock()
        self._runs = RunRegistry(begun=self._run_begun, ended=self._run_ended)
        self._thread = LoopThread()
        self._models = ModelPool(allow_unabortable=allow_unabortable)
        self.ledger = StepLedger(self)
        self._desk = PolicyDesk(self)
        self.launcher = Launcher(
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
        self.launcher.close()
        self._finalizer()
        if self._owns_world_model:
            self.world_model.close()
        self.log.close()

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
        return None if self.log.trace is None else self.log.trace.path

    @property
    def summary(self) -> Summary:
        """What the runs so far gained and cost."""
        return self.log.summary

    @property
    def listening(self) -> bool:
        """Whether anything is to be done at all: speculating, or telling somebody."""
        return self.enabled or self.log.heard

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
        self._version = version
        self.log.emit(ev.VersionChanged(at=self.clock(), run="", version=version))
        if not self.allow_other_versions:
            self.ledger.discard(self._runs.runs, lambda step: step.discard_other_versions(version))

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
            if run.ended:
                return None
            if active is None:
                active = self._new_step(run, key, message, messages, lineage, tools)
                run.steps[key] = active
            active.step.started(call_id, at)
            run.tools.start(f"{key}|{call_id}", at)
        step = active.step
        tool = step.calls[call_id].call["name"]
        if is_new:
            self.log.emit(
                ev.StepStarted(at=at, run=run.info.id, step=step.id, calls=len(step.calls))
            )
        self.log.emit(ev.ToolStarted(at=at, run=run.info.id, step=step.id, call=call_id, tool=tool))
        if is_new:
            self.ledger.watch_owner(run, active.owner)
            self.launcher.launch(run, active, tools)
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
            dropped = self.ledger.take_dropped(run, active)
            late = step.observed and active.predicting is not None
        self.log.emit(
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
        self.ledger.drop(dropped)
        if late:
            self.launcher.cancel_prediction(active)
        if observation is not None and self.enabled:
            with self.log.guard("memory", run.info.id, step.id):
                self.world_model.observe(active.calls[call_id], observation)

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

    # ------------------------------------------------------------------ the policy's side

    def policy_called(self, request: Request) -> PolicyTurn | None:
        """The graph asks the policy. Gives a turn, with a generation to join if one is
        equal to the request; None where there is no run to speak of."""
        run, lineage = self._runs.here()
        return None if run is None else self._desk.called(run, Asked(request, lineage))

    # ------------------------------------------------------------------ runs

    def _run_begun(self, run: RunState) -> None:
        info = run.info
        self.log.emit(ev.RunStarted(at=self.clock(), run=info.id, group=info.group, task=info.task))

    def _run_ended(self, run: RunState) -> None:
        self.ledger.end(run)
        with self.log.guard("memory", run.info.id):
            self.world_model.end_run(run.info)
        self.log.emit(ev.RunEnded(at=self.clock(), run=run.info.id, tool_seconds=run.tools.seconds))


def _switched_off() -> bool:
    return os.environ.get(ENABLED_VARIABLE, "").strip().lower() in ("0", "false", "no", "off")


def _check(*, expiry_s: float, max_in_flight: int | None, world_model: WorldModel | None) -> None:
    if not expiry_s > 0:
        raise ConfigurationError(f"expiry_s must be above 0 seconds, not {expiry_s!r}")
    if max_in_flight is not None and not (isinstance(max_in_flight, int) and max_in_flight >= 1):
        raise ConfigurationError(
            f"max_in_flight must be a number of at least 1, not {max_in_flight!r}; "
            "enabled=False turns speculation off"
        )
    if world_model is not None and not isinstance(world_model, WorldModel):
        raise ConfigurationError(
            f"world_model must be a WorldModel, not {type(world_model).__name__}: "
            "subclass obsspec_agents.WorldModel and define predict or apredict"
        )


def _check_kinds(*, normalizers: object, exclude_tools: object, sink: object) -> None:
    if not isinstance(normalizers, Sequence) or not all(
        isinstance(normalizer, Normalizer) for normalizer in normalizers
    ):
        raise ConfigurationError(
            f"normalizers must be a sequence of Normalizer, not {normalizers!r}: "
            "Normalizer.substitute(name, pattern, replacement) makes one"
        )
    if isinstance(exclude_tools, str):
        raise ConfigurationError(
            f"exclude_tools must be a collection of names, not the string {exclude_tools!r}: "
            f"pass {{{exclude_tools!r}}}"
        )
    if sink is not None and not callable(sink):
        raise ConfigurationError(f"sink must be a function that takes an event, not {sink!r}")
