"""The lines of a recording file: JSON in, checked objects out, and back.

Whatever can't work is refused here, with the number of its line, so that a server never
meets it later: an unknown field (a typing error, most likely), an entry that nothing leads
to, a placeholder that nothing fills, chunks that don't join to the content.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from obsspec_agents.errors import RecordingError
from obsspec_agents.replay.entry import (
    SEED,
    Entry,
    Header,
    Pace,
    Sample,
    ToolCall,
    When,
    placeholders,
)
from obsspec_agents.replay.request import canonical, wire_form
from obsspec_agents.replay.tokens import cut

__all__ = ["FORMAT", "VERSION", "dump", "parse"]

FORMAT = "obsspec-recording"
VERSION = 1

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter")


class _Problem(Exception):
    """What is wrong with the line that is being read."""


def parse(lines: Iterable[str], *, source: str) -> tuple[Header, tuple[Entry, ...]]:
    """The header and the entries that these lines hold.

    Args:
        lines: header first; empty lines are skipped.
        source: what errors call it, such as the file's path.

    Raises:
        RecordingError: naming source and line.
    """
    number = 0
    header: Header | None = None
    entries: list[Entry] = []
    at: dict[str, int] = {}
    try:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            value = _object(line, header is None)
            if header is None:
                header = _header(value)
                continue
            entry = _entry(value, header)
            if entry.slug in at:
                _refuse(f"the id {entry.id!r} is that of line {at[entry.slug]} ('/' counts as '.')")
            at[entry.slug] = number
            entries.append(entry)
        if header is None:
            _refuse(f"empty, where the header of an {FORMAT} file should be")
        by_id = {entry.id: entry for entry in entries}
        seen: dict[object, int] = {}
        for entry in entries:
            number = at[entry.slug]
            _check_unique(entry, seen, number)
            _check_after(entry, by_id)
    except _Problem as problem:
        raise RecordingError(f"{source}, line {max(number, 1)}: {problem}") from None
    return header, tuple(entries)


def _refuse(problem: str) -> NoReturn:
    raise _Problem(problem)


def _object(line: str, first: bool) -> dict[str, Any]:
    try:
        value = json.loads(line, parse_constant=_not_finite)
    except (ValueError, RecursionError) as error:
        if first:
            _refuse(f"not an {FORMAT} file")
        torn = "" if line.endswith("\n") else "; the file ends here, it was probably cut off"
        _refuse(f"not JSON ({error}){torn}")
    if not isinstance(value, dict):
        _refuse(f"an object was expected, not {line.strip()[:40]!r}")
    return value


def _not_finite(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _header(value: dict[str, Any]) -> Header:
    if value.get("format") != FORMAT:
        _refuse(f'not an {FORMAT} file: its header has no "format": "{FORMAT}"')
    if value.get("version") != VERSION:
        _refuse(
            f"the recording has version {value.get('version')!r}, this library reads {VERSION}: "
            "use the version of obsspec-agents that wrote it"
        )
    _fields(value, "header", {"format", "version", "model", "pace", "note"})
    model = value.get("model")
    if not isinstance(model, str) or not model:
        _refuse(f'the header\'s "model" is {model!r}, not a name')
    pace = _pace(value.get("pace", {}), Pace())
    return Header(model, pace, _text(value.get("note", ""), "note"))


def _entry(value: dict[str, Any], header: Header) -> Entry:
    _fields(value, "entry", {"id", "request", "when", "capture", "samples"})
    name = value.get("id")
    if not isinstance(name, str) or not _ID.fullmatch(name):
        _refuse(f'"id" is {name!r}; ids are made of letters, digits, ".", "_", "/" and "-"')
    if ("request" in value) == ("when" in value):
        _refuse(f'entry {name!r} needs either "request" or "when"')
    samples = value.get("samples")
    if not isinstance(samples, list) or not samples:
        _refuse(f'entry {name!r} needs "samples": a list of one or more')
    parsed = tuple(_sample(sample, header.pace) for sample in samples)
    if "request" in value:
        if "capture" in value:
            _refuse(f'entry {name!r}: "capture" goes with "when", not with "request"')
        return Entry(name, parsed, request=_request(value["request"], header.model))
    capture = _capture(value.get("capture", {}))
    for sample in parsed:
        if unfilled := _quoted(sample) - set(capture) - {SEED}:
            _refuse(f"entry {name!r} quotes {sorted(unfilled)}, which its capture does not name")
    return Entry(name, parsed, when=_when(value["when"]), capture=capture)


def _request(value: Any, model: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        _refuse('"request" is not a chat completions payload: it has no list of messages')
    return {"model": model, **wire_form(value)}


def _when(value: Any) -> When:
    if not isinstance(value, dict):
        _refuse('"when" must be an object with "user" and "after"')
    _fields(value, "when", {"user", "after"})
    user = _text(value.get("user"), "user")
    after = value.get("after")
    if after is None:
        return When(user)
    name, hash_, sample = _text(after, "after").partition("#")
    if hash_ and not sample.isdecimal():
        _refuse(f'"after" is {after!r}; "<entry id>#<sample index>" names a sample')
    return When(user, name, int(sample) if hash_ else None)


def _capture(value: Any) -> dict[str, re.Pattern[str]]:
    if not isinstance(value, dict):
        _refuse('"capture" must be an object of names and regular expressions')
    patterns = {}
    for name, pattern in value.items():
        if name == SEED or placeholders("{{" + name + "}}") != {name}:
            _refuse(f"{name!r} can't be the name of a capture")
        try:
            patterns[name] = re.compile(_text(pattern, name))
        except re.error as error:
            _refuse(f"capture {name!r}: {pattern!r} is not a regular expression ({error})")
        if not patterns[name].groups:
            _refuse(f"capture {name!r}: {pattern!r} has no group to take the value from")
    return patterns


def _sample(value: Any, pace: Pace) -> Sample:
    if not isinstance(value, dict):
        _refuse(f"a sample is an object, not {value!r}")
    _fields(value, "sample", set(Sample.__slots__))
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list):
        _refuse('"tool_calls" must be a list')
    reason = value.get("finish_reason")
    if reason is not None and reason not in _FINISH_REASONS:
        _refuse(f'"finish_reason" is {reason!r}, not one of {", ".join(_FINISH_REASONS)}')
    weight = _number(value.get("weight", 1), "weight")
    if not weight:
        _refuse('"weight" is 0: leave the sample out instead')
    sample = Sample(
        content=_text(value.get("content") or "", "content"),
        tool_calls=tuple(_call(call) for call in calls),
        finish_reason=reason,
        weight=weight,
        pace=_pace(value["pace"], pace) if value.get("pace") is not None else None,
        chunks=_chunks(value.get("chunks") or []),
        logprobs=_logprobs(value.get("logprobs") or []),
    )
    _check_stream(sample)
    return sample


def _check_stream(sample: Sample) -> None:
    if not (sample.chunks or sample.logprobs):
        return
    if placeholders(sample.content):
        _refuse('"chunks" and "logprobs" can\'t go with content that has placeholders')
    texts = [text for _, text in sample.chunks] or [sample.content]
    if "".join(texts) != sample.content:
        _refuse('"chunks" don\'t join to "content"')
    tokens = sum(len(cut(text)) for text in texts)
    if sample.logprobs and len(sample.logprobs) != tokens:
        _refuse(f'{len(sample.logprobs)} "logprobs" for a content of {tokens} tokens')


def _call(value: Any) -> ToolCall:
    if not isinstance(value, dict):
        _refuse(f"a tool call is an object, not {value!r}")
    _fields(value, "tool call", {"name", "arguments"})
    arguments = value.get("arguments", {})
    if not isinstance(arguments, (dict, str)):
        _refuse(f'"arguments" is {arguments!r}: an object or a string of JSON was expected')
    if not (name := _text(value.get("name"), "name")):
        _refuse("a tool call has an empty name")
    return ToolCall(name, arguments)


def _chunks(value: Any) -> tuple[tuple[float, str], ...]:
    if not isinstance(value, list):
        _refuse('"chunks" must be a list of [seconds, text]')
    for chunk in value:
        if not isinstance(chunk, list) or len(chunk) != len(("seconds", "text")):
            _refuse(f'"chunks" holds {chunk!r}, not [seconds, text]')
    return tuple((_number(seconds, "chunks"), _text(text, "chunks")) for seconds, text in value)


def _logprobs(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list):
        _refuse('"logprobs" must be a list of numbers')
    return tuple(-_number(-p if type(p) in (int, float) else p, "-logprobs") for p in value)


def _pace(value: Any, default: Pace) -> Pace:
    if not isinstance(value, dict):
        _refuse('"pace" must be an object')
    _fields(value, "pace", {"first_token_s", "tokens_per_s"})
    first = _number(value.get("first_token_s", default.first_token_s), "first_token_s")
    rate = _number(value.get("tokens_per_s", default.tokens_per_s), "tokens_per_s")
    if not rate:
        _refuse('"tokens_per_s" is 0: no answer would ever end')
    return Pace(first, rate)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        _refuse(f"{name!r} is {value!r}: a string was expected")
    return value


def _number(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        _refuse(f"{name!r} is {value!r}: a number of 0 or more was expected")
    return float(value)


def _fields(value: Mapping[str, Any], what: str, known: set[str]) -> None:
    if unknown := value.keys() - known:
        _refuse(f"unknown {what} field {sorted(unknown)}; known are {sorted(known)}")


def _quoted(sample: Sample) -> set[str]:
    arguments = [
        call.arguments for call in sample.tool_calls if not isinstance(call.arguments, str)
    ]
    return placeholders(sample.content) | placeholders(json.dumps(arguments))


def _check_unique(entry: Entry, seen: dict[object, int], number: int) -> None:
    key = entry.when if entry.request is None else canonical(entry.request)
    if (other := seen.setdefault(key, number)) != number:
        _refuse(f"entry {entry.id!r} answers what line {other} answers: make them samples of one")


def _check_after(entry: Entry, by_id: Mapping[str, Entry]) -> None:
    when = entry.when
    if when is None or when.after is None:
        return
    before = by_id.get(when.after)
    if before is None:
        _refuse(f"entry {entry.id!r} comes after {when.after!r}, which the recording lacks")
    if when.sample is not None and when.sample >= len(before.samples):
        _refuse(f"{when.after!r} has no sample {when.sample}, it has {len(before.samples)}")
    if before.when is not None and before.when.user != when.user:
        _refuse(f"entry {entry.id!r} comes after {when.after!r}, which has another first message")
    if not any(sample.tool_calls for sample in _before(before, when)):
        _refuse(f"{when.after!r} ends in no tool call, so that nothing can come after it")


def _before(entry: Entry, when: When) -> Iterable[Sample]:
    return entry.samples if when.sample is None else (entry.samples[when.sample],)


def dump(header: Header, entries: Iterable[Entry]) -> Iterator[str]:
    """The lines of a recording, without line ends. What has its default is left out."""
    first: dict[str, Any] = {"format": FORMAT, "version": VERSION, "model": header.model}
    first["pace"] = _dump_pace(header.pace)
    if header.note:
        first["note"] = header.note
    yield json.dumps(first)
    for entry in entries:
        value: dict[str, Any] = {"id": entry.id}
        if entry.request is not None:
            value["request"] = wire_form(entry.request)
        if entry.when is not None:
            value["when"] = _dump_when(entry.when)
        if entry.capture:
            value["capture"] = {name: found.pattern for name, found in entry.capture.items()}
        value["samples"] = [_dump_sample(sample) for sample in entry.samples]
        yield json.dumps(value)


def _dump_pace(pace: Pace) -> dict[str, float]:
    return {"first_token_s": pace.first_token_s, "tokens_per_s": pace.tokens_per_s}


def _dump_when(when: When) -> dict[str, Any]:
    after = when.after if when.sample is None else f"{when.after}#{when.sample}"
    return {"user": when.user, "after": after}


def _dump_sample(sample: Sample) -> dict[str, Any]:
    value: dict[str, Any] = {"content": sample.content}
    if sample.tool_calls:
        value["tool_calls"] = [
            {"name": call.name, "arguments": call.arguments} for call in sample.tool_calls
        ]
    if sample.finish_reason is not None:
        value["finish_reason"] = sample.finish_reason
    if sample.weight != 1:
        value["weight"] = sample.weight
    if sample.pace is not None:
        value["pace"] = _dump_pace(sample.pace)
    if sample.chunks:
        value["chunks"] = [list(chunk) for chunk in sample.chunks]
    if sample.logprobs:
        value["logprobs"] = list(sample.logprobs)
    return value
