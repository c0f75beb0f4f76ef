"""A language model behind an OpenAI-compatible server as world model.

It is asked once for each call, with the prompt of
:mod:`obsspec_agents.world_model.prompt`, greedily, and not asked again when that fails:
a prediction that comes late is worth nothing.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import warnings
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from obsspec_agents.errors import ConfigurationError
from obsspec_agents.world_model.base import PendingCall, Prediction, WorldModel
from obsspec_agents.world_model.prompt import (
    MIN_PROMPT_CHARS,
    observation_from,
    world_model_messages,
)

if TYPE_CHECKING:  # importing it takes half a second
    from openai import APIStatusError, AsyncOpenAI, OpenAI
    from openai.types.chat import ChatCompletion

__all__ = ["UNKNOWN_PROBABILITY", "EndpointWorldModel"]

UNKNOWN_PROBABILITY = 0.5
"""Of a prediction whose server gives no log-probabilities."""

_CLOSE_SECONDS = 5.0


class EndpointWorldModel(WorldModel):
    """Asks a chat endpoint what a call will return. Thread-safe, sync and async.

    The probability is that of the whole answer: the exponential of the sum of its tokens'
    log-probabilities, the end token's included where the server gives it. An answer that
    was cut off, refused, filtered, empty or made of tool calls is no prediction. Failures
    are raised; the speculator turns them into trace events. Cancelling :meth:`apredict`
    closes the connection.

    Args:
        base_url: of the server, up to and with ``/v1``.
        model: the name of a model or of an adapter, as the server knows it.
        api_key: by default ``OPENAI_API_KEY``, or "EMPTY" where that is not set.
        max_tokens: the longest answer; longer ones are cut off, and so no prediction.
        max_chars: about the most characters of a prompt (see ``world_model_messages``).
        min_probability: less probable answers are no prediction.
        timeout_s: seconds after which a prediction fails.
        extra_body: fields for every request that only some servers know, such as
            ``{"priority": 1}`` or ``{"chat_template_kwargs": {"enable_thinking": False}}``.

    Raises:
        ConfigurationError: a value that can't work.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        max_tokens: int = 512,
        max_chars: int = 32_000,
        min_probability: float = 0.0,
        timeout_s: float = 30.0,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"base_url must start with http:// or https://, not {base_url!r}"
            )
        if not model:
            raise ConfigurationError("model must be a name that the server knows, not ''")
        if max_tokens < 1:
            raise ConfigurationError(f"max_tokens must be at least 1, not {max_tokens}")
        if max_chars < MIN_PROMPT_CHARS:
            raise ConfigurationError(
                f"max_chars must be at least {MIN_PROMPT_CHARS}, not {max_chars}"
            )
        if not 0.0 <= min_probability <= 1.0:
            raise ConfigurationError(f"min_probability must be in [0, 1], not {min_probability}")
        if not 0.0 < timeout_s < math.inf:
            raise ConfigurationError(f"timeout_s must be a number of seconds, not {timeout_s}")
        self.name = model
        self._max_chars = max_chars
        self._min_probability = min_probability
        self._timeout_s = timeout_s
        self._client_arguments: dict[str, Any] = {
            "base_url": base_url,
            "api_key": api_key or os.environ.get("OPENAI_API_KEY") or "EMPTY",
            "timeout": timeout_s,
            "max_retries": 0,
        }
        self._request: dict[str, Any] = {
            "model": model,
            "temperature": 0.0,
            "max_tokens": max_tokens,
            "stream": False,
            "extra_body": dict(extra_body or {}),
        }
        # vLLM gives no log-probabilities when top_logprobs is left out.
        self._logprobs: dict[str, Any] = {"logprobs": True, "top_logprobs": 0}
        self._lock = threading.Lock()
        self._client: OpenAI | None = None
        self._async_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _Opened] = (
            WeakKeyDictionary()
        )
        self._closing: set[asyncio.Task[None]] = set()

    def predict(self, call: PendingCall) -> Sequence[Prediction]:
        """The model's answer as a prediction, or none.

        Raises:
            openai.OpenAIError: the server is down, slow or refuses the request.
        """
        from openai import BadRequestError, UnprocessableEntityError

        completions = self._sync_client().chat.completions
        request = self._request | {
            "messages": world_model_messages(call, max_chars=self._max_chars)
        }
        sent = self._logprobs
        try:
            answer = completions.create(**request, **sent)
        except (BadRequestError, UnprocessableEntityError) as error:
            if not _refuses_logprobs(error, sent):
                raise
            answer = completions.create(**request)
            self._leave_logprobs_out()
        return self._read(answer)

    async def apredict(self, call: PendingCall) -> Sequence[Prediction]:
        """The same, awaited.

        Raises:
            TimeoutError: there was no answer in time.
            openai.OpenAIError: the server is down or refuses the request.
        """
        from openai import BadRequestError, UnprocessableEntityError

        completions = (await self._async_client()).chat.completions
        request = self._request | {
            "messages": world_model_messages(call, max_chars=self._max_chars)
        }
        sent = self._logprobs
        async with asyncio.timeout(self._timeout_s):
            try:
                answer = await completions.create(**request, **sent)
            except (BadRequestError, UnprocessableEntityError) as error:
                if not _refuses_logprobs(error, sent):
                    raise
                answer = await completions.create(**request)
                self._leave_logprobs_out()
        return self._read(answer)

    def close(self) -> None:
        """Close the connections of every thread and every loop that still runs.

        Those of the loop that runs in this very thread are closed in a task on it: await
        :meth:`aclose` there to have them closed at its return. Those of loops that ended
        were closed with them. Idempotent.
        """
        here = _running_loop()
        for loop, opened in self._take_clients():
            if loop is here:
                task = loop.create_task(opened.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(opened.close(), loop).result(_CLOSE_SECONDS)

    async def aclose(self) -> None:
        """The same, awaited on the loop that the model was used on."""
        here = asyncio.get_running_loop()
        for loop, opened in self._take_clients():
            if loop is here:
                await opened.close()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(opened.close(), loop))

    def _sync_client(self) -> OpenAI:
        from openai import OpenAI

        with self._lock:
            if self._client is None:
                self._client = OpenAI(**self._client_arguments)
            return self._client

    async def _async_client(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI

        loop = asyncio.get_running_loop()
        with self._lock:
            opened = self._async_clients.get(loop)
        if opened is None:
            opened = _Opened(AsyncOpenAI(**self._client_arguments))
            await opened.close_with_loop()
            with self._lock:
                # A client refers to its loop, so that weak keys alone would not do.
                for other in [other for other in self._async_clients if other.is_closed()]:
                    del self._async_clients[other]
                self._async_clients[loop] = opened
        return opened.client

    def _take_clients(self) -> list[tuple[asyncio.AbstractEventLoop, _Opened]]:
        """Close the client of the threads, and hand out those of the loops."""
        with self._lock:
            clients = list(self._async_clients.items())
            self._async_clients.clear()
            client, self._client = self._client, None
        if client is not None:
            client.close()
        return clients

    def _leave_logprobs_out(self) -> None:
        with self._lock:
            known, self._logprobs = not self._logprobs, {}
        if not known:
            warnings.warn(
                f"the server of world model {self.name!r} refuses logprobs: its predictions "
                f"get the probability {UNKNOWN_PROBABILITY}",
                RuntimeWarning,
                stacklevel=3,
            )

    def _read(self, answer: ChatCompletion) -> Sequence[Prediction]:
        if not answer.choices:
            return ()
        choice = answer.choices[0]
        message = choice.message
        if choice.finish_reason != "stop" or message.tool_calls or message.refusal:
            return ()
        observation = observation_from(message.content or "")
        logprobs = choice.logprobs.content if choice.logprobs is not None else None
        probability = _probability([token.logprob for token in logprobs or ()])
        if observation is None or probability < self._min_probability:
            return ()
        return (Prediction(observation, probability, self.name),)


class _Opened:
    """A client of one loop, closed at the latest when the loop winds up.

    Loops have no hook for their end, but finish the asynchronous generators that were
    begun on them (``asyncio.run`` does, for one): so one of these holds the client.
    """

    def __init__(self, client: AsyncOpenAI) -> None:
        self.client = client
        self._held = self._hold()

    async def close_with_loop(self) -> None:
        await anext(self._held)

    async def close(self) -> None:
        await self._held.aclose()

    async def _hold(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.client.close()


def _probability(logprobs: Sequence[float]) -> float:
    if not logprobs:
        return UNKNOWN_PROBABILITY
    return math.exp(min(0.0, sum(logprobs)))


def _refuses_logprobs(error: APIStatusError, sent: Mapping[str, Any]) -> bool:
    return bool(sent) and "logprob" in error.response.text


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
