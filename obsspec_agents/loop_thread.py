"""An event loop on a thread of its own, for the speculations of synchronous runs.

A synchronous call can't be aborted from another thread; a task on a loop can. The thread
starts at the first use and ends with :meth:`LoopThread.close`, or with its owner.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

__all__ = ["LoopThread"]


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
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="obsspec-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    @property
    def started(self) -> bool:
        """Whether the thread is running."""
        return self._loop is not None

    def close(self, last: Callable[[], object] | None = None) -> None:
        """Cancel what runs on the loop, await its end, stop the thread. Idempotent.

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
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _wind_up(last: Callable[[], object] | None) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if last is not None:
        await asyncio.gather(last(), return_exceptions=True)  # type: ignore[call-overload]
    asyncio.get_running_loop().stop()
