"""Blocking code of others, in daemon threads of its own.

Not in the event loop's default executor: that one belongs to the run, whose synchronous
tools would queue behind a world model that hangs, and a program's end waits for it.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["MAX_WORKERS", "WorkersBusyError", "in_worker"]

MAX_WORKERS = 256
"""Threads at once in the process; more are refused, so that hanging ones can't pile up."""

T = TypeVar("T")


class WorkersBusyError(RuntimeError):
    """So many threads are busy or hanging that no more is begun."""


_free = threading.BoundedSemaphore(MAX_WORKERS)


async def in_worker(function: Callable[[], T]) -> T:
    """Run a blocking function in a thread, in a copy of this context.

    Cancelling stops the wait, not the function.

    Raises:
        WorkersBusyError: so many are running that no more is begun.
    """
    if not _free.acquire(blocking=False):
        raise WorkersBusyError(f"all {MAX_WORKERS} worker threads are busy or hanging")
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(settled: Callable[[], None]) -> None:
        if not future.done():
            settled()

    def run() -> None:
        settled: Callable[[], None]
        try:
            result = context.run(function)
        except BaseException as error:  # noqa: BLE001 - it is the caller's to handle
            failure = error
            settled = lambda: future.set_exception(failure)  # noqa: E731
        else:
            settled = lambda: future.set_result(result)  # noqa: E731
        finally:
            _free.release()
        try:
            loop.call_soon_threadsafe(settle, settled)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    threading.Thread(target=run, name="obsspec-worker", daemon=True).start()
    return await future
