"""The demo's shell: what a command sees, what it may use, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import os
import select
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from obsspec_agents.demos.terminal import sandbox
from obsspec_agents.demos.terminal.sandbox import Sandbox, in_container, sandbox_or_refuse
from obsspec_agents.demos.terminal.shell import Limits, Shell, Workspace, bash_tool

from obsspec_agents import ConfigurationError, SandboxError

Run = Callable[[Shell, str], Awaitable[str]]


async def run_sync(shell: Shell, command: str) -> str:
    return await asyncio.to_thread(shell.run, command)


@pytest.fixture(params=["async", "sync"])
def run(request: pytest.FixtureRequest) -> Run:
    return Shell.arun if request.param == "async" else run_sync


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create(tmp_path, "task-B1", 7, {"a.txt": "one\n", "bin/go": b"#!/bin/sh\n"})


def shell(workspace: Workspace, **limits: float) -> Shell:
    return Shell(workspace, Limits(**limits), round_trip_s=0)


class Alive:
    """Tells whether processes that opened ``alive`` for writing live; a FIFO knows."""

    def __init__(self, folder: Path) -> None:
        os.mkfifo(folder / "alive")
        self._fd = os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK)

    def wait_for_end(self) -> None:
        """Until the last of them has ended."""
        os.set_blocking(self._fd, True)
        while True:
            assert select.select([self._fd], [], [], 10)[0], "a process outlived its command"
            if not os.read(self._fd, 100):
                break
        os.close(self._fd)

    async def wait_for_start(self) -> None:
        """Until one of them has written something."""
        started = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._fd, started.set)
        await asyncio.wait_for(started.wait(), 10)
        asyncio.get_running_loop().remove_reader(self._fd)


# What a command sees


async def test_the_environment_is_clean(
    run: Run, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-inherited")
    monkeypatch.setenv("MAKEFLAGS", "-k")
    monkeypatch.setenv("BASH_ENV", "/nonexistent")
    lines = (await run(shell(workspace), "env | sort")).splitlines()
    seen = dict(line.split("=", 1) for line in lines)
    assert seen.pop("PATH").startswith("/")
    for made_by_bash in ("PWD", "SHLVL", "_"):
        seen.pop(made_by_bash, None)
    assert seen == {
        "HOME": "/workspace",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHON_COLORS": "0",
        "ROLLOUT_ID": "task-B1",
        "ROLLOUT_SEED": "7",
    }


async def test_python_is_the_one_that_runs_the_demo(run: Run, workspace: Workspace) -> None:
    version = await run(shell(workspace), "python3 -c 'import sys; print(sys.version)'")
    assert version == sys.version


async def test_output_and_errors_come_in_order(run: Run, workspace: Workspace) -> None:
    text = await run(shell(workspace), "echo out; echo err >&2; echo again; exit 3")
    assert text == "out\nerr\nagain\n(exit code 3)"


async def test_silence_is_said(run: Run, workspace: Workspace) -> None:
    assert await run(shell(workspace), "true") == "(no output)"
    assert await run(shell(workspace), "false") == "(no output)\n(exit code 1)"


@pytest.fixture
def typed() -> Iterator[None]:
    """Something waits on this process's standard input."""
    before = os.dup(0)
    reader, writer = os.pipe()
    os.write(writer, b"typed")
    os.close(writer)
    os.dup2(reader, 0)
    os.close(reader)
    yield
    os.dup2(before, 0)
    os.close(before)


@pytest.mark.usefixtures("typed")
async def test_nothing_comes_in(run: Run, workspace: Workspace) -> None:
    assert await run(shell(workspace), "cat") == "(no output)"


async def test_a_signal_is_an_exit_code(run: Run, workspace: Workspace) -> None:
    assert await run(shell(workspace), "echo a; kill -9 $$") == "a\n(exit code 137)"


async def test_bytes_that_are_not_text(run: Run, workspace: Workspace) -> None:
    assert await run(shell(workspace), "printf 'a\\377b'") == "a\ufffdb"


async def test_the_own_path_does_not_show(run: Run, workspace: Workspace) -> None:
    assert await run(shell(workspace), "pwd; ls $PWD/a.txt") == "/workspace\n/workspace/a.txt"


async def test_long_output_loses_its_middle(run: Run, workspace: Workspace) -> None:
    text = await run(shell(workspace, output_chars=20), "printf '%050d' 7 | tr 7 x")
    assert text == "0000000000\n[... 30 characters cut ...]\n000000000x"


async def test_endless_output_is_cut(run: Run, workspace: Workspace) -> None:
    text = await run(shell(workspace), "yes | head -c 30000000")
    assert len(text) < 10_100
    assert "characters cut" in text


