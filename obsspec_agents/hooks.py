"""How to call a chat model below its callbacks, and whether such a call can be aborted.

LangChain's chat models do their work in four hooks: ``_generate``, ``_agenerate``,
``_stream`` and ``_astream``. What sits above them (callbacks, streams, caches) belongs to
the user; a speculation calls the hooks alone, so nothing of it is seen.

An asynchronous hook is aborted by cancelling it, which closes its connection. A
synchronous one can't be.
"""

from __future__ import annotations

import errno
import inspect
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from functools import lru_cache, partial
from typing import Any
from uuid import uuid4

import openai
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, SimpleChatModel
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from obsspec_agents.request import Mode, Request, original_class
from obsspec_agents.worker import WorkersBusyError, in_worker

__all__ = [
    "AsyncTokenRecorder",
    "Started",
    "TokenCall",
    "TokenRecorder",
    "accepts_run_manager",
    "has_async_hook",
    "is_transport_fault",
    "original_class",
    "overrides",
    "plain",
    "start",
    "start_in_thread",
    "to_its_end",
]

Started = AsyncIterator[ChatGenerationChunk] | Awaitable[ChatResult]
"""A call that has begun: its chunks, or its one answer."""

TokenCall = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of one ``on_llm_new_token`` call that a hook made itself."""


_REFUSED_FOR_LOAD = (429, 502, 503)
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)


def overrides(cls: type[BaseChatModel], hook: str) -> bool:
    """Whether a chat model class has its own version of a hook."""
    return getattr(cls, hook) is not getattr(BaseChatModel, hook)


def has_async_hook(cls: type[BaseChatModel], mode: Mode) -> bool:
    """Whether the class answers this mode in asynchronous code of its own, which can be
    cancelled; LangChain's default runs the synchronous hook in a thread, which can't."""
    if mode is Mode.STREAM:
        return overrides(cls, "_astream")
    default = (BaseChatModel._agenerate, SimpleChatModel._agenerate)
    return cls._agenerate not in default


def accepts_run_manager(hook: Callable[..., Any]) -> bool:
    """Whether a hook takes ``run_manager`` (old models don't)."""
    return _takes_run_manager(getattr(hook, "__func__", hook))


@lru_cache(maxsize=512)
def _takes_run_manager(hook: Callable[..., Any]) -> bool:
    parameters = inspect.signature(hook).parameters
    return "run_manager" in parameters or any(
        p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters.values()
    )


def plain(model: BaseChatModel) -> BaseChatModel:
    """The same model, live state included, as an instance of its original class.

    What its hooks call on ``self`` then stays what it was before the model was wrapped.
    """
    cls = original_class(model)
    twin = cls.__new__(cls)
    object.__setattr__(twin, "__dict__", model.__dict__)
    for slot in ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"):
        object.__setattr__(twin, slot, getattr(model, slot, None))
    return twin


def start(request: Request, model: BaseChatModel, recorder: AsyncTokenRecorder) -> Started:
    """Begin a request on an asynchronous hook of a plain model, unseen by any callback."""
    hook = model._astream if request.mode is Mode.STREAM else model._agenerate
    started: Started = _bound(hook, request, recorder)()
    return started


def start_in_thread(
    request: Request, model: BaseChatModel, recorder: AsyncTokenRecorder
) -> Started:
    """Begin a request on a synchronous hook, in worker threads. It can't be aborted: a
    cancelled one goes on until its next chunk, or its end."""
    sync = recorder.get_sync()
    if request.mode is Mode.STREAM:
        return _stream_in_thread(_bound(model._stream, request, sync))
    return in_worker(_bound(model._generate, request, sync))


async def to_its_end(
    chunks: AsyncIterator[ChatGenerationChunk],
) -> AsyncGenerator[ChatGenerationChunk, None]:
    """The chunks; the iterator is closed with this one, and so is its connection.

    A cancelled ``async for`` alone leaves a generator open.
    """
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        if (close := getattr(chunks, "aclose", None)) is not None:
            await close()


async def _stream_in_thread(
    begin: Callable[[], Iterator[ChatGenerationChunk]],
) -> AsyncIterator[ChatGenerationChunk]:
    chunks = await in_worker(begin)
    while (chunk := await in_worker(partial(next, chunks, None))) is not None:
        yield chunk


def _bound(
    hook: Callable[..., Any], request: Request, recorder: AsyncTokenRecorder | TokenRecorder
) -> Callable[[], Any]:
    """The hook with its arguments."""
    kwargs = dict(request.kwargs)
    if accepts_run_manager(hook):
        kwargs["run_manager"] = recorder
    stop = None if request.stop is None else list(request.stop)
    return partial(hook, list(request.messages), stop=stop, **kwargs)


class TokenRecorder(CallbackManagerForLLMRun):
    """Keeps the token callbacks that a hook fires itself, for the replay at the commit."""

    def __init__(self, record: Callable[[TokenCall], None]) -> None:
        super().__init__(run_id=uuid4(), handlers=[], inheritable_handlers=[])
        self._record = record

    def on_llm_new_token(self, *args: Any, **kwargs: Any) -> None:
        """Keep the call instead of passing it on."""
        self._record((args, kwargs))


class AsyncTokenRecorder(AsyncCallbackManagerForLLMRun):
    """The same for asynchronous hooks."""

    def __init__(self, record: Callable[[TokenCall], None]) -> None:
        super().__init__(run_id=uuid4(), handlers=[], inheritable_handlers=[])
        self._record = record

    async def on_llm_new_token(self, *args: Any, **kwargs: Any) -> None:
        """Keep the call instead of passing it on."""
        self._record((args, kwargs))

    def get_sync(self) -> TokenRecorder:
        """The recorder that a synchronous hook gets when it is run in a thread."""
        return TokenRecorder(self._record)


def is_transport_fault(error: BaseException) -> bool:
    """Whether an error says nothing about the answer, so that a fresh call is no redraw.

    A lost connection does, and a server that refuses for its load (429, 502, 503). A
    time-out after the request was sent doesn't: it favours short answers, so it *is* the
    answer; nor does any other error of the server or of the client's parsing.
    """
    if isinstance(error, openai.APITimeoutError):
        cause = error.__cause__
        return type(cause).__name__ in ("ConnectTimeout", "PoolTimeout")
    if isinstance(error, openai.APIConnectionError):
        return True
    if isinstance(error, openai.APIStatusError):
        return error.status_code in _REFUSED_FOR_LOAD
    if isinstance(error, (ConnectionError, socket.gaierror, WorkersBusyError)):
        return True
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return True
    if isinstance(error, TimeoutError):
        return False
    # Other clients' errors are known by their shape. A stream cut in the middle raises those
    # of httpx and httpx2 unwrapped; the two share names.
    if getattr(error, "status_code", None) in _REFUSED_FOR_LOAD:
        return True
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & {"ConnectTimeout", "PoolTimeout"}:
        return True
    if "APIConnectionError" in names and "APITimeoutError" not in names:
        return True
    return "TransportError" in names and "TimeoutException" not in names
