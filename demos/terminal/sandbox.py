"""Where commands that a real model wrote may run: bubblewrap, or a container.

The demo's own commands are known and run in a plain directory with limits. A model's are
not: they get a private file system without network, or the demo does not start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path

from obsspec_agents.errors import SandboxError

__all__ = ["Sandbox", "bubblewrap_argv", "in_container", "interpreter", "sandbox_or_refuse"]

_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")


class Sandbox(StrEnum):
    """What keeps a command away from the rest of the machine."""

    NONE = "none"
    """Nothing but the shell's limits: for commands that we wrote."""
    BUBBLEWRAP = "bubblewrap"
    """A private file system, process table and network of one command."""
    CONTAINER = "container"
    """The demo as a whole runs in a container, so its commands do too."""


def interpreter() -> Path:
    """The Python that runs the demo, outside any virtual environment: standard library only."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def bubblewrap_argv(workspace: Path, bin_dir: Path, env: Mapping[str, str]) -> list[str]:
    """The head of a command line that runs the rest of it inside bubblewrap.

    Inside, ``/workspace`` is the workspace and the only place (besides ``/tmp``) that can be
    written; ``/usr`` and the interpreter are read-only; there is no network; only ``env`` is
    set. Everything ends with the process that started it.
    """
    argv = [
        shutil.which("bwrap") or "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
    ]
    argv += ["--cap-drop", "ALL", "--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM:
        path = Path(name)
        if path.is_symlink():
            argv += ["--symlink", os.readlink(path), name]
        elif path.is_dir():
            argv += ["--ro-bind", name, name]
    for name in _ETC:
        argv += ["--ro-bind-try", name, name]
    prefix = interpreter().parent.parent
    if not prefix.is_relative_to("/usr"):
        argv += ["--ro-bind", str(prefix), str(prefix)]
    argv += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # noqa: S108 - inside
    argv += ["--ro-bind", str(bin_dir), "/opt/bin", "--bind", str(workspace), "/workspace"]
    for name, value in env.items():
        argv += ["--setenv", name, value]
    return [*argv, "--chdir", "/workspace", "--"]


@cache
def bubblewrap_problem() -> str | None:
    """Why bubblewrap can't be used on this machine; None where it works."""
    if shutil.which("bwrap") is None:
        return "bwrap is not installed"
    scratch = Path("/usr/bin")  # any directory serves: the trial writes nothing
    argv = bubblewrap_argv(scratch, scratch, {"PATH": "/usr/bin:/bin"})
    try:
        trial = subprocess.run(
            [*argv, "true"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap does not start ({error})"
    if trial.returncode != 0:
        return f"bwrap does not work here ({trial.stderr.strip() or trial.returncode})"
    return None


def in_container(root: Path = Path("/"), env: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in a container (Docker, Podman, Kubernetes, LXC, nspawn)."""
    if any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv")):
        return True
    if env.get("container") or env.get("KUBERNETES_SERVICE_HOST"):
        return True
    try:
        groups = (root / "proc/1/cgroup").read_text(encoding="utf-8")
    except OSError:
        return False
    return any(mark in groups for mark in ("docker", "kubepods", "containerd", "lxc", "libpod"))


def sandbox_or_refuse() -> Sandbox:
    """The way to run a real model's commands safely on this machine.

    Raises:
        SandboxError: there is none; the message says what to install.
    """
    problem = bubblewrap_problem()
    if problem is None:
        return Sandbox.BUBBLEWRAP
    if in_container():
        return Sandbox.CONTAINER
    raise SandboxError(
        f"a real model's commands run only inside bubblewrap or a container: {problem}, and "
        "this is not a container. Install it (Debian, Ubuntu: apt install bubblewrap; Fedora: "
        "dnf install bubblewrap) and allow unprivileged user namespaces, or run this command "
        "in a container."
    )
