"""From a step whose tools have started to a generation in flight, and down again.

Decides whether a step is speculated on at all, asks the world model, derives the next
request, begins its generation, and undoes each of these. Whether something *starts* may
depend on anything; once begun, only what the speculator says ends it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool
from langchain_core.tracers.context import _configure_hooks
from langsmith.run_helpers import tracing_context

from obsspec_agents import events as ev
from obsspec_agents.caching import cached
from obsspec_agents.events import SkipReason
from obsspec_agents.generation import Generation, GenerationClosedError
from obsspec_agents.loop_thread import LoopThread
from obsspec_agents.model_pool import ModelPool, Starter
from obsspec_agents.predicting import SkipStep, predict_step
from obsspec_agents.request import Request, UnkeyableRequestError
from obsspec_agents.run_registry import unmark
from obsspec_agents.run_state import ActiveStep, Flight, RunState
from obsspec_agents.steps import Speculation
from obsspec_agents.world_model.base import Prediction

if TYPE_CHECKING:
    from obsspec_agents.speculator import Speculator

__all__ = ["Launcher", "unseen_context"]


class Launcher:
    """Begins and ends generations for a speculator, whose lock it shares.

    Args:
        speculator: the owner.
        models: says how a request can be started.
        thread: the loop for synchronous runs.
        expiry_s: see :class:`Speculator`.
        max_in_flight: see :class:`Speculator`.
        max_chars: length limit of a prediction, in characters.
    """

    def __init__(
        self,
        speculator: Speculator,
        models: ModelPool,
        thread: LoopThread,
        *,
        expiry_s: float,
        max_in_flight: int | None,
        max_chars: int,
    ) -> None:
        self._owner = speculator
        self._models = models
        self._thread = thread
        self._expiry_s = expiry_s
        self._max_in_flight = max_in_flight
        self._max_chars = max_chars
        self._in_flight = 0
        self._landed: list[Flight] = []
        """Committed, with their generations not at their end yet."""
        self._ids = itertools.count(1)

    def launch(
        self, run: RunState, active: ActiveStep, tools: Mapping[str, BaseTool] | None
    ) -> None:
        """The step's first tool started: begin to predict, unless there is a reason not to."""
        try:
            starter = self._starter(active, tools)
        except SkipStep as skip:
            active.step.skipped = skip.reason
            return
        request = active.asked.request if active.asked is not None else None
        assert request is not None  # noqa: S101 - _starter has looked
        loop = request.loop or self._thread.loop
        active.loop = loop

        def begin() -> None:
            with self._owner.lock:
                if not active.step.ended and active.step.skipped is None:
                    active.predicting = loop.create_task(
                        self._speculate(run, active, request, starter),
                        context=unseen_context(request.context),
                    )

        if not _on_loop(loop, begin):
            active.step.skipped = SkipReason.LOOP_CLOSED

    def _starter(self, active: ActiveStep, tools: Mapping[str, BaseTool] | None) -> Starter:
        """How the next request is to be started.

        Raises:
            SkipStep: it is not to be.
        """
        if not self._owner.enabled:
            raise SkipStep(SkipReason.DISABLED)
        ids = [call["id"] for call in active.step.message.tool_calls]
        if None in ids or len(set(ids)) < len(ids):
            raise SkipStep(SkipReason.AMBIGUOUS_CALLS)
        for call in active.calls.values():
            self._check_tool(call.name, tools)
        if active.asked is None:
            raise SkipStep(SkipReason.NO_REQUEST)
        request = active.asked.request
        if request.model.rate_limiter is not None:
            raise SkipStep(SkipReason.RATE_LIMITED)
        starter = self._models.starter(request)
        if starter is None:
            raise SkipStep(SkipReason.UNABORTABLE)
        return starter

    def _check_tool(self, name: str, tools: Mapping[str, BaseTool] | None) -> None:
        if name in self._owner.exclude_tools:
            raise SkipStep(SkipReason.OPTED_OUT)
        if not tools:
            return
        tool = tools.get(name)
        if tool is None:
            raise SkipStep(SkipReason.UNKNOWN_TOOL)
        if (tool.metadata or {}).get("speculate", True) is False:
            raise SkipStep(SkipReason.OPTED_OUT)
        if tool.return_direct:
            raise SkipStep(SkipReason.RETURN_DIRECT)

    async def _speculate(
        self, run: RunState, active: ActiveStep, request: Request, starter: Starter
    ) -> None:
        step = active.step
        stage = "prediction"
        try:
            await asyncio.sleep(0)  # an eager task would begin on the tool's path
            with tracing_context(enabled=False, parent=False):
                predicted = await predict_step(
                    self._owner.world_model,
                    active.calls.values(),
                    step=step.id,
                    max_chars=self._max_chars,
                    clock=self._owner.clock,
                    emit=self._owner.log.emit,
                )
                stage = "request"
                await self._begin(run, active, request, starter, predicted)
        except SkipStep as skip:
            step.skipped = skip.reason
        except asyncio.CancelledError:
            step.skipped = step.skipped or SkipReason.LATE
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - silent to the run, loud in the trace
            step.skipped = SkipReason.FAILED
            self._owner.log.failed(run.info.id, step.id, stage, error)
        finally:
            active.predicting = None

    async def _begin(
        self,
        run: RunState,
        active: ActiveStep,
        request: Request,
        starter: Starter,
        predicted: Mapping[str, Prediction],
    ) -> None:
        step = active.step
        while True:
            with self._owner.lock:
                assumed = step.assume(predicted)
            if assumed is None or step.observed:
                raise SkipStep(SkipReason.LATE)
            following = request.extended(step.messages(assumed))
            if await cached(following):
                raise SkipStep(SkipReason.CACHED)
            key = _key(following)
            with self._owner.lock:
                # A sibling tool may have ended meanwhile: then its real observation counts.
                if step.assume(predicted) != assumed:
                    continue
                known = {c.id for c in step.calls.values() if c.ended is not None}
                speculation = Speculation(
                    id=f"s{next(self._ids)}",
                    step=step,
                    assumed=assumed,
                    predictions={k: p for k, p in predicted.items() if k not in known},
                    request_key=key,
                    version=self._owner.policy_version,
                )
                flight = self._take_off(run, active, speculation, following, starter)
            break
        self._owner.log.emit(
            ev.GenerationStarted(
                at=self._owner.clock(),
                run=run.info.id,
                step=step.id,
                speculation=flight.speculation.id,
                depth=step.depth,
            )
        )

    def _take_off(
        self,
        run: RunState,
        active: ActiveStep,
        speculation: Speculation,
        request: Request,
        starter: Starter,
    ) -> Flight:
        """Under the lock: the last look, and the generation's task.

        Raises:
            SkipStep: too late, or too many in flight.
        """
        step = active.step
        if step.ended or step.observed:
            raise SkipStep(SkipReason.LATE)
        if self._max_in_flight is not None and self._in_flight >= self._max_in_flight:
            raise SkipStep(SkipReason.IN_FLIGHT_LIMIT)
        now = self._owner.clock()
        left = self._expiry_s - (now - (now if step.first_started is None else step.first_started))
        if left <= 0:
            raise SkipStep(SkipReason.EXPIRED)
        loop = asyncio.get_running_loop()
        generation = Generation(request, starter, self._owner.clock)
        flight = Flight(speculation, generation, loop)
        step.speculate(speculation)
        active.flights[speculation.id] = flight
        self._in_flight += 1
        flight.timer = loop.call_later(left, self._owner.ledger.expire, run, active)
        flight.task = loop.create_task(
            _produce(generation), context=unseen_context(request.context)
        )
        flight.task.add_done_callback(lambda _: self._produced(run, flight))
        return flight

    def _produced(self, run: RunState, flight: Flight) -> None:
        """The generation's task is over, if only because it was cancelled before it ran."""
        generation = flight.generation
        generation.close()
        with self._owner.lock:
            self._in_flight -= 1
            self._landed = [f for f in self._landed if not f.generation.finished]
        error = generation.error
        if error is not None and not isinstance(error, GenerationClosedError):
            self._owner.log.failed(run.info.id, flight.speculation.step.id, "generation", error)

    # ------------------------------------------------------------------ ends

    def cancel_prediction(self, active: ActiveStep) -> None:
        """Nobody waits for the prediction any more."""
        task, loop = active.predicting, active.loop
        active.step.skipped = active.step.skipped or SkipReason.LATE
        if task is not None and loop is not None:
            _on_loop(loop, task.cancel)

    def reachable(self, flight: Flight, request: Request) -> bool:
        """Whether the call may wait for this flight. One that is awaited may, on the same
        loop; any may for the loop thread. Another loop might be blocked by the very call."""
        return flight.loop is request.loop or (
            self._thread.owns(flight.loop) and _running_loop() is not flight.loop
        )

    def land(self, flight: Flight) -> None:
        """The flight is committed: its expiry no longer matters."""
        with self._owner.lock:
            self._landed.append(flight)
        if (timer := flight.timer) is not None:
            _on_loop(flight.loop, timer.cancel)

    def close(self) -> None:
        """Whoever waits for a committed generation makes the call itself."""
        with self._owner.lock:
            landed, self._landed = self._landed, []
        for flight in landed:
            self.abort(flight)
            flight.generation.close()

    def abort(self, flight: Flight) -> None:
        """Close the call, at the client and so at the server."""

        def end() -> None:
            if flight.timer is not None:
                flight.timer.cancel()
            if flight.task is not None:
                flight.task.cancel()

        _on_loop(flight.loop, end)

    def discard(self, run: RunState, active: ActiveStep, flight: Flight) -> None:
        """Drop a flight whose speculation is discarded, finished or not."""
        generation, speculation = flight.generation, flight.speculation
        at = self._owner.clock()
        started = at if generation.started is None else generation.started
        finished = generation.finished
        seconds = (at if generation.ended is None else generation.ended) - started
        self.abort(flight)
        if speculation.discarded is None:
            return
        self._owner.log.emit(
            ev.GenerationDiscarded(
                at=at,
                run=run.info.id,
                step=active.step.id,
                speculation=speculation.id,
                reason=speculation.discarded,
                started=started,
                seconds=seconds,
                finished=finished,
                wasted_tokens=generation.tokens
                or generation.chunks
                or self._owner.pace.tokens(seconds),
            )
        )


async def _produce(generation: Generation) -> None:
    await asyncio.sleep(0)  # an eager task would begin under our lock
    with tracing_context(enabled=False, parent=False):
        await generation.produce()


def unseen_context(context: Context | None) -> Context:
    """A copy of a context in which no run is going on and no handler is registered, so that
    nothing that runs in it reports to the user's callbacks, tracers or usage counters."""
    copied = copy_context() if context is None else context.copy()
    copied.run(_forget_run)
    return copied


def _forget_run() -> None:
    config = var_child_runnable_config.get()
    if config is not None:
        # Hooks may read their run's metadata; its callbacks are not for them.
        var_child_runnable_config.set({**config, "callbacks": None})
    unmark()
    for variable, *_ in _configure_hooks:
        variable.set(None)


def _key(request: Request) -> str:
    try:
        return request.key
    except UnkeyableRequestError as error:
        raise RuntimeError(f"the next request can't be compared: {error}") from error


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _on_loop(loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> bool:
    """Run a function on a loop: now where it is the running one, else soon. False if closed."""
    if _running_loop() is loop:
        function()
        return True
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        return False
    return True
