"""A chat completions request as it comes over the wire: checked, and in canonical form.

Two requests are the same when their canonical forms are: the JSON payload, less the fields
that only say how the answer is to be carried.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

__all__ = ["CLIENT_FIELDS", "TRANSPORT_FIELDS", "ChatRequest", "RequestError", "canonical"]

TRANSPORT_FIELDS = frozenset(
    {"priority", "request_id", "cache_salt", "user", "seed", "stream", "stream_options"}
)
"""Fields that a recording is not matched on. The seed is: it chooses among the samples."""

CLIENT_FIELDS = frozenset({"extra_headers", "extra_query", "timeout"})
"""Arguments of the ``openai`` client that are never part of a payload."""

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_MAX_TOP_LOGPROBS = 20


class RequestError(Exception):
    """A request that gets an error for an answer, in OpenAI's shape."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
        code: str | int | None = None,
        **more: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {
            "error": {
                "message": message,
                "type": kind,
                "param": param,
                "code": status if code is None else code,
                **more,
            }
        }


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked request."""

    payload: Mapping[str, Any] = field(repr=False)
    canonical: str = field(repr=False)
    model: str
    seed: str
    """In decimal; empty where the request has none."""
    stream: bool
    include_usage: bool
    max_tokens: int | None
    top_logprobs: int | None
    """None: no log-probabilities are wanted; else how many alternatives of each token."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the payload."""
        messages: list[dict[str, Any]] = self.payload["messages"]
        return messages

    @classmethod
    def parse(cls, body: bytes) -> ChatRequest:
        """The request in a body.

        Raises:
            RequestError: the body is no JSON, or no request that this server answers.
        """
        try:
            value = json.loads(body, parse_constant=_not_finite)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise RequestError("the body is not a JSON object")
        payload = wire_form(value)
        _check_messages(payload)
        if not isinstance(model := payload.get("model"), str):
            _refuse("model", model, "the name of a model")
        if payload.get("n", 1) not in (1, None):
            _refuse("n", payload["n"], "1: this server gives one choice a request")
        stream = _flag(payload, "stream")
        options = payload.get("stream_options")
        if options is not None and not isinstance(options, dict):
            _refuse("stream_options", options, "an object")
        seed = _integer(payload, "seed")
        return cls(
            payload=payload,
            canonical=canonical(payload),
            model=model,
            seed="" if seed is None else str(seed),
            stream=stream,
            include_usage=stream and options is not None and _flag(options, "include_usage"),
            max_tokens=_max_tokens(payload),
            top_logprobs=_top_logprobs(payload),
        )


def wire_form(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The payload as the ``openai`` client sends it: ``extra_body`` merged, headers left out."""
    form = {name: value for name, value in payload.items() if name not in CLIENT_FIELDS}
    extra = form.pop("extra_body", None)
    if isinstance(extra, Mapping):
        form.update(extra)
    return form


def canonical(payload: Mapping[str, Any]) -> str:
    """All of a payload in wire form that determines the answer, but the seed. As JSON, ASCII."""
    kept = {
        # 1.0 and 1 are the same JSON number, and clients differ in which one they write.
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in payload.items()
        if name not in TRANSPORT_FIELDS
    }
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))


def message_text(message: Mapping[str, Any]) -> str:
    """The text of a message: its content, or that of its text parts one after another."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(
            part["text"]
            for part in content
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return content if isinstance(content, str) else ""


def _refuse(name: str, value: Any, expected: str) -> NoReturn:
    shown = f"{value!r}"[:80]
    raise RequestError(f"{name!r} is {shown}: expected {expected}", param=name)


def _not_finite(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _check_messages(payload: Mapping[str, Any]) -> None:
    messages = payload.get("messages")
    if not isinstance(messages, list) or not messages:
        _refuse("messages", messages, "a list of one or more messages")
    for index, message in enumerate(messages):
        name = f"messages[{index}]"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            _refuse(name, message, f"an object whose role is one of {', '.join(_ROLES)}")
        if not isinstance(content := message.get("content"), (str, list, type(None))):
            _refuse(f"{name}.content", content, "a string, a list of parts or null")
        calls = message.get("tool_calls")
        if calls is not None and not (
            isinstance(calls, list) and all(isinstance(call, dict) for call in calls)
        ):
            _refuse(f"{name}.tool_calls", calls, "a list of tool calls")


def _flag(payload: Mapping[str, Any], name: str) -> bool:
    value = payload.get(name)
    if not isinstance(value, (bool, type(None))):
        _refuse(name, value, "true or false")
    return bool(value)


def _integer(payload: Mapping[str, Any], name: str) -> int | None:
    value = payload.get(name)
    if value is not None and type(value) is not int:
        _refuse(name, value, "an integer")
    return value


def _max_tokens(payload: Mapping[str, Any]) -> int | None:
    limits = []
    for name in ("max_completion_tokens", "max_tokens"):
        limit = _integer(payload, name)
        if limit is not None:
            if limit < 1:
                _refuse(name, limit, "1 or more")
            limits.append(limit)
    return min(limits, default=None)


def _top_logprobs(payload: Mapping[str, Any]) -> int | None:
    wanted = _flag(payload, "logprobs")
    top = _integer(payload, "top_logprobs")
    if top is not None and not 0 <= top <= _MAX_TOP_LOGPROBS:
        _refuse("top_logprobs", top, f"0 to {_MAX_TOP_LOGPROBS}")
    if top and not wanted:
        _refuse("top_logprobs", top, "logprobs to be true with it")
    return (top or 0) if wanted else None
