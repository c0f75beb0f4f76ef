"""A real shell as a LangChain tool, one directory for each rollout.

A command runs as ``bash -c`` without start-up files, in the rollout's own directory, with a
clean environment, limits on time, memory, files and processes, and nothing on its standard
input. It is a process group of its own, and the group ends with the command: nothing stays
behind in the background. What it prints is cut to a length that a policy can read.

The directory's own path is shown as ``/workspace`` wherever it appears in the output, as it
is inside bubblewrap, so that an observation does not depend on where a workspace lies.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool

from obsspec_agents.errors import ConfigurationError

from .sandbox import Sandbox, bubblewrap_argv, interpreter

__all__ = ["Limits", "Shell", "Workspace", "bash_tool"]

_LAUNCHER = (
    "umask 022; ulimit -c 0; ulimit -t {cpu} -f {file} -n {files} -v {memory} -u {processes} "
    '|| exit 125; exec bash --noprofile --norc -c "$1"'
)
_KEPT_BYTES = 4 * 2**20  # of what a command prints; it may go on printing into the void


@dataclass(frozen=True, slots=True)
class Limits:
    """What one command may use. Memory, CPU and file size are for each of its processes."""

    wall_s: float = 30.0
    """Seconds until the whole process group is killed."""
    cpu_s: int = 20
    memory_mib: int = 1024
    """Address space."""
    file_mib: int = 64
    """Size of a file that it writes."""
    open_files: int = 256
    processes: int = 512
    """Processes and threads more than the user already had (the system counts them all)."""
    output_chars: int = 10_000
    """Of the output that the policy sees; the middle is cut out of a longer one."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """One rollout's own directory."""

    path: Path
    rollout_id: str
    seed: int
    """Stands in ``$ROLLOUT_SEED``; the same in every run of the rollout."""

    @classmethod
    def create(
        cls, base_dir: Path, rollout_id: str, seed: int, files: Mapping[str, str | bytes]
    ) -> Workspace:
        """Make ``base_dir/rollout_id`` afresh and write the files (paths relative to it).

        A file that begins with ``#!`` is made executable.

        Raises:
            ConfigurationError: the rollout id can't name a directory.
        """
        if not re.fullmatch(r"\w[\w.-]*", rollout_id):
            raise ConfigurationError(
                f"rollout id {rollout_id!r} can't name a directory: use letters, digits, - and _"
            )
        root = base_dir.resolve() / rollout_id
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for folder in {(root / name).parent for name in files}:
            folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            with open(root / name, "wb") as file:
                file.write(data)
                if data.startswith(b"#!"):
                    os.fchmod(file.fileno(), 0o755)
        bin_dir = root.parent / ".bin"
        bin_dir.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            (bin_dir / "python3").symlink_to(interpreter())
        return cls(root, rollout_id, seed)

    @property
    def bin_dir(self) -> Path:
        """Holds ``python3``, the interpreter that runs the demo; shared by all rollouts."""
        return self.path.parent / ".bin"

    def remove(self) -> None:
        """Delete the directory and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)


@dataclass(frozen=True)
class Shell:
    """Runs commands in one workspace."""

    workspace: Workspace
    limits: Limits = field(default_factory=Limits)
    round_trip_s: float = 1.0
    """Seconds that a remote sandbox's network would add to each command, half before it and
    half after it. Simulated, and printed by the demo."""
    sandbox: Sandbox = Sandbox.NONE

    async def arun(self, command: str) -> str:
        """Run a command; what the policy sees of it."""
        await asyncio.sleep(self.round_trip_s / 2)
        with self._output_pipe() as (reader, writer):
            process = await asyncio.create_subprocess_exec(
                *self._argv(command), **self._options(writer)
            )
            writer.close()
            output = _Output(reader)
            loop = asyncio.get_running_loop()

            def readable() -> None:
                output.read()
                if output.ended:
                    loop.remove_reader(reader)

            loop.add_reader(reader, readable)
            try:
                async with asyncio.timeout(self.limits.wall_s):
                    code: int | None = await process.wait()
            except TimeoutError:
                code = None
            finally:
                _kill_group(process.pid)
                loop.remove_reader(reader)
                await process.wait()
            text = self._observation(output.rest(), code)
        await asyncio.sleep(self.round_trip_s / 2)
        return text

    def run(self, command: str) -> str:
        """The same, blocking."""
        time.sleep(self.round_trip_s / 2)
        deadline = time.monotonic() + self.limits.wall_s
        with self._output_pipe() as (reader, writer):
            process = subprocess.Popen(self._argv(command), **self._options(writer))
            writer.close()
            output = _Output(reader)
            code: int | None = None
            try:
                while (left := deadline - time.monotonic()) > 0 and process.poll() is None:
                    if output.ended:
                        with suppress(subprocess.TimeoutExpired):
                            process.wait(left)
                    # The pipe may outlive the command, in the hands of a child of its own.
                    elif select.select([reader], [], [], min(left, 0.05))[0]:
                        output.read()
                code = process.poll()
            finally:
                _kill_group(process.pid)
                process.wait()
            text = self._observation(output.rest(), code)
        time.sleep(self.round_trip_s / 2)
        return text

    def _argv(self, command: str) -> list[str]:
        limits = self.limits
        launcher = _LAUNCHER.format(
            cpu=limits.cpu_s,
            file=limits.file_mib * 1024,
            files=limits.open_files,
            memory=limits.memory_mib * 1024,
            processes=limits.processes + _running(),
        )
        argv = ["bash", "--noprofile", "--norc", "-c", launcher, "_", command]
        if self.sandbox is Sandbox.BUBBLEWRAP:
            inside = self._env("/workspace", "/opt/bin")
            head = bubblewrap_argv(self.workspace.path, self.workspace.bin_dir, inside)
            return [*head, *argv]
        return argv

    def _options(self, writer: BinaryIO) -> dict[str, Any]:
        return {
            "stdin": subprocess.DEVNULL,
            "stdout": writer,
            "stderr": writer,
            "cwd": self.workspace.path,
            "env": self._env(str(self.workspace.path), str(self.workspace.bin_dir)),
            "start_new_session": True,
        }

    def _env(self, home: str, bin_dir: str) -> dict[str, str]:
        return {
            "PATH": f"{bin_dir}:/usr/local/bin:/usr/bin:/bin",
            "HOME": home,
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONNOUSERSITE": "1",
            "PYTHON_COLORS": "0",
            "ROLLOUT_ID": self.workspace.rollout_id,
            "ROLLOUT_SEED": str(self.workspace.seed),
        }

    @staticmethod
    @contextmanager
    def _output_pipe() -> Iterator[tuple[int, BinaryIO]]:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        try:
            with open(writer, "wb", buffering=0) as end:
                yield reader, end
        finally:
            os.close(reader)

    def _observation(self, output: str, code: int | None) -> str:
        if code is None:
            return f"(timed out: stopped after {self.limits.wall_s:g} s)"
        text = output.replace(str(self.workspace.path), "/workspace").rstrip("\n")
        half = self.limits.output_chars // 2
        if (cut := len(text) - 2 * half) > 0:
            text = f"{text[:half]}\n[... {cut} characters cut ...]\n{text[-half:]}"
        text = text or "(no output)"
        if code < 0:
            code = 128 - code
        return f"{text}\n(exit code {code})" if code else text


class _Output:
    """What a command prints, read from a non-blocking pipe."""

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self._data = bytearray()
        self.ended = False

    def read(self) -> bool:
        """Take what is there; False when there is nothing, now or (``ended``) for good."""
        try:
            chunk = os.read(self._reader, 65536)
        except BlockingIOError:
            return False
        self._data += chunk[: _KEPT_BYTES - len(self._data)]
        self.ended = not chunk
        return not self.ended

    def rest(self) -> str:
        """All of it, with what the pipe still holds."""
        while self.read():
            pass
        return self._data.decode(errors="replace")


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


@cache
def _running() -> int:
    """Processes and threads of this user when the first command ran."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid == os.getuid():
                count += len(os.listdir(process / "task"))
    return count


