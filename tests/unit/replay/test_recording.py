"""Reading, writing and refusing recordings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from obsspec_agents.errors import RecordingError
from obsspec_agents.replay import Entry, Pace, Recording, Sample, ToolCall, When
from tests.unit.replay.recordings import GREETING, RECORDING

HEADER = {"format": "obsspec-recording", "version": 1, "model": "policy"}
SAMPLES = [{"content": "hi", "tool_calls": [{"name": "bash", "arguments": {}}]}]
FIRST = {"id": "a", "when": {"user": "u", "after": None}, "samples": SAMPLES}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    sample = Sample(
        content="one two",
        tool_calls=(ToolCall("bash", '{"raw":  1}'),),
        finish_reason="length",
        weight=2,
        pace=Pace(0.5, 7.0),
        chunks=((0.1, "one"), (0.2, " two")),
        logprobs=(-1.0, 0.0),
    )
    exact = Entry("exact", (sample,), request={**GREETING, "temperature": 0.5})
    recording = Recording("policy", (*RECORDING.entries, exact), Pace(0.3, 40.0), "by hand, é")
    path = tmp_path / name
    recording.write(path)
    first = path.read_bytes()
    assert Recording.load(path) == recording == recording.checked()
    recording.write(path)
    assert path.read_bytes() == first
    if name.endswith(".gz"):
        assert first[4:8] == bytes(4), "no date: equal recordings, equal bytes"
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_headers_and_timeouts_of_the_client_are_not_written(tmp_path: Path) -> None:
    secret = {**GREETING, "extra_headers": {"Authorization": "Bearer s3cret"}, "timeout": 3}
    secret["extra_body"] = {"top_k": 5}
    Recording("policy", (Entry("a", (Sample("x"),), request=secret),)).write(tmp_path / "r.jsonl")
    text = (tmp_path / "r.jsonl").read_text()
    assert "s3cret" not in text
    assert "timeout" not in text
    entry = Recording.load(tmp_path / "r.jsonl").entries[0]
    assert entry.request == {**GREETING, "top_k": 5}


def test_the_header_gives_defaults(tmp_path: Path) -> None:
    samples = [{"pace": {"tokens_per_s": 5}}]
    entry = {"id": "a", "request": {"messages": GREETING["messages"]}, "samples": samples}
    recording = Recording.load(
        write(tmp_path / "r", {**HEADER, "pace": {"first_token_s": 2}}, "", entry)
    )
    assert recording.pace == Pace(2.0, 60.0)
    assert recording.entries[0].samples[0].pace == Pace(2.0, 5.0)
    assert recording.entries[0].request == GREETING


def test_a_failed_write_leaves_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "r", "precious")
    bad = Recording("policy", (Entry("a", (), request=GREETING),))
    with pytest.raises(RecordingError, match=r"recording of 'policy', line 2: .*samples"):
        bad.write(path)
    assert path.read_text() == "precious\n"
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_a_file_that_can_not_be_put_in_place_is_not_left(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    with pytest.raises(IsADirectoryError):
        RECORDING.write(tmp_path / "r")
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def entry(**fields: Any) -> dict[str, Any]:
    return {**FIRST, "id": "b", "when": {"user": "v", "after": None}, **fields}


def sample(**fields: Any) -> dict[str, Any]:
    return entry(samples=[fields])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "an object was expected, not '\\[1\\]'"),
        ('{"id": "b", ', "not JSON"),
        (entry(smaples=[]), "unknown entry field \\['smaples'\\]"),
        (entry(id="b c"), "\"id\" is 'b c'"),
        (entry(id="a"), "the id 'a' is that of line 2"),
        (entry(samples=[]), "samples"),
        (entry(request=GREETING), 'either "request" or "when"'),
        ({"id": "b", "samples": SAMPLES}, 'either "request" or "when"'),
        ({"id": "b", "samples": SAMPLES, "request": {"model": "x"}}, "no list of messages"),
        (
            {"id": "b", "samples": SAMPLES, "request": GREETING, "capture": {"n": "(x)"}},
            '"capture" goes with "when"',
        ),
        (entry(when={"user": "u", "after": None}), "'b' answers what line 2 answers"),
        (entry(when={"user": "u", "after": "c"}), "after 'c', which the recording lacks"),
        (entry(when={"user": "u", "after": "a#1"}), "'a' has no sample 1, it has 1"),
        (entry(when={"user": "u", "after": "a#x"}), "names a sample"),
        (entry(when={"user": "v", "after": "a"}), "has another first message"),
        (entry(when={"after": None}), "'user' is None"),
        (entry(capture={"n": "("}), "not a regular expression"),
        (entry(capture={"n": "x"}), "no group"),
        (entry(capture={"seed": "(x)"}), "can't be the name of a capture"),
        (entry(capture={"a-b": "(x)"}), "can't be the name of a capture"),
        (sample(content="{{n}}"), "quotes \\['n'\\]"),
        (sample(tool_calls=[{"name": "x", "arguments": {"a": ["{{n}}"]}}]), "quotes \\['n'\\]"),
        (sample(tool_calls=[{"name": "x", "arguments": 1}]), '"arguments" is 1'),
        (sample(tool_calls=[{"arguments": {}}]), "'name' is None"),
        (sample(finish_reason="done"), "\"finish_reason\" is 'done'"),
        (sample(weight=0), '"weight" is 0'),
        (sample(weight=-1), "'weight' is -1"),
        (sample(weight=True), "'weight' is True"),
        (sample(pace={"tokens_per_s": 0}), '"tokens_per_s" is 0'),
        (sample(content="ab", chunks=[[0, "a"]]), "don't join"),
        (sample(content="a", chunks=["a"]), "not \\[seconds, text\\]"),
        (sample(content="a", chunks=[[-1, "a"]]), "'chunks' is -1"),
        (sample(content="a b", logprobs=[-1]), '1 "logprobs" for a content of 2 tokens'),
        (sample(content="a", logprobs=[1]), "a number of 0 or more"),
        (sample(content="{{seed}}", logprobs=[-1]), "placeholders"),
        ('{"id": NaN}', "NaN is not a JSON number"),
    ],
)
def test_what_can_not_work_is_refused_with_its_line(
    tmp_path: Path, line: Any, message: str
) -> None:
    path = write(tmp_path / "r.jsonl", HEADER, FIRST, line)
    with pytest.raises(RecordingError, match=message) as caught:
        Recording.load(path)
    assert str(caught.value).startswith(f"{path}, line 3: ")


def test_nothing_comes_after_an_answer_without_calls(tmp_path: Path) -> None:
    last = sample(content="the end")
    path = write(tmp_path / "r", HEADER, last, entry(id="c", when={"user": "v", "after": "b"}))
    with pytest.raises(RecordingError, match="line 3: 'b' ends in no tool call"):
        Recording.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: empty"),
        ("hello\n", "line 1: not an obsspec-recording file"),
        ('{"messages": []}\n', "line 1: not an obsspec-recording file"),
        (json.dumps({**HEADER, "version": 2}), "line 1: the recording has version 2.*reads 1"),
        (json.dumps({**HEADER, "model": 3}), 'line 1: the header\'s "model" is 3'),
        (json.dumps({**HEADER, "pase": 3}), "line 1: unknown header field"),
        (json.dumps(HEADER) + '\n{"id": "a", "wh', "line 2: not JSON.*cut off"),
    ],
)
def test_foreign_and_torn_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(RecordingError, match=message):
        Recording.load(path)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no such recording"):
        Recording.load(tmp_path / "none")
    with pytest.raises(RecordingError, match="can't be read"):
        Recording.load(tmp_path)
    (tmp_path / "bytes").write_bytes(json.dumps(HEADER).encode() + b"\n\xff\n")
    with pytest.raises(RecordingError, match="line 2: not UTF-8"):
        Recording.load(tmp_path / "bytes")
    data = gzip.compress(json.dumps(HEADER).encode())
    (tmp_path / "torn.gz").write_bytes(data[:-9])
    with pytest.raises(RecordingError, match="can't be read"):
        Recording.load(tmp_path / "torn.gz")
    (tmp_path / "plain.gz").write_bytes(b"no gzip")
    with pytest.raises(RecordingError, match="can't be read"):
        Recording.load(tmp_path / "plain.gz")


def test_entries_made_in_python_are_checked() -> None:
    orphan = Recording("policy", (Entry("b", (Sample("x"),), when=When("u", "a")),))
    with pytest.raises(RecordingError, match="line 2: entry 'b' comes after 'a'"):
        orphan.checked()
