"""A chat endpoint on a thread of its own: answers what a test tells it to."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any, Self

Reply = tuple[int, dict[str, Any]]


def answer(
    content: str | None = "out",
    *,
    finish: str | None = "stop",
    logprobs: list[float] | None = None,
    **message: Any,
) -> Reply:
    entries = [{"token": "t", "logprob": logprob, "bytes": None} for logprob in logprobs or ()]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, **message},
        "finish_reason": finish,
        "logprobs": None if logprobs is None else {"content": entries},
    }
    return 200, {"id": "1", "object": "chat.completion", "created": 1, "model": "m",
                 "choices": [choice]}  # fmt: skip


def error(status: int, message: str) -> Reply:
    return status, {"error": {"message": message, "type": "invalid_request_error"}}


class ChatServer:
    """Serves ``/v1`` while it is entered; keeps what it was asked."""

    def __init__(self, reply: Callable[[dict[str, Any]], Reply | None]) -> None:
        self._reply = reply
        """None: never answers."""
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str] = []
        self.connections = 0
        self.asked = threading.Event()
        self.hung_up = threading.Event()
        """A client closed its connection."""

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)))
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        handlers: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            handlers.add(self._loop.create_task(self._client(reader, writer)))

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        ready.set()
        await self._stop.wait()
        server.close()
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _head(reader):
                lines = head.split("\r\n")
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                self.requests.append(body)
                self.paths.append(lines[0].split()[1])
                self.keys.append(headers["authorization"])
                self.asked.set()
                reply = self._reply(body)
                if reply is None:
                    await reader.read(1)
                    break
                data = json.dumps(reply[1]).encode()
                writer.write(
                    b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    % (reply[0], len(data))
                    + data
                )
        finally:
            self.hung_up.set()
            writer.close()


async def _head(reader: asyncio.StreamReader) -> str:
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode()
    except (asyncio.IncompleteReadError, ConnectionError):
        return ""
