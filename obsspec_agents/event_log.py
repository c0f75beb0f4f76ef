"""Where a speculator's events go: the summary, the trace and the user's sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from obsspec_agents.events import Event, Sink, SpeculationFailed
from obsspec_agents.report.summary import Summary
from obsspec_agents.trace import Trace

__all__ = ["EventLog"]


class EventLog:
    """Takes every event of one speculator. Thread-safe; never raises into a run.

    Args:
        clock: seconds, for the events made here.
        sink: the user's, if any.
        trace: a run folder for ``trace.jsonl``, if any.

    Raises:
        ConfigurationError: the folder can't be written to.
    """

    def __init__(
        self, clock: Callable[[], float], sink: Sink | None, trace: str | Path | None
    ) -> None:
        self.summary = Summary()
        self.trace = None if trace is None else Trace(trace, clock())
        self._clock = clock
        self._sinks = tuple(s for s in (self.trace, sink) if s is not None)

    @property
    def heard(self) -> bool:
        """Whether there is anybody to tell, besides the summary."""
        return bool(self._sinks)

    def emit(self, event: Event) -> None:
        """Give an event to all. A sink's failure is counted, and never the run's."""
        self.summary(event)
        for sink in self._sinks:
            try:
                sink(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001 - a sink's failure is never the run's
                self.summary.failures += 1

    def failed(self, run: str, step: str, stage: str, error: BaseException) -> None:
        """Something of a speculation raised: silent to the run, loud in the trace."""
        self.emit(
            SpeculationFailed(
                at=self._clock(), run=run, step=step, stage=stage, error=_described(error)
            )
        )

    @contextmanager
    def guard(self, stage: str, run: str = "", step: str = "") -> Iterator[None]:
        """Around what we do on the user's path: its failure is never the run's."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - silent to the run, loud in the trace
            self.failed(run, step, stage, error)

    def close(self) -> None:
        """Flush and close the trace."""
        if self.trace is not None:
            self.trace.close()


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an exception may fail to say what it is
        return type(error).__name__
