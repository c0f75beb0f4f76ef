"""One policy call in flight: one producer, one consumer, synchronous or not.

The producer runs a chat model's hook on an event loop and buffers what it gives. The
consumer, when there is one, is the real call of the user's graph: it replays the buffer,
then follows to the natural end. Producer and consumer may live on different loops and
threads.

Thread-safe: the buffer is guarded by a lock that is held for a few instructions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from obsspec_agents.hooks import AsyncTokenRecorder, Started, TokenCall, to_its_end
from obsspec_agents.request import Mode, Request

__all__ = ["Generation", "GenerationClosedError", "completion_tokens"]


class GenerationClosedError(Exception):
    """The generation was closed under its consumer, which then makes the call itself."""


class Generation:
    """A policy call in flight or finished, not yet anybody's.

    Args:
        request: what is asked.
        start: begins the call on a plain model.
        clock: seconds, for :attr:`started` and :attr:`ended`.
    """

    def __init__(
        self,
        request: Request,
        start: Callable[[Request, AsyncTokenRecorder], Started],
        clock: Callable[[], float],
    ) -> None:
        self.request = request
        self.started: float | None = None
        self.ended: float | None = None
        self.tokens: int | None = None
        """Completion tokens, where the answer says how many."""
        self.chunks = 0
        self.result: ChatResult | None = None
        self.error: BaseException | None = None
        self.delivered = False
        """Whether the consumer has been given any part of the answer."""
        self._start = start
        self._clock = clock
        self._lock = threading.Lock()
        self._items: list[ChatGenerationChunk | TokenCall | None] = []
        self._wake: Callable[[], None] | None = None

    @property
    def finished(self) -> bool:
        """Whether the producer has come to its end, whichever."""
        return self.ended is not None

    async def produce(self) -> None:
        """Run the call to its end. What it raises is kept for the consumer; only
        cancellation and a user's Ctrl-C go through."""
        self.started = self._clock()
        try:
            begun = self._start(self.request, AsyncTokenRecorder(self._put))
            if self.request.mode is Mode.STREAM:
                await self._produce_stream(cast("AsyncIterator[ChatGenerationChunk]", begun))
            else:
                self.result = await cast("Awaitable[ChatResult]", begun)
                self.tokens = completion_tokens(self.result.generations[0].message)
        except asyncio.CancelledError:
            self.error = GenerationClosedError("closed before its end")
            raise
        except BaseException as error:
            self.error = error
            if isinstance(error, KeyboardInterrupt):
                raise
        finally:
            self._end()

    async def _produce_stream(self, chunks: AsyncIterator[ChatGenerationChunk]) -> None:
        async with aclosing(to_its_end(chunks)) as closable:
            async for chunk in closable:
                self.chunks += 1
                self.tokens = completion_tokens(chunk.message) or self.tokens
                self._put(chunk)

    def _put(self, item: ChatGenerationChunk | TokenCall) -> None:
        with self._lock:
            self._items.append(item)
            wake = self._wake
        if wake is not None:
            wake()

    def _end(self) -> None:
        with self._lock:
            self.ended = self._clock()
            wake = self._wake
        if wake is not None:
            wake()

    def close(self) -> None:
        """End a generation whose producer never got to run."""
        if not self.finished:
            self.error = self.error or GenerationClosedError("closed before it began")
            self._end()

    def _next(self, index: int) -> tuple[bool, ChatGenerationChunk | TokenCall | None]:
        """(whether the consumer must wait, the item; None at the end)."""
        with self._lock:
            if index < len(self._items):
                item, self._items[index] = self._items[index], None
                return False, item
            return self.ended is None, None

    def replay(self, run_manager: CallbackManagerForLLMRun | None) -> Iterator[ChatGenerationChunk]:
        """The chunks from the first to the last, for a synchronous consumer.

        Raises whatever the call raised, after the chunks that came before it.
        """
        ready = threading.Event()
        self._wake = ready.set
        index = 0
        while True:
            ready.clear()
            waiting, item = self._next(index)
            if waiting:
                ready.wait()
                continue
            if item is None:
                break
            index += 1
            if isinstance(item, ChatGenerationChunk):
                self.delivered = True
                yield item
            elif run_manager is not None:
                self.delivered = True
                args, kwargs = item
                run_manager.on_llm_new_token(*args, **kwargs)
        self._raise_error()

    async def areplay(
        self, run_manager: AsyncCallbackManagerForLLMRun | None
    ) -> AsyncGenerator[ChatGenerationChunk, None]:
        """The same for an asynchronous consumer."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        self._wake = _waker(loop, ready)
        index = 0
        while True:
            ready.clear()
            waiting, item = self._next(index)
            if waiting:
                await ready.wait()
                continue
            if item is None:
                break
            index += 1
            if isinstance(item, ChatGenerationChunk):
                self.delivered = True
                yield item
            elif run_manager is not None:
                self.delivered = True
                args, kwargs = item
                await run_manager.on_llm_new_token(*args, **kwargs)
        self._raise_error()

    def wait(self, run_manager: CallbackManagerForLLMRun | None) -> ChatResult:
        """The whole answer of a call that does not stream, for a synchronous consumer."""
        for _ in self.replay(run_manager):
            pass
        return cast("ChatResult", self.result)

    async def await_(self, run_manager: AsyncCallbackManagerForLLMRun | None) -> ChatResult:
        """The same for an asynchronous consumer."""
        async for _ in self.areplay(run_manager):
            pass
        return cast("ChatResult", self.result)

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error


def completion_tokens(message: Any) -> int | None:
    """The completion tokens that a message's usage counts, if it has any."""
    usage = getattr(message, "usage_metadata", None)
    return None if not usage else usage.get("output_tokens")


def _waker(loop: asyncio.AbstractEventLoop, ready: asyncio.Event) -> Callable[[], None]:
    def wake() -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            ready.set()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(ready.set)

    return wake
