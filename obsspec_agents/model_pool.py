"""Which model, and which of its hooks, a speculation may call so that it can be aborted.

The speculations of an asynchronous run cancel the model's own asynchronous hook, on the
loop and with the connections that the run itself uses. Those of a synchronous run call the
asynchronous hook of a *detached* copy of the model on a loop thread: the copy has
connections of its own, since connections belong to one loop.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

import openai
from langchain_core.language_models import BaseChatModel

from obsspec_agents.hooks import (
    AsyncTokenRecorder,
    Started,
    has_async_hook,
    plain,
    start,
    start_in_thread,
)
from obsspec_agents.request import Request, origins

__all__ = ["ModelPool"]

Starter = Callable[[Request, AsyncTokenRecorder], Started]


class ModelPool:
    """Finds a way to start a request, and owns the detached connections. Thread-safe.

    Args:
        allow_unabortable: speculate on models whose call can't be aborted, too.
    """

    def __init__(self, *, allow_unabortable: bool) -> None:
        self._allow_unabortable = allow_unabortable
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], Any] = {}

    def starter(self, request: Request) -> Starter | None:
        """What begins this request; None where it could not be aborted."""
        model = plain(request.model)
        native = has_async_hook(type(model), request.mode)
        if native and request.loop is not None:
            return _with(start, model)
        if native and (detached := self._detached(request, model)) is not None:
            return _with(start, detached)
        return _with(start_in_thread, model) if self._allow_unabortable else None

    def _detached(self, request: Request, model: BaseChatModel) -> BaseChatModel | None:
        """None where we don't know how: the hooks are not langchain-openai's own, or a
        client was given, whose settings a new one would lack."""
        module = sys.modules.get("langchain_openai.chat_models.base")
        if module is None or not isinstance(model, module.BaseChatOpenAI):
            return None
        if origins(type(model), request.mode.hooks) != {"langchain_openai"}:
            return None
        fields = vars(model)
        root, sync_root = fields["root_async_client"], fields["root_client"]
        given = any(fields.get(f) for f in ("http_client", "http_async_client", "openai_proxy"))
        if given or sync_root is None or root is None or sync_root.base_url != root.base_url:
            return None
        if fields["client"]._client is not sync_root or fields["async_client"]._client is not root:
            return None
        client = root.copy(http_client=self._connections(root))
        twin = copy.copy(model)
        vars(twin).update(
            root_async_client=client,
            async_client=client.chat.completions,
            stream_chunk_timeout=None,  # the synchronous hook has none
        )
        return cast("BaseChatModel", twin)

    def _connections(self, root: openai.AsyncOpenAI) -> Any:
        """One set of connections for each endpoint: making one takes milliseconds."""
        key = (str(root.base_url), repr(root.timeout))
        with self._lock:
            if key not in self._clients:
                self._clients[key] = openai.DefaultAsyncHttpxClient(
                    base_url=root.base_url, timeout=root.timeout
                )
            return self._clients[key]

    async def aclose(self) -> None:
        """Close the detached connections, on the loop that used them."""
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()


def _with(
    begin: Callable[[Request, BaseChatModel, AsyncTokenRecorder], Started], model: BaseChatModel
) -> Starter:
    return lambda request, recorder: begin(request, model, recorder)
