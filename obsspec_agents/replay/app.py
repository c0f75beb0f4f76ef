"""The HTTP side of a recorded endpoint: four routes, as an ASGI app.

An answer is composed at once and then given at its time. Whoever reads it is watched all
the while: when the connection closes, the answer ends and counts as aborted, as on a
server whose engine stops generating.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from obsspec_agents.replay.answer import Answer, compose
from obsspec_agents.replay.match import Index, Match
from obsspec_agents.replay.metrics import Counters
from obsspec_agents.replay.request import ChatRequest, RequestError
from obsspec_agents.replay.wire import STREAM_END, completion, encode, events

__all__ = ["ChatCompletions", "Timing", "build"]


@dataclass(frozen=True, slots=True)
class Timing:
    """How recorded seconds become real ones."""

    pace: float
    """The factor that they are multiplied with; 0: nothing waits."""
    sleep: Callable[[float], Awaitable[Any]]
    clock: Callable[[], float]

    async def until(self, at: float, started: float) -> None:
        """Return that many recorded seconds after ``started``."""
        if self.pace and (left := at * self.pace - (self.clock() - started)) > 0:
            await self.sleep(left)

    def passed(self, started: float) -> float:
        """Recorded seconds since ``started``."""
        return (self.clock() - started) / self.pace if self.pace else float("inf")


class ChatCompletions:
    """``POST /v1/chat/completions``.

    ``max_tokens`` and ``max_completion_tokens`` cut an answer. ``stop`` does not: it is part
    of the request, and a recorded answer already ends where its server ended it.
    """

    def __init__(
        self,
        index: Index,
        counters: Counters,
        timing: Timing,
        *,
        answer_unknown: bool,
        max_body_bytes: int,
    ) -> None:
        self._index = index
        self._counters = counters
        self._timing = timing
        self._answer_unknown = answer_unknown
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        self._counters.received()
        try:
            body = await self._body(Request(scope, receive))
            # From here to the first wait: the time of the request.
            started = self._timing.clock()
            request = ChatRequest.parse(body)
            answer = compose(self._match(request), request, self._index.recording.pace)
        except RequestError as error:
            await JSONResponse(error.body, error.status)(scope, receive, send)
            return
        except ClientDisconnect:
            return
        playing = _Playing(answer, request, self._timing, started, send)
        self._counters.started(answer.prompt_tokens, answer.tokens)
        reason = "abort"
        try:
            if await _while_connected(playing.stream if request.stream else playing.whole, receive):
                reason = "length" if answer.finish_reason == "length" else "stop"
        finally:
            self._counters.ended(answer.prompt_tokens, answer.tokens, playing.generated(), reason)

    async def _body(self, request: Request) -> bytes:
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self._max_body_bytes:
                raise RequestError(
                    f"the body has more than {self._max_body_bytes} bytes",
                    status=413,
                    kind="RequestEntityTooLargeError",
                )
            parts.append(part)
        return b"".join(parts)

    def _match(self, request: ChatRequest) -> Match:
        models = self._index.models
        if request.model not in models:
            raise RequestError(
                f"the model {request.model!r} is not served; this recording has {list(models)}",
                status=404,
                kind="NotFoundError",
                param="model",
                code="model_not_found",
            )
        match = self._index.find(request)
        if match is None or match.difference is not None:
            self._counters.missed()
            if match is None or not self._answer_unknown:
                raise _unknown(match)
        return match


def _unknown(match: Match | None) -> RequestError:
    if match is None or match.difference is None:
        message, found = "the recording is empty", None
    else:
        differs = match.difference
        message = (
            "the recording does not hold this request. "
            f"Nearest is {match.entry.id!r}, which differs in {differs.at}: "
            f"recorded {differs.recorded!r}, requested {differs.requested!r}"
        )
        found = {"id": match.entry.id, "differs": asdict(differs)}
    return RequestError(
        message, status=404, kind="NotFoundError", code="unknown_request", nearest=found
    )


class _Playing:
    """One answer being given."""

    def __init__(
        self, answer: Answer, request: ChatRequest, timing: Timing, started: float, send: Send
    ) -> None:
        self._answer = answer
        self._request = request
        self._timing = timing
        self._started = started
        self._send = send
        self._sent: int | None = None

    def generated(self) -> int:
        """How many tokens there are by now."""
        if self._sent is not None:
            return self._sent
        return self._answer.generated(self._timing.passed(self._started))

    async def whole(self) -> None:
        """Send the answer in one piece, when its last token is there."""
        body = encode(completion(self._answer, self._request))
        await self._timing.until(self._answer.seconds, self._started)
        self._sent = self._answer.tokens
        await self._begin(b"application/json", (b"content-length", str(len(body)).encode()))
        await self._send({"type": "http.response.body", "body": body})

    async def stream(self) -> None:
        """Send each token when it is there."""
        self._sent = 0
        await self._begin(b"text/event-stream; charset=utf-8", (b"cache-control", b"no-cache"))
        ready, due, tokens = b"", 0.0, 0
        for at, count, event in events(self._answer, self._request):
            # What is due at one time goes out together; without a pace, all of it.
            if ready and at > due and self._timing.pace:
                await self._chunk(due, tokens, ready)
                ready = b""
            ready, due, tokens = ready + event, at, tokens + count
        await self._chunk(due, tokens, ready + STREAM_END)
        await self._send({"type": "http.response.body", "body": b""})

    async def _chunk(self, due: float, tokens: int, body: bytes) -> None:
        await self._timing.until(due, self._started)
        self._sent = tokens
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def _begin(self, content_type: bytes, header: tuple[bytes, bytes]) -> None:
        headers = [(b"content-type", content_type), header]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})


async def _while_connected(work: Callable[[], Awaitable[None]], receive: Receive) -> bool:
    """Do the work unless the client leaves first. True: it was done."""
    working = asyncio.ensure_future(work())
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        done = working.done()
        if done:
            working.result()
        return done
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def build(chat: ChatCompletions, models: list[str], counters: Counters) -> Starlette:
    """The app: chat completions, ``/v1/models``, ``/health`` and ``/metrics``."""

    async def list_models(_: Request) -> Response:
        data = [
            {"id": model, "object": "model", "created": 0, "owned_by": "obsspec-recording"}
            for model in models
        ]
        return JSONResponse({"object": "list", "data": data})

    async def health(_: Request) -> Response:
        return Response()

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(
            counters.prometheus(models[0]), media_type="text/plain; version=0.0.4"
        )

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/models", list_models),
            Route("/health", health),
            Route("/metrics", metrics),
        ],
        exception_handlers={404: _no_route, 405: _no_route, 500: _broken},
    )


async def _no_route(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    problem = RequestError(
        f"{request.method} {request.url.path} is not served here",
        status=status,
        kind="NotFoundError",
    )
    return JSONResponse(problem.body, status)


async def _broken(_: Request, error: Exception) -> Response:
    problem = RequestError(
        f"the recorded endpoint failed: {error!r}", status=500, kind="InternalServerError"
    )
    return JSONResponse(problem.body, problem.status)
