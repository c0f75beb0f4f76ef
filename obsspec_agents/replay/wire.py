"""OpenAI's JSON for an answer: the chat completion, and the chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from obsspec_agents.replay.answer import Answer
from obsspec_agents.replay.client import KNOWN, UNKNOWN
from obsspec_agents.replay.request import ChatRequest

__all__ = ["STREAM_END", "completion", "encode", "events"]

STREAM_END = b"data: [DONE]\n\n"

_CREATED = 0
"""An answer is the same whenever it is given, so it has no date."""


def encode(value: Any) -> bytes:
    """JSON, as this server sends it."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def completion(answer: Answer, request: ChatRequest) -> dict[str, Any]:
    """A ``chat.completion``."""
    text = "".join(answer.content)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text if text or not answer.calls else None,
        "refusal": None,
    }
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": "".join(call.arguments)},
            }
            for call in answer.calls
        ]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(answer, request, 0, len(answer.content)),
        "finish_reason": answer.finish_reason,
    }
    return {**_head(answer, "chat.completion"), "choices": [choice], "usage": _usage(answer)}


def events(answer: Answer, request: ChatRequest) -> Iterator[tuple[float, int, bytes]]:
    """A stream, less its end: (seconds after the request, tokens, server-sent event)."""
    head = _head(answer, "chat.completion.chunk")
    if request.include_usage:
        head["usage"] = None

    def event(delta: Any, reason: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return b"data: " + encode({**head, "choices": [choice]}) + b"\n\n"

    role = event({"role": "assistant", "content": ""})
    for piece in answer.pieces():
        logprobs = None
        if piece.first is not None:
            logprobs = _logprobs(answer, request, piece.first, piece.first + piece.tokens)
        yield piece.at, piece.tokens, role + event(piece.delta, logprobs=logprobs)
        role = b""
    end = role + event({}, answer.finish_reason)
    if request.include_usage:
        usage = {**head, "choices": [], "usage": _usage(answer)}
        end += b"data: " + encode(usage) + b"\n\n"
    yield answer.seconds, 0, end


def _head(answer: Answer, kind: str) -> dict[str, Any]:
    return {
        "id": answer.id,
        "object": kind,
        "created": _CREATED,
        "model": answer.model,
        "system_fingerprint": KNOWN if answer.known else UNKNOWN,
    }


def _usage(answer: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.tokens,
        "total_tokens": answer.prompt_tokens + answer.tokens,
    }


def _logprobs(answer: Answer, request: ChatRequest, start: int, end: int) -> dict[str, Any] | None:
    """``choices[].logprobs``; None where none is wanted or none was recorded.

    A recording knows the token that was sampled alone, so that it stands alone in
    ``top_logprobs`` too.
    """
    if request.top_logprobs is None or not answer.logprobs:
        return None
    content = []
    for token, logprob in zip(answer.content[start:end], answer.logprobs[start:end], strict=True):
        own = {
            "token": token,
            "logprob": logprob,
            "bytes": list(token.encode("utf-8", "replace")),
        }
        content.append({**own, "top_logprobs": [own] if request.top_logprobs else []})
    return {"content": content, "refusal": None}
