"""An event loop on a thread of its own, for the speculations of synchronous runs.

A synchronous call can't be aborted from another thread; a task on a loop can. The thread
starts at the first use and ends with :meth:`LoopThread.close`, or with its owner.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context

__all__ = ["LoopThread"]

_PATIENCE_S = 1.0


class LoopThread:
    """Owns one loop and one daemon thread. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop; started if it is not."""
        with self._lock:
            if self._loop is None:
                # A loop keeps the context that it was made in, and a run's holds its owner.
                self._loop = Context().run(asyncio.new_event_loop)
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="obsspec-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    def owns(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether this is the loop."""
        return loop is self._loop

    def close(self, last: Callable[[], Awaitable[object]] | None = None) -> None:
        """Cancel what runs on the loop, give it a second to end, stop the thread. Idempotent.

        Args:
            last: a function that makes a coroutine to be awaited before the loop stops.
        """
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_wind_up(last), loop)
        if thread is not threading.current_thread():
            thread.join()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _wind_up(last: Callable[[], Awaitable[object]] | None) -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_PATIENCE_S)
    if last is not None:
        await asyncio.gather(last(), return_exceptions=True)
    asyncio.get_running_loop().stop()
