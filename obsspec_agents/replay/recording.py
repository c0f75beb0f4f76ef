"""A recording: answers of a chat model, and when each of them is to be given.

A recording is a file of JSON lines (UTF-8, gzip where the name ends in ``.gz``): a header,
then one entry a line. An *exact* entry answers one request payload. A *scripted* entry
answers whatever continues a conversation: the first user message is its task, ``after``
names the entry that made the last assistant message, and ``capture`` picks values out of
the last observations, which the answer then quotes as ``{{name}}``. ``{{seed}}`` quotes the
request's seed. An entry has one or more samples, among which request and seed choose.
"""

from __future__ import annotations

import gzip
import io
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from obsspec_agents.errors import RecordingError
from obsspec_agents.replay.entry import Entry, Header, Pace
from obsspec_agents.replay.lines import dump, parse

__all__ = ["Recording"]


@dataclass(frozen=True, slots=True)
class Recording:
    """A model's name, its pace, and its recorded answers.

    Entries made in Python are checked as those of a file are: see :meth:`checked`.
    """

    model: str
    entries: tuple[Entry, ...] = ()
    pace: Pace = field(default_factory=Pace)
    note: str = ""
    """Where the answers come from, for whoever reads the file."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Read a recording.

        Raises:
            RecordingError: it is torn, foreign, of another version, or contradicts itself;
                the message names file and line.
        """
        header, entries = parse(_lines(Path(path)), source=str(path))
        return cls(header.model, entries, header.pace, header.note)

    def checked(self) -> Recording:
        """The same recording as a file would give it back.

        Raises:
            RecordingError: an entry can't work; the message names the line it would be on.
        """
        header, entries = parse(self._dump(), source=f"recording of {self.model!r}")
        return Recording(header.model, entries, header.pace, header.note)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the recording; equal recordings give equal bytes. Replaces the file at once.

        Raises:
            RecordingError: an entry can't work; nothing is written.
            OSError: the file can't be written.
        """
        target = Path(path)
        data = "".join(f"{line}\n" for line in self.checked()._dump()).encode()
        if target.suffix == ".gz":
            data = gzip.compress(data, mtime=0)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise

    def _dump(self) -> Iterator[str]:
        return dump(Header(self.model, self.pace, self.note), self.entries)


def _lines(path: Path) -> Iterator[str]:
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except FileNotFoundError as error:
        raise RecordingError(f"{path}: there is no such recording") from error
    except (OSError, EOFError) as error:
        raise RecordingError(f"{path}: the recording can't be read ({error})") from error
    for number, line in enumerate(io.BytesIO(data), 1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise RecordingError(f"{path}, line {number}: not UTF-8 ({error})") from error
