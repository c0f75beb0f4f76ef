"""The file behind a recall memory: read once, then written behind by one thread.

Keys are digests: neither prompts nor arguments are in the file. Observations are, except
those that look like they hold a secret. Several processes may write to one file; each
sees what the others wrote when it next loads it.
"""

from __future__ import annotations

import sqlite3
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from obsspec_agents.errors import ConfigurationError
from obsspec_agents.observation import Observation, Status
from obsspec_agents.redact import holds_secret
from obsspec_agents.world_model.history import digest_of

__all__ = ["MemoryFile", "Sighting"]

_APPLICATION = 0x4F425352  # "OBSR", in the file's header
_VERSION = 1
_BATCH_SECONDS = 0.1
_BUSY_SECONDS = 10.0
_MAX_PENDING = 100_000

_SCHEMA = f"""
CREATE TABLE observation (
    id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, status TEXT NOT NULL, content BLOB NOT NULL
);
CREATE TABLE sighting (
    key BLOB NOT NULL, observation INTEGER NOT NULL, count INTEGER NOT NULL, last INTEGER NOT NULL,
    PRIMARY KEY (key, observation)
) WITHOUT ROWID;
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
"""

_NOT_KEPT = 0  # observation id of results that were seen but not stored

_PRUNE = """
CREATE TEMP TABLE surplus AS SELECT key, observation, count, last FROM (
    SELECT *, row_number() OVER (PARTITION BY key ORDER BY count DESC, last DESC) AS rank
    FROM sighting WHERE observation <> 0
) WHERE rank > :candidates;
INSERT INTO sighting SELECT key, 0, sum(count), max(last) FROM surplus WHERE true GROUP BY key
    ON CONFLICT (key, observation)
    DO UPDATE SET count = count + excluded.count, last = max(last, excluded.last);
DELETE FROM sighting WHERE (key, observation) IN (SELECT key, observation FROM surplus);
DROP TABLE surplus;
DELETE FROM sighting WHERE key NOT IN (
    SELECT key FROM sighting GROUP BY key ORDER BY max(last) DESC LIMIT :keys
);
DELETE FROM observation WHERE id NOT IN (SELECT observation FROM sighting);
"""


@dataclass(frozen=True, slots=True)
class Sighting:
    """How often a key led to an observation, and when last (an ever-growing number)."""

    key: bytes
    observation: Observation | None
    """None for those that were seen but not kept."""
    count: int
    last: int


