"""The trace: every event of a run folder, one JSON object a line, nothing secret in it."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from obsspec_agents.errors import ConfigurationError
from obsspec_agents.events import Event, RunEnded
from obsspec_agents.redact import redact_data

__all__ = ["Trace"]

_FLUSH_EVERY = 64


class Trace:
    """A sink that appends events to ``trace.jsonl`` in a run folder.

    A header comes first, also where a trace is continued: format version, and the wall time
    (Unix seconds) at which the clock showed ``clock``. Texts are redacted before they are
    written. The file is flushed when a run ends, every few dozen events, and at
    :meth:`close`. Thread-safe.

    Raises:
        ConfigurationError: the folder can't be made or written to.
    """

    def __init__(self, folder: str | Path, clock: float) -> None:
        self.path = Path(folder) / "trace.jsonl"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] | None = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"the trace folder {str(folder)!r} can't be written to: {error}"
            ) from error
        self._lock = threading.Lock()
        self._unflushed = 0
        self._write({"format": "obsspec-trace", "version": 1, "clock": clock, "unix": time.time()})

    def __call__(self, event: Event) -> None:
        """Append one event."""
        self._write(redact_data({"event": type(event).__name__, **asdict(event)}))
        if isinstance(event, RunEnded):
            self.flush()

    def _write(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":")) + "\n"
        with self._lock:
            if self._file is None:
                return
            self._file.write(text)
            self._unflushed += 1
            if self._unflushed >= _FLUSH_EVERY:
                self._file.flush()
                self._unflushed = 0

    def flush(self) -> None:
        """Hand what was written to the file."""
        with self._lock:
            if self._file is not None:
                self._file.flush()
                self._unflushed = 0

    def close(self) -> None:
        """Flush and close. Later events are dropped. Idempotent."""
        with self._lock:
            if self._file is not None:
                file, self._file = self._file, None
                with suppress(OSError):  # a full disk is no reason to fail a run that is done
                    file.close()
