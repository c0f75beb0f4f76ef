"""What a recorded endpoint counts, under the names that a vLLM server has for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

__all__ = ["Counters"]

_KV_CACHE_TOKENS = 1_000_000
"""The cache of the server that is played: its usage is the share that running answers hold."""

_REASONS = ("stop", "length", "abort")


class Counters:
    """The counters of one endpoint. Changed on its event loop, read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: list[tuple[Callable[[Counters], bool], Future[None]]] = []
        self._held_tokens = 0
        self._ended = dict.fromkeys(_REASONS, 0)
        self.requests = 0
        """Chat completions requests, whatever came of them."""
        self.unknown = 0
        """Those among them that the recording does not hold."""
        self.running = 0
        """Answers being given."""
        self.max_running = 0
        """The most that there were at once."""
        self.prompt_tokens = 0
        self.generation_tokens = 0

    @property
    def aborted(self) -> int:
        """Answers whose client left before their end."""
        return self._ended["abort"]

    def received(self) -> None:
        """A request came."""
        with self._lock:
            self.requests += 1
            self._tell()

    def missed(self) -> None:
        """The recording does not hold a request."""
        with self._lock:
            self.unknown += 1
            self._tell()

    def started(self, prompt_tokens: int, tokens: int) -> None:
        """An answer of that many tokens is begun."""
        with self._lock:
            self.running += 1
            self.max_running = max(self.max_running, self.running)
            self.prompt_tokens += prompt_tokens
            self._held_tokens += prompt_tokens + tokens
            self._tell()

    def ended(self, prompt_tokens: int, tokens: int, generated: int, reason: str) -> None:
        """It ended, with that many of its tokens generated: by stop, length or abort."""
        with self._lock:
            self.running -= 1
            self.generation_tokens += generated
            self._held_tokens -= prompt_tokens + tokens
            self._ended[reason] += 1
            self._tell()

    def reached(self, predicate: Callable[[Counters], bool]) -> Future[None]:
        """Done as soon as the predicate holds.

        Wait for it with ``.result(timeout=...)``, on an event loop with
        ``await asyncio.wrap_future(...)``.
        """
        future: Future[None] = Future()
        with self._lock:
            self._waiters.append((predicate, future))
            self._tell()
        return future

    def _tell(self) -> None:
        if not self._waiters:
            return
        waiting = []
        for predicate, future in self._waiters:
            if future.cancelled():
                continue
            if predicate(self):
                future.set_result(None)
            else:
                waiting.append((predicate, future))
        self._waiters = waiting

    def prometheus(self, model: str) -> str:
        """Prometheus' text format."""
        label = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        labels = f'engine="0",model_name="{label}"'
        with self._lock:
            usage = min(1.0, self._held_tokens / _KV_CACHE_TOKENS)
            values: list[tuple[str, str, float]] = [
                ("num_requests_running", "gauge", self.running),
                ("num_requests_waiting", "gauge", 0),
                ("kv_cache_usage_perc", "gauge", usage),
                ("num_preemptions_total", "counter", 0),
                ("prompt_tokens_total", "counter", self.prompt_tokens),
                ("generation_tokens_total", "counter", self.generation_tokens),
            ]
            ended = dict(self._ended)
        lines: list[str] = []
        for name, kind, value in values:
            lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{labels}}} {value}"]
        lines.append("# TYPE vllm:request_success_total counter")
        lines += [
            f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {count}'
            for reason, count in ended.items()
        ]
        return "\n".join(lines) + "\n"
