"""The recorded endpoint: an OpenAI-compatible server that plays a recording.

::

    async with RecordedEndpoint("answers.jsonl") as endpoint:      # on the running loop
        model = ChatOpenAI(base_url=endpoint.url, model="policy", api_key="none")

    with RecordedEndpoint("answers.jsonl").threaded() as endpoint:  # on a thread of its own
        ...

It answers many clients at once, each at the recorded pace, and what it answers depends on
nothing but the request and its seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from obsspec_agents.errors import ConfigurationError, MissingExtraError
from obsspec_agents.replay.match import Index
from obsspec_agents.replay.metrics import Counters
from obsspec_agents.replay.recording import Recording

if TYPE_CHECKING:
    import uvicorn

__all__ = ["RecordedEndpoint", "Unknown", "serve"]

Unknown = Literal["error", "nearest"]

_KEEP_ALIVE_S = 75
_STOP_S = 5.0
_ACCEPT_TURNS = 3
"""Turns of the event loop until a connection that was just accepted is made."""


class RecordedEndpoint:
    """An OpenAI-compatible server that plays a recording. Starts once, as a context.

    Args:
        recording: the recording, or the path of one.
        pace: the factor on recorded times: 1 as recorded, 2 twice as long, 0 without waiting.
        unknown: what a request gets that the recording does not hold: an ``error`` (404,
            naming the nearest recording and what differs), or the answer of the ``nearest``
            at its pace, marked so that :func:`check_known` refuses it.
        host: an address of this machine.
        port: 0 takes a free one.
        sleep: waits that many seconds. A test can hold answers back with its own.
        clock: the seconds by which ``sleep`` sleeps; None: the event loop's.
        allow_remote: allow a host that other machines reach. There is no authentication.
        max_body_bytes: a longer request is refused with 413.

    Raises:
        ConfigurationError: a parameter can't work.
        RecordingError: the recording can't be read.
        MissingExtraError: the extra ``replay`` is not installed.
    """

    def __init__(
        self,
        recording: Recording | str | os.PathLike[str],
        *,
        pace: float = 1.0,
        unknown: Unknown = "error",
        host: str = "127.0.0.1",
        port: int = 0,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        clock: Callable[[], float] | None = None,
        allow_remote: bool = False,
        max_body_bytes: int = 32 * 2**20,
    ) -> None:
        _check_installed()
        if not (math.isfinite(pace) and pace >= 0):
            raise ConfigurationError(f"pace is {pace!r}: a factor of 0 or more was expected")
        if unknown not in get_args(Unknown):
            raise ConfigurationError(f"unknown is {unknown!r}: 'error' or 'nearest' was expected")
        if not allow_remote and not _is_loopback(host):
            raise ConfigurationError(
                f"host {host!r} can be reached from other machines, and this server asks nobody "
                "who they are: use 127.0.0.1, or allow_remote=True if that is meant"
            )
        if isinstance(recording, Recording):
            self._index = Index(recording.checked())
        else:
            self._index = Index(Recording.load(recording))
        self._pace, self._unknown = pace, unknown
        self._host, self._port = host, port
        self._sleep, self._clock = sleep, clock
        self._max_body_bytes = max_body_bytes
        self._counters = Counters()
        self._running: uvicorn.Server | None = None
        self._root: str | None = None

    @property
    def root(self) -> str:
        """The server's address, under which ``/health`` and ``/metrics`` are."""
        if self._root is None:
            raise ConfigurationError("the endpoint has no address before it is started")
        return self._root

    @property
    def url(self) -> str:
        """The ``base_url`` for an OpenAI client: :attr:`root` and ``/v1``."""
        return f"{self.root}/v1"

    @property
    def requests(self) -> int:
        """Chat completions requests so far, whatever came of them."""
        return self._counters.requests

    @property
    def unknown(self) -> int:
        """Those among them that the recording does not hold."""
        return self._counters.unknown

    @property
    def running(self) -> int:
        """Answers being given now."""
        return self._counters.running

    @property
    def max_running(self) -> int:
        """The most answers that were given at once."""
        return self._counters.max_running

    @property
    def aborted(self) -> int:
        """Answers whose client left before their end."""
        return self._counters.aborted

    def reached(self, predicate: Callable[[Counters], bool]) -> Future[None]:
        """Done as soon as the predicate holds of the counters.

        Wait with ``.result(timeout=...)``, on an event loop with
        ``await asyncio.wrap_future(...)``.
        """
        return self._counters.reached(predicate)

    async def __aenter__(self) -> Self:
        """Start on the running event loop.

        Raises:
            ConfigurationError: host and port can't be listened on, or it was started before.
        """
        # Both need packages of the extra, which reading recordings does not.
        import uvicorn

        from obsspec_agents.replay.app import ChatCompletions, Timing, build

        if self._root is not None:
            raise ConfigurationError("the endpoint was started before: make another one")
        timing = Timing(self._pace, self._sleep, self._clock or asyncio.get_running_loop().time)
        chat = ChatCompletions(
            self._index,
            self._counters,
            timing,
            answer_unknown=self._unknown == "nearest",
            max_body_bytes=self._max_body_bytes,
        )
        config = uvicorn.Config(
            build(chat, list(self._index.models), self._counters),
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="warning",
            access_log=False,
            date_header=False,
            # Longer than clients keep theirs, or one may be closed just as it is used again.
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        listener = _listen(self._host, self._port)
        # Not serve(): it would take the signal handlers, and poll to learn of its end.
        await server.startup(sockets=[listener])
        self._running = server
        host, port = listener.getsockname()[:2]
        self._root = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every connection, end every answer, and free the port."""
        if self._running is None:
            return
        server, self._running = self._running, None
        await _stop_accepting(server)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                while server.server_state.connections:
                    for connection in list(server.server_state.connections):
                        # Open answers end as if their clients had left.
                        connection.transport.abort()
                    await asyncio.sleep(0)
                while tasks := list(server.server_state.tasks):
                    await asyncio.wait(tasks)
                for acceptor in server.servers:
                    await acceptor.wait_closed()

    @contextlib.contextmanager
    def threaded(self) -> Iterator[Self]:
        """Run on a thread and an event loop of its own, for as long as the context lasts."""
        started: Future[Callable[[], object]] = Future()
        thread = threading.Thread(
            target=lambda: asyncio.run(self._serve_thread(started)),
            name="obsspec-recorded-endpoint",
            daemon=True,
        )
        thread.start()
        try:
            stop = started.result()
        except BaseException:
            thread.join(_STOP_S)
            raise
        try:
            yield self
        finally:
            stop()
            thread.join()

    async def _serve_thread(self, started: Future[Callable[[], object]]) -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self:
                started.set_result(partial(loop.call_soon_threadsafe, stopped.set))
                await stopped.wait()
        except BaseException as error:
            if started.done():
                raise
            # For the thread that waits for the start.
            started.set_exception(error)


def serve(
    recording: Recording | str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    pace: float = 1.0,
    unknown: Unknown = "error",
    allow_remote: bool = False,
    ready: Callable[[str], None] = print,
) -> None:
    """Play a recording until SIGINT or SIGTERM. Blocks; for a command line.

    Args:
        recording, host, port, pace, unknown, allow_remote: as for :class:`RecordedEndpoint`.
        ready: called with the endpoint's ``url`` once it answers.
    """
    endpoint = RecordedEndpoint(
        recording, pace=pace, unknown=unknown, host=host, port=port, allow_remote=allow_remote
    )

    async def run() -> None:
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Only Unix's main thread has these; elsewhere KeyboardInterrupt does it.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        async with endpoint:
            ready(endpoint.url)
            await stopped.wait()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


async def _stop_accepting(server: uvicorn.Server) -> None:
    # asyncio forgets, open, a connection whose acceptor is closed between its being accepted
    # and its being made. So nothing more is accepted first, and what was is let through.
    for acceptor in server.servers:
        for listener in acceptor.sockets:
            with contextlib.suppress(NotImplementedError):
                asyncio.get_running_loop().remove_reader(listener.fileno())
    for _ in range(_ACCEPT_TURNS):
        await asyncio.sleep(0)
    for acceptor in server.servers:
        acceptor.close()


def _check_installed() -> None:
    for package in ("uvicorn", "starlette", "httptools"):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingExtraError(package, "replay", "the recorded endpoint") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    try:
        # The protocol is named since asyncio sends without delay only where it is: an answer's
        # headers and body are two writes, and Nagle's algorithm would hold the second back.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except BaseException:
            listener.close()
            raise
        return listener
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"can't listen on {host!r}, port {port}: {error}; port 0 takes a free one"
        ) from error