class MemoryFile:
    """An SQLite file of sightings. Thread-safe; only construction and loading block.

    The writer thread starts with the first sighting and is joined by :meth:`close`. A
    batch is written at most every 0.1 s; being killed loses at most what is not written.

    Args:
        path: made if it is missing, with its folders.
        max_keys: the file is cut to this many keys when it is closed, oldest first.
        max_candidates: and to this many observations a key, rarest first.

    Raises:
        ConfigurationError: the file is foreign, of another version, or can't be opened.
    """

    def __init__(self, path: str | Path, *, max_keys: int, max_candidates: int) -> None:
        self.path = Path(path)
        self._limits = {"keys": max_keys, "candidates": max_candidates}
        self._changed = threading.Condition()
        self._pending: dict[tuple[bytes, Observation | None], tuple[int, int]] = {}
        self._added = 0
        self._written = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost = 0
        self._error: Exception | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._connect()) as connection:
                self._prepare(connection)
        except (sqlite3.Error, OSError) as error:
            raise self._refused(str(error)) from error

    def load(self) -> Iterator[Sighting]:
        """Everything in the file, the least recently seen first.

        Raises:
            ConfigurationError: the file is damaged.
        """
        observations: dict[int, Observation | None] = {_NOT_KEPT: None}
        try:
            with closing(self._connect()) as connection:
                for id_, status, content in connection.execute(
                    "SELECT id, status, content FROM observation"
                ):
                    text = content.decode("utf-8", "surrogatepass")
                    observations[id_] = Observation(text, cast(Status, status))
                for key, id_, count, last in connection.execute(
                    "SELECT key, observation, count, last FROM sighting ORDER BY last"
                ):
                    yield Sighting(key, observations[id_], count, last)
        except (sqlite3.Error, UnicodeDecodeError, KeyError) as error:
            raise self._refused(f"damaged ({error})") from error

    def add(self, key: bytes, observation: Observation | None, last: int) -> None:
        """Have one more sighting written, soon. Dropped once the file is closed."""
        with self._changed:
            if self._closing.is_set():
                return
            if len(self._pending) >= _MAX_PENDING:
                self._lost += 1
                return
            count, _ = self._pending.get((key, observation), (0, 0))
            self._pending[key, observation] = (count + 1, last)
            self._added += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._write_behind, name="obsspec-memory", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all that was added before has been written."""
        with self._changed:
            target = self._added
            self._changed.wait_for(lambda: self._written >= target)

    def close(self) -> None:
        """Write what is left and join the writer. Idempotent. Warns of what was lost."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        lost, self._lost = self._lost, 0
        if lost:
            warnings.warn(
                f"{lost} results were not saved to {str(self.path)!r}: "
                f"{self._error or 'the disk is slower than the agents'}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _write_behind(self) -> None:
        connection: sqlite3.Connection | None = None
        closing = False
        while not closing:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing.is_set())
                batch, self._pending = self._pending, {}
                reached = self._added
                closing = self._closing.is_set()
            try:
                connection = connection or self._connect()
                self._write(connection, batch)
                if closing:
                    self._prune(connection)
            except Exception as error:  # noqa: BLE001 - the writer outlives it
                self._error = error
                self._lost += len(batch)
                if connection is not None:
                    connection.close()
                    connection = None
            with self._changed:
                self._written = reached
                self._changed.notify_all()
            self._closing.wait(_BATCH_SECONDS)
        if connection is not None:
            connection.close()

    def _write(
        self,
        connection: sqlite3.Connection,
        batch: dict[tuple[bytes, Observation | None], tuple[int, int]],
    ) -> None:
        ids: dict[Observation | None, int] = {None: _NOT_KEPT}
        connection.execute("BEGIN IMMEDIATE")
        for (key, observation), (count, last) in batch.items():
            if observation not in ids:
                ids[observation] = self._keep(connection, cast(Observation, observation))
            connection.execute(
                "INSERT INTO sighting VALUES (?, ?, ?, ?) "
                "ON CONFLICT (key, observation) DO UPDATE SET "
                "count = count + excluded.count, last = max(last, excluded.last)",
                (key, ids[observation], count, last),
            )
        connection.execute("COMMIT")

    @staticmethod
    def _keep(connection: sqlite3.Connection, observation: Observation) -> int:
        """The id of an observation in the file; of those with secrets, the one for all."""
        text = observation.text
        if text is None or holds_secret(text):
            return _NOT_KEPT
        digest = digest_of(observation.status, text)
        connection.execute(
            "INSERT INTO observation (digest, status, content) VALUES (?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            (digest, observation.status, text.encode("utf-8", "surrogatepass")),
        )
        row = connection.execute("SELECT id FROM observation WHERE digest = ?", (digest,))
        return int(row.fetchone()[0])

    def _prune(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        for statement in _PRUNE.split(";\n"):
            names = [name for name in self._limits if f":{name}" in statement]
            connection.execute(statement, {name: self._limits[name] for name in names})
        connection.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not tables and not application and not version:
            for statement in _SCHEMA.split(";\n"):
                connection.execute(statement)
        elif application != _APPLICATION:
            raise self._refused("it is an SQLite file of another program")
        elif version != _VERSION:
            raise self._refused(f"its format is version {version}, this release reads {_VERSION}")
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")

    def _refused(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"the memory file {str(self.path)!r} can't be used: {why}. "
            "Move it away, or give another path."
        )
