"""The runs that a speculator knows, found from where the code is running."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

from langchain_core.runnables import RunnableConfig

from obsspec_agents.run_state import RunState
from obsspec_agents.runs import Lineage, lineage_of, tracker
from obsspec_agents.world_model.base import RunInfo

__all__ = ["GROUP_KEY", "TASK_KEY", "RunRegistry", "unmark"]

GROUP_KEY = "obsspec_group"
"""In a run's metadata: the group of sibling rollouts it belongs to."""
TASK_KEY = "obsspec_task"
"""In a run's metadata: the task it works on."""

_marked: ContextVar[tuple[tuple[RunRegistry, RunState], ...]] = ContextVar(
    "obsspec_runs", default=()
)


def unmark() -> None:
    """What runs in this context from here on belongs to no marked run."""
    _marked.set(())


class RunRegistry:
    """Runs by id, for as long as they last. Thread-safe.

    Args:
        begun: called with each new run, outside the lock.
        ended: called once with each run that has ended, outside the lock.
    """

    def __init__(
        self, *, begun: Callable[[RunState], None], ended: Callable[[RunState], None]
    ) -> None:
        self._begun, self._ended = begun, ended
        self._lock = threading.Lock()
        self._runs: dict[str, RunState] = {}
        tracker()

    def here(self, config: RunnableConfig | None = None) -> tuple[RunState | None, Lineage]:
        """The run of the running code and its family line; None where there is no run.

        A run marked by :meth:`mark` wins; else it is the outermost chain that is running.
        """
        lineage, metadata = lineage_of(config)
        for owner, run in reversed(_marked.get()):
            if owner is self and not run.ended:
                return run, lineage
        if not lineage:
            return None, lineage
        root = lineage[-1]
        with self._lock:
            run_or_none = self._runs.get(root)
        return run_or_none or self._begin_chain(root, metadata), lineage

    def _begin_chain(self, root: str, metadata: dict[str, Any]) -> RunState | None:
        run = RunState(RunInfo(root, _label(metadata, GROUP_KEY), _label(metadata, TASK_KEY)))
        with self._lock:
            known = self._runs.setdefault(root, run)
        if known is not run:
            return known
        self._begun(run)
        if not tracker().watch(root, lambda: self.end(run)):
            self.end(run)
            return None
        return run

    @contextmanager
    def mark(self, group: str | None, task: str | None) -> Iterator[RunState]:
        """All that runs in this context is one run."""
        run = RunState(RunInfo(str(uuid4()), group, task))
        with self._lock:
            self._runs[run.info.id] = run
        self._begun(run)
        token = _marked.set((*_marked.get(), (self, run)))
        try:
            yield run
        finally:
            # Left in another context than it was entered in, the mark is that one's to forget.
            with suppress(ValueError):
                _marked.reset(token)
            self.end(run)

    def end(self, run: RunState) -> None:
        """The run is over. Idempotent."""
        with self._lock:
            if run.ended:
                return
            run.ended = True
            self._runs.pop(run.info.id, None)
        self._ended(run)

    def end_all(self) -> None:
        """Every run is over."""
        with self._lock:
            runs = list(self._runs.values())
        for run in runs:
            self.end(run)

    @property
    def runs(self) -> list[RunState]:
        """The runs that last."""
        with self._lock:
            return list(self._runs.values())


def _label(metadata: dict[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    return None if value is None else str(value)
