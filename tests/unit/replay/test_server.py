"""Starting, stopping, and where the endpoint may be reached."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest

from obsspec_agents.errors import ConfigurationError, MissingExtraError, RecordingError
from obsspec_agents.replay import Entry, RecordedEndpoint, Recording, Sample, When
from tests.unit.replay.recordings import GREETING, RECORDING, Gate


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read()


def test_models_and_health() -> None:
    other = Entry("other", (Sample("x"),), request={**GREETING, "model": "world"})
    recording = Recording("policy", (*RECORDING.entries, other))
    with RecordedEndpoint(recording).threaded() as endpoint:
        assert endpoint.url == f"{endpoint.root}/v1"
        assert get(f"{endpoint.root}/health") == b""
        models = json.loads(get(f"{endpoint.url}/models"))
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]] == ["policy", "world"]


def test_a_thread_is_gone_with_its_context() -> None:
    before = threading.active_count()
    with RecordedEndpoint(RECORDING).threaded() as endpoint:
        assert threading.active_count() == before + 1
        address = endpoint.root.removeprefix("http://").split(":")
    assert threading.active_count() == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address[0], int(address[1])))


@pytest.mark.parametrize("stream", [False, True])
async def test_stopping_ends_open_answers(stream: bool) -> None:
    gate = Gate()
    endpoint = RecordedEndpoint(RECORDING, sleep=gate)
    async with openai.AsyncOpenAI(base_url="http://x", api_key="none", max_retries=0) as client:
        async with endpoint:
            client.base_url = endpoint.url

            async def ask() -> None:
                answer = await client.chat.completions.create(**GREETING, stream=stream)
                async for _ in answer:  # type: ignore[union-attr]
                    pass

            asking = asyncio.ensure_future(ask())
            await gate.waiting.wait()
        with pytest.raises(Exception, match=r"[Cc]onnection|closed|read") as caught:
            await asking
    assert not isinstance(caught.value, openai.APIStatusError)
    assert (endpoint.aborted, endpoint.running, gate.cancelled) == (1, 0, 1)


async def test_nothing_is_left_on_the_loop() -> None:
    before = asyncio.all_tasks()
    async with (
        RecordedEndpoint(RECORDING, pace=0) as endpoint,
        openai.AsyncOpenAI(base_url=endpoint.url, api_key="none") as client,
    ):
        await client.chat.completions.create(**GREETING)
        socket.create_connection(("127.0.0.1", int(endpoint.root.rsplit(":")[-1]))).close()
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_made_while_stopping_is_closed(turns: int) -> None:
    async with RecordedEndpoint(RECORDING) as endpoint:
        client = socket.create_connection(("127.0.0.1", int(endpoint.root.rsplit(":")[-1])))
        for _ in range(turns):
            await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    with client:
        client.setblocking(False)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


async def test_answers_are_sent_without_delay() -> None:
    async with (
        RecordedEndpoint(RECORDING, pace=0) as endpoint,
        openai.AsyncOpenAI(base_url=endpoint.url, api_key="none") as client,
    ):
        await client.chat.completions.create(**GREETING)
        assert endpoint._running is not None
        (connection,) = endpoint._running.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_the_signal_handlers_stay_as_they_are() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with RecordedEndpoint(RECORDING):
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org", "::"])
def test_other_machines_stay_out(host: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{host!r} can be reached.*allow_remote=True"):
        RecordedEndpoint(RECORDING, host=host)
    RecordedEndpoint(RECORDING, host=host, allow_remote=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pace": -1}, "pace is -1"),
        ({"pace": float("nan")}, "pace is nan"),
        ({"unknown": "guess"}, "unknown is 'guess'"),
    ],
)
def test_parameters_that_can_not_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RecordedEndpoint(RECORDING, **settings)


def test_a_port_that_is_taken() -> None:
    with RecordedEndpoint(RECORDING).threaded() as endpoint:
        port = int(endpoint.root.rsplit(":")[-1])
        with (
            pytest.raises(ConfigurationError, match=f"port {port}: .*port 0 takes a free one"),
            RecordedEndpoint(RECORDING, port=port).threaded(),
        ):
            pass


def test_an_endpoint_starts_once() -> None:
    endpoint = RecordedEndpoint(RECORDING)
    with pytest.raises(ConfigurationError, match="before it is started"):
        _ = endpoint.url
    with endpoint.threaded():
        pass
    with pytest.raises(ConfigurationError, match="make another one"), endpoint.threaded():
        pass


def test_a_broken_recording_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("{}")
    with pytest.raises(RecordingError, match="line 1"):
        RecordedEndpoint(tmp_path / "r")
    orphan = Recording("policy", (Entry("b", (Sample("x"),), when=When("u", "a")),))
    with pytest.raises(RecordingError, match="line 2"):
        RecordedEndpoint(orphan)


@pytest.mark.parametrize("package", ["uvicorn", "starlette", "httptools"])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package}.*obsspec-agents\[replay\]"):
        RecordedEndpoint(RECORDING)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path, number: int) -> None:
    path = tmp_path / "r.jsonl.gz"
    RECORDING.write(path)
    command = [sys.executable, "-m", "obsspec_agents.replay", str(path), "--pace", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().strip()
        assert json.loads(get(f"{url}/models"))["data"][0]["id"] == "policy"
        process.send_signal(number)
        assert process.wait(timeout=30) == 0
        assert process.stderr.read() == ""


def test_the_command_names_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "obsspec_agents.replay", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "no such recording" in done.stderr
    assert "Traceback" not in done.stderr