async def test_files_stay_between_commands_and_shells_do_not(
    run: Run, workspace: Workspace
) -> None:
    sh = shell(workspace)
    await run(sh, "mkdir d && cd d && x=1 && echo two > b.txt")
    assert await run(sh, 'cat d/b.txt; echo "[$x]"; basename $PWD') == "two\n[]\ntask-B1"


# What it may use


async def test_limits_are_set(run: Run, workspace: Workspace) -> None:
    sh = shell(workspace, cpu_s=11, file_mib=12, open_files=77, memory_mib=300)
    text = await run(sh, "ulimit -t; ulimit -f; ulimit -n; ulimit -v; ulimit -c; umask")
    assert text.split() == ["11", str(12 * 1024), "77", str(300 * 1024), "0", "0022"]
    assert int(await run(sh, "ulimit -u")) >= Limits().processes


async def test_memory_is_limited(run: Run, workspace: Workspace) -> None:
    text = await run(shell(workspace, memory_mib=200), "python3 -c 'bytearray(300 << 20)'")
    assert "MemoryError" in text
    assert text.endswith("(exit code 1)")


async def test_the_size_of_a_file_is_limited(run: Run, workspace: Workspace) -> None:
    await run(shell(workspace, file_mib=1), "head -c 3000000 /dev/zero > big")
    assert (workspace.path / "big").stat().st_size == 2**20


async def test_cpu_time_is_limited(run: Run, workspace: Workspace) -> None:
    text = await run(shell(workspace, cpu_s=1), "while :; do :; done")
    assert text.endswith(("(exit code 137)", "(exit code 152)"))


# That nothing of it stays


async def test_time_is_limited_and_the_text_constant(run: Run, workspace: Workspace) -> None:
    alive = Alive(workspace.path)
    command = "exec 3> alive; echo $$; sleep 1000 & sleep 1000"
    assert await run(shell(workspace, wall_s=0.2), command) == "(timed out: stopped after 0.2 s)"
    alive.wait_for_end()


async def test_a_silent_command_is_stopped_as_well(run: Run, workspace: Workspace) -> None:
    command = "exec >&- 2>&-; sleep 1000"
    assert await run(shell(workspace, wall_s=0.2), command) == "(timed out: stopped after 0.2 s)"


async def test_the_background_ends_with_the_command(run: Run, workspace: Workspace) -> None:
    alive = Alive(workspace.path)
    command = "exec 3> alive; sleep 1000 & echo done"
    assert await run(shell(workspace), command) == "done"
    alive.wait_for_end()


async def test_cancellation_ends_the_command(workspace: Workspace) -> None:
    alive = Alive(workspace.path)
    task = asyncio.create_task(shell(workspace).arun("exec 3> alive; echo . >&3; sleep 1000"))
    await alive.wait_for_start()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    alive.wait_for_end()


async def test_no_file_descriptor_stays(run: Run, workspace: Workspace) -> None:
    sh = shell(workspace)
    await run(sh, "true")
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await run(sh, "echo x")
    assert len(os.listdir("/proc/self/fd")) == len(before)


# The round trip


async def test_the_round_trip_lies_around_the_command(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[float | str] = []

    async def asleep(seconds: float) -> None:
        happened.append(seconds)
        happened.append("made" if (workspace.path / "f").exists() else "not yet")

    def sleep(seconds: float) -> None:
        happened.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", asleep)
    await Shell(workspace, round_trip_s=3).arun("touch f")
    monkeypatch.undo()
    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    monkeypatch.setattr("obsspec_agents.demos.terminal.shell.time", clock)
    Shell(workspace, round_trip_s=5).run("true")
    assert happened == [1.5, "not yet", 1.5, "made", 2.5, 2.5]


# Workspaces


def test_a_workspace_is_made_afresh(tmp_path: Path) -> None:
    first = Workspace.create(tmp_path, "r1", 1, {"old/a": "x"})
    again = Workspace.create(tmp_path, "r1", 1, {"b": "y", "run": "#!/bin/sh\necho hi\n"})
    assert first.path == again.path
    assert sorted(p.name for p in again.path.iterdir()) == ["b", "run"]
    assert os.access(again.path / "run", os.X_OK)
    assert not os.access(again.path / "b", os.X_OK)
    again.remove()
    assert not again.path.exists()


@pytest.mark.parametrize("name", ["", "..", ".bin", "a/b", "a b"])
def test_a_workspace_wants_a_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="can't name a directory"):
        Workspace.create(tmp_path / "base", name, 1, {})