def bash_tool(shells: Mapping[str, Shell]) -> BaseTool:
    """The ``bash`` tool of all rollouts of a graph.

    ``shells`` maps rollout ids to shells and is read at each call; the rollout is the one
    that ``config["configurable"]["rollout_id"]`` names. A command whose rollout has no shell
    raises :class:`~obsspec_agents.errors.ConfigurationError`.
    """

    def shell_of(config: RunnableConfig) -> Shell:
        rollout_id = config.get("configurable", {}).get("rollout_id")
        shell = shells.get(rollout_id) if isinstance(rollout_id, str) else None
        if shell is None:
            raise ConfigurationError(
                f"no shell for rollout {rollout_id!r}: set configurable['rollout_id'] in the "
                "run's config to the id of a prepared workspace"
            )
        return shell

    def bash(command: str, config: RunnableConfig) -> str:
        return shell_of(config).run(command)

    async def abash(command: str, config: RunnableConfig) -> str:
        return await shell_of(config).arun(command)

    return StructuredTool.from_function(
        func=bash,
        coroutine=abash,
        name="bash",
        description=(
            "Run a command with bash in the task's directory. Returns what it printed (stdout "
            "and stderr together) and its exit code where that is not 0. Each call starts a "
            "new shell in the same directory."
        ),
    )
