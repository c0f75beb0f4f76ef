"""A small OpenAI-compatible server whose every answer the test holds in its hand."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from langchain_core.messages import AIMessage

Body = dict[str, Any]


class Server:
    """Answers chat completions on a thread of its own, on 127.0.0.1.

    ``answer`` gives the message for a body; a request for which ``held`` is true waits, its
    stream's first chunk included, until :meth:`release` or until its client leaves.
    """

    def __init__(
        self,
        answer: Callable[[Body], AIMessage],
        held: Callable[[Body], bool] = lambda body: False,
    ) -> None:
        self.bodies: list[Body] = []
        self.cut: Callable[[Body], bool] = lambda body: False
        """Whether the connection is closed without an answer."""
        self.open = 0
        self.left = 0
        """Clients that went away before their answer was complete."""
        self._answer, self._held = answer, held
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="test-server")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    @property
    def requests(self) -> int:
        return len(self.bodies)

    def wait_for(self, condition: Callable[[Self], bool]) -> None:
        """Block until the condition holds."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), 10), vars(self)

    def release(self) -> None:
        """Let go of every answer that is held, from now on too."""
        self._loop.call_soon_threadsafe(self._released.set)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._ready.set()
        await self._stop.wait()
        server.close()
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _change(self, **numbers: int) -> None:
        with self._changed:
            for name, by in numbers.items():
                setattr(self, name, getattr(self, name) + by)
            self._changed.notify_all()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.split("content-length:")[1].split("\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            self.bodies.append(body)
            self._change(open=1)
            answer = asyncio.create_task(self._reply(body, writer))
            gone = asyncio.create_task(reader.read(1))
            try:
                await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
                complete = answer.done() and answer.exception() is None
            finally:
                answer.cancel()
                gone.cancel()
            self._change(open=-1, left=0 if complete else 1)
        writer.close()

    async def _reply(self, body: Body, writer: asyncio.StreamWriter) -> None:
        if self.cut(body):
            return
        message = self._answer(body)
        if body.get("stream"):
            writer.write(_head("text/event-stream"))
            await writer.drain()
        if self._held(body):
            await self._released.wait()
        if body.get("stream"):
            for chunk in _chunks(message):
                writer.write(f"data: {json.dumps(chunk)}\n\n".encode())
                await writer.drain()
            writer.write(b"data: [DONE]\n\n")
        else:
            writer.write(_head("application/json") + json.dumps(_completion(message)).encode())
        await writer.drain()


def _head(kind: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode()


def _calls(message: AIMessage) -> list[dict[str, Any]]:
    return [
        {
            "index": index,
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["args"])},
        }
        for index, call in enumerate(message.tool_calls)
    ]


def _completion(message: AIMessage) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        said["tool_calls"] = _calls(message)
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": said, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
    }


def _chunks(message: AIMessage) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": f"{word} "} for word in str(message.content).split()]
    if message.tool_calls:
        deltas.append({"tool_calls": _calls(message)})
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks = [
        {**head, "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas
    ]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return chunks
