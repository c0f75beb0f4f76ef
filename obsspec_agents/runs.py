"""Which run a call belongs to, and when that run has ended.

LangChain tells its callback handlers where every chain (a graph, a node, a sequence) and
every tool starts and ends, and who its parent is. One process-wide handler, silent to all else,
keeps these family lines. From it a tool node or a chat model learns its run, and a
speculation learns that the graph which might still have asked for it is done, however it
ended: returned, failed, interrupted, cancelled, or its stream closed half way.

Outside LangGraph, :meth:`Speculator.run` marks a run explicitly.

Thread-safe: the maps are only touched under one lock, and watchers are called outside it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook

__all__ = ["Lineage", "RunTracker", "lineage_of", "tracker"]

Lineage = tuple[str, ...]
"""Run ids from the innermost chain to the outermost."""


class RunTracker(BaseCallbackHandler):
    """Keeps who is whose parent among the chains and tools that are running.

    Tools count, since one may ask another agent: that is the same run.
    """

    run_inline = True
    ignore_llm = True
    ignore_chat_model = True
    ignore_retriever = True
    ignore_retry = True
    ignore_custom_event = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parents: dict[str, str | None] = {}
        self._watchers: dict[str, list[Callable[[], None]]] = {}

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """A chain started."""
        self._start(run_id, parent_run_id)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A chain returned."""
        self._end(str(run_id))

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A chain failed or was cancelled."""
        self._end(str(run_id))

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """A tool started."""
        self._start(run_id, parent_run_id)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool returned."""
        self._end(str(run_id))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool failed or was cancelled."""
        self._end(str(run_id))

    def _start(self, run_id: UUID, parent_run_id: UUID | None) -> None:
        with self._lock:
            self._parents[str(run_id)] = None if parent_run_id is None else str(parent_run_id)

    def lineage(self, run_id: str) -> Lineage:
        """The chain and its ancestors, as far as they are running; empty if it is not."""
        line: list[str] = []
        with self._lock:
            current: str | None = run_id
            while current is not None and current in self._parents:
                line.append(current)
                current = self._parents[current]
        return tuple(line)

    def watch(self, run_id: str, ended: Callable[[], None]) -> bool:
        """Call ``ended`` once when this chain ends. False if it is not running."""
        with self._lock:
            if run_id not in self._parents:
                return False
            self._watchers.setdefault(run_id, []).append(ended)
            return True

    def _end(self, run_id: str) -> None:
        with self._lock:
            self._parents.pop(run_id, None)
            watchers = self._watchers.pop(run_id, ())
        for ended in watchers:
            ended()


_tracker: RunTracker | None = None
_tracker_lock = threading.Lock()


def tracker() -> RunTracker:
    """The process's tracker, made and registered with LangChain at the first call."""
    global _tracker  # noqa: PLW0603
    with _tracker_lock:
        if _tracker is None:
            _tracker = RunTracker()
            variable: ContextVar[BaseCallbackHandler | None] = ContextVar(
                "obsspec_run_tracker", default=_tracker
            )
            register_configure_hook(variable, inheritable=True)
        return _tracker


def lineage_of(config: RunnableConfig | None = None) -> tuple[Lineage, dict[str, Any]]:
    """The family line of the running code, and the metadata of its run.

    Taken from a runnable's config, by default the one that LangChain keeps for the code
    that is running. Empty where no chain is running.
    """
    config = config or var_child_runnable_config.get()
    if config is None:
        return (), {}
    parent = getattr(config.get("callbacks"), "parent_run_id", None)
    line = () if parent is None else tracker().lineage(str(parent))
    return line, config.get("metadata") or {}
