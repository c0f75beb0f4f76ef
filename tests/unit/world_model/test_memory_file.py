"""The file behind a recall memory."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from obsspec_agents.errors import ConfigurationError
from obsspec_agents.observation import Observation
from obsspec_agents.world_model import PendingCall, RecallWorldModel, RunInfo, Scope
from tests.unit.world_model.transcripts import pending, returned

CALL = pending(task="t")


def recalled(model: RecallWorldModel, call: PendingCall = CALL) -> list[tuple[object, float]]:
    return [(p.observation, p.probability) for p in model.predict(call)]


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "obsspec-memory"]


def bytes_of(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "memory.db"


def test_what_was_observed_is_there_after_reopening(path: Path) -> None:
    first = RecallWorldModel(Scope.TASK, path)
    for text in ("a", "a", "b"):
        first.observe(CALL, returned(text))
    first.observe(CALL, Observation("no such file", "error"))
    expected = recalled(first)
    first.close()
    second = RecallWorldModel(Scope.TASK, path)
    assert recalled(second) == expected
    assert recalled(second, pending(task="t", after=[("x", "y")])) == expected
    assert not recalled(second, pending(task="u"))
    second.observe(CALL, returned("b"))
    second.close()
    third = RecallWorldModel("task", path)
    assert recalled(third)[0] == (returned("b"), 2 / 6)


@pytest.mark.parametrize("text", ["", "\ud800 lone", "nul\0inside", "line\r\n", "é漢🙂"])
def test_any_text_survives(path: Path, text: str) -> None:
    model = RecallWorldModel(Scope.ALL, path)
    model.observe(CALL, returned(text))
    model.close()
    assert recalled(RecallWorldModel(Scope.ALL, path)) == [(returned(text), 1 / 2)]


def test_another_scope_finds_nothing(path: Path) -> None:
    model = RecallWorldModel(Scope.TASK, path)
    model.observe(CALL, returned("x"))
    model.close()
    assert not recalled(RecallWorldModel(Scope.ALL, path))
    assert not recalled(RecallWorldModel(Scope.GROUP, path), pending(group="t"))


def test_secrets_arguments_and_prompts_are_not_in_the_file(path: Path) -> None:
    model = RecallWorldModel(Scope.ALL, path)
    call = pending("cat .env", human="My prompt", after=[("earlier command", "earlier result")])
    model.observe(call, returned("kept"))
    model.observe(call, returned("PASSWORD=hunter2"))
    model.flush()
    written = bytes_of(path.parent)
    assert b"kept" in written
    for private in (b"hunter2", b"cat .env", b"My prompt", b"earlier"):
        assert private not in written
    assert recalled(model, call)[0] == (returned("PASSWORD=hunter2"), 1 / 3)
    model.close()
    assert recalled(RecallWorldModel(Scope.ALL, path), call) == [(returned("kept"), 1 / 3)]


def test_what_only_one_run_may_see_is_not_in_the_file(path: Path) -> None:
    model = RecallWorldModel(Scope.TASK, path)
    model.observe(pending(), returned("private"))
    model.observe(CALL, returned("shared"))
    model.close()
    assert b"shared" in bytes_of(path.parent)
    assert b"private" not in bytes_of(path.parent)


def test_the_writer_starts_with_the_first_sighting_and_is_joined(path: Path) -> None:
    model = RecallWorldModel(Scope.ALL, path)
    model.predict(CALL)
    assert not writers()
    model.observe(CALL, returned("x"))
    assert len(writers()) == 1
    model.close()
    assert not writers()
    model.close()
    model.observe(CALL, returned("y"))
    assert not writers()
    assert len(recalled(model)) == 2
    assert not list(path.parent.glob("*-wal"))


def test_a_model_that_nobody_closed_is_closed_with_its_last_reference(path: Path) -> None:
    model = RecallWorldModel(Scope.ALL, path)
    model.observe(CALL, returned("x"))
    del model
    assert not writers()
    assert recalled(RecallWorldModel(Scope.ALL, path)) == [(returned("x"), 1 / 2)]


def test_a_process_that_just_ends_has_saved_all(path: Path) -> None:
    _python(path, "model.observe(CALL, returned('x'))")
    assert recalled(RecallWorldModel(Scope.ALL, path)) == [(returned("x"), 1 / 2)]


def test_a_killed_process_leaves_a_file_that_loads(path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT + _ENDLESS, str(path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    flushed = int(process.stdout.readline())
    process.kill()
    process.communicate()
    model = RecallWorldModel(Scope.ALL, path, max_entries=1_000_000)
    for number in range(flushed):
        assert recalled(model, pending(str(number))) == [(returned(f"x{number}"), 1 / 2)]
    model.observe(CALL, returned("y"))
    model.close()


@pytest.mark.parametrize("lost", [1, 100, 5000])
def test_a_half_written_log_loads_up_to_the_last_whole_batch(
    path: Path, tmp_path: Path, lost: int
) -> None:
    model = RecallWorldModel(Scope.ALL, path)
    model.observe(CALL, returned("first"))
    model.flush()
    model.observe(CALL, returned("second" * 1000))
    model.flush()
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    log = Path(f"{path}-wal").read_bytes()
    Path(f"{copy}-wal").write_bytes(log[:-lost])
    model.close()
    reopened = RecallWorldModel(Scope.ALL, copy)
    assert recalled(reopened) == [(returned("first"), 1 / 2)]
    reopened.observe(CALL, returned("third"))
    reopened.close()


def test_two_models_write_to_one_file(path: Path) -> None:
    models = [RecallWorldModel(Scope.ALL, path) for _ in range(2)]
    for _ in range(3):
        for model in models:
            model.observe(CALL, returned("x"))
            model.flush()
    for model in models:
        model.close()
    assert recalled(RecallWorldModel(Scope.ALL, path)) == [(returned("x"), 6 / 7)]


def test_threads_lose_no_sighting(path: Path) -> None:
    model = RecallWorldModel(Scope.ALL, path)

    def work() -> None:
        for _ in range(100):
            model.observe(CALL, returned("x"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    model.close()
    assert recalled(RecallWorldModel(Scope.ALL, path)) == [(returned("x"), 400 / 401)]


def test_the_file_is_cut_to_the_size_of_the_memory(path: Path) -> None:
    model = RecallWorldModel(Scope.ALL, path, max_entries=4)
    for number in range(20):
        model.observe(pending("volatile"), returned(f"v{number}"))
    for number in range(9):
        model.observe(pending(str(number)), returned(f"x{number}"))
    model.observe(pending("volatile"), returned("v19"))
    expected = recalled(model, pending("volatile"))
    model.close()
    connection = sqlite3.connect(path)
    (keys,) = connection.execute("SELECT count(DISTINCT key) FROM sighting").fetchone()
    (kept,) = connection.execute("SELECT count(*) FROM observation").fetchone()
    connection.close()
    assert (keys, kept) == (4, 9)
    reopened = RecallWorldModel(Scope.ALL, path)
    assert recalled(reopened, pending("volatile"))[0] == (returned("v19"), 2 / 22)
    assert expected[0] == (returned("v19"), 1 / 2)  # forgotten in between, so learned anew
    assert recalled(reopened, pending("8"))
    assert not recalled(reopened, pending("0"))


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("These are my notes.\n" * 100)
    with pytest.raises(ConfigurationError, match=r"memory\.db.*not a database"):
        RecallWorldModel(Scope.ALL, path)
    assert path.read_text().startswith("These are my notes.")


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (x)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=r"memory\.db.*another program"):
        RecallWorldModel(Scope.ALL, path)
    assert path.read_bytes() == before


def test_another_format_version_is_refused(path: Path) -> None:
    RecallWorldModel(Scope.ALL, path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(ConfigurationError, match=r"memory\.db.*version 2, this release reads 1"):
        RecallWorldModel(Scope.ALL, path)


def test_a_damaged_file_is_refused(path: Path) -> None:
    model = RecallWorldModel(Scope.ALL, path)
    model.observe(CALL, returned("x"))
    model.close()
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM observation")
    connection.commit()
    connection.close()
    with pytest.raises(ConfigurationError, match=r"memory\.db.*damaged"):
        RecallWorldModel(Scope.ALL, path)


def test_a_path_that_can_not_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        RecallWorldModel(Scope.ALL, tmp_path)


def test_what_could_not_be_written_is_told_at_the_end(path: Path) -> None:
    model = RecallWorldModel(Scope.ALL, path)
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE sighting")
    connection.commit()
    connection.close()
    model.observe(CALL, returned("x"))
    model.flush()
    assert recalled(model)
    with pytest.warns(RuntimeWarning, match=r"not saved to .*memory\.db.*no such table"):
        model.close()
    assert not writers()


def test_learning_from_a_log_is_saved(path: Path) -> None:
    model = RecallWorldModel(Scope.TASK, path)
    model.learn([*CALL.messages, returned("x").message(tool_call_id="call-0", name="bash")],
                RunInfo("log", task="t"))  # fmt: skip
    model.close()
    assert recalled(RecallWorldModel(Scope.TASK, path)) == [(returned("x"), 1 / 2)]


_SCRIPT = """
import sys
from obsspec_agents.world_model import RecallWorldModel, Scope
from tests.unit.world_model.transcripts import pending, returned
CALL = pending(task="t")
model = RecallWorldModel(Scope.ALL, sys.argv[1])
"""

_ENDLESS = """
number = 0
while True:
    for _ in range(50):
        model.observe(pending(str(number)), returned(f"x{number}"))
        number += 1
    if number == 100:
        model.flush()
        print(number, flush=True)
"""


def _python(path: Path, code: str) -> None:
    subprocess.run([sys.executable, "-c", _SCRIPT + code, str(path)], check=True, timeout=60)