# The tool


async def test_each_rollout_has_its_own_directory(tmp_path: Path) -> None:
    names = [f"r{number}" for number in range(8)]
    shells = {
        name: shell(Workspace.create(tmp_path, name, 0, {"name": f"{name}\n"})) for name in names
    }
    tool = bash_tool(shells)

    async def call(name: str) -> str:
        config = {"configurable": {"rollout_id": name}}
        return await tool.ainvoke({"command": "cat name; echo $ROLLOUT_ID"}, config)

    found = await asyncio.gather(*(call(name) for name in names))
    assert found == [f"{name}\n{name}" for name in names]
    sync = await asyncio.to_thread(
        tool.invoke, {"command": "cat name"}, {"configurable": {"rollout_id": "r5"}}
    )
    assert sync == "r5"


def test_the_tool_shows_only_the_command_to_the_policy() -> None:
    tool = bash_tool({})
    assert tool.name == "bash"
    assert set(tool.tool_call_schema.model_json_schema()["properties"]) == {"command"}


@pytest.mark.parametrize("config", [{}, {"configurable": {"rollout_id": "r9"}}])
async def test_a_rollout_without_a_shell(config: dict[str, dict[str, str]]) -> None:
    with pytest.raises(ConfigurationError, match="no shell for rollout"):
        await bash_tool({}).ainvoke({"command": "true"}, config)


# The sandbox


@pytest.fixture
def bubblewrapped(workspace: Workspace) -> Shell:
    if problem := sandbox.bubblewrap_problem():
        pytest.skip(f"no bubblewrap: {problem}")
    return Shell(workspace, round_trip_s=0, sandbox=Sandbox.BUBBLEWRAP)


async def test_bubblewrap_shows_the_same(
    run: Run, workspace: Workspace, bubblewrapped: Shell
) -> None:
    for command in ("pwd; cat a.txt; echo $HOME", "python3 -c 'print(1); 1/0'", "exit 4", "cat"):
        assert await run(bubblewrapped, command) == await run(shell(workspace), command)


async def test_bubblewrap_hides_the_rest(run: Run, tmp_path: Path, bubblewrapped: Shell) -> None:
    (tmp_path / "secret").write_text("x")
    assert "No such file" in await run(bubblewrapped, f"cat {tmp_path}/secret")
    assert "No such file" in await run(bubblewrapped, "cat /etc/passwd")
    assert "exit code" in await run(bubblewrapped, "echo > /usr/x")
    interfaces = await run(bubblewrapped, "tail -n +3 /proc/net/dev | cut -d: -f1")
    assert interfaces.split() in ([], ["lo"], ["(no", "output)"])
    assert int(await run(bubblewrapped, "ls /proc | grep -c '^[0-9]'")) < 10


async def test_bubblewrap_ends_with_the_command(
    run: Run, workspace: Workspace, bubblewrapped: Shell
) -> None:
    alive = Alive(workspace.path)
    limited = Shell(workspace, Limits(wall_s=0.5), 0, Sandbox.BUBBLEWRAP)
    assert "timed out" in await run(limited, "exec 3> alive; setsid sleep 1000 & sleep 1000")
    alive.wait_for_end()


def test_bubblewrap_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "bubblewrap_problem", lambda: None)
    assert sandbox_or_refuse() is Sandbox.BUBBLEWRAP


def test_a_container_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "bubblewrap_problem", lambda: "bwrap is not installed")
    monkeypatch.setattr(sandbox, "in_container", lambda: True)
    assert sandbox_or_refuse() is Sandbox.CONTAINER


def test_neither_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "bubblewrap_problem", lambda: "bwrap is not installed")
    monkeypatch.setattr(sandbox, "in_container", lambda: False)
    with pytest.raises(SandboxError, match=r"bwrap is not installed.*apt install bubblewrap"):
        sandbox_or_refuse()


def test_what_is_a_container(tmp_path: Path) -> None:
    assert not in_container(tmp_path, {})
    assert in_container(tmp_path, {"container": "podman"})
    assert in_container(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/cgroup").write_text("0::/init.scope\n")
    assert not in_container(tmp_path, {})
    (tmp_path / "proc/1/cgroup").write_text("1:cpu:/docker/3f2a\n")
    assert in_container(tmp_path, {})
    (tmp_path / "proc/1/cgroup").unlink()
    (tmp_path / ".dockerenv").touch()
    assert in_container(tmp_path, {})


def test_a_bubblewrap_that_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    problem = sandbox.bubblewrap_problem.__wrapped__()
    assert problem == "bwrap does not work here (No permissions to create new namespace)"
