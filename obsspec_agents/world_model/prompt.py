"""How a language model is asked for an observation, and how its answer is read.

One pure function makes the prompt, for serving and for fine-tuning alike; one pair of
functions turns an observation into the answer to learn and an answer into an observation.

The prompt is a chat: a constant system text with the tool's description, then a user and
an assistant message for each finished call of the history, oldest first, and last the
pending call. As long as nothing is cut, the prompt of a tool's next call begins with the
prompt of its previous one, so a server's prefix cache holds nearly all of it. What tools
and users wrote stays inside its message; calls are JSON, so no text can pose as one.

The answer is the observation itself, character for character. Three things could not be
told by that alone, and get a marker: an error, emptiness, and white space at the edges,
which chat templates strip.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from obsspec_agents.errors import ConfigurationError
from obsspec_agents.observation import Observation
from obsspec_agents.world_model.base import PendingCall, canonical_args

__all__ = ["observation_from", "target_text", "world_model_messages"]

MIN_PROMPT_CHARS = 1_000

_ERROR = "<error>\n"
_SUCCESS = "<success>\n"
_END = "<end>"

_SYSTEM = """\
You predict what a tool returns. Each user message is one tool call as JSON: "tool" and \
"args", and "user" where a human has said something since the call before. Your answer is \
exactly what the tool returns for that call, character for character, and nothing else: no \
comment, no quotes, no code fence. The calls before show what the tool returned then.

If the call fails, your first line is <error> and the error text follows. If the output \
starts with white space or is empty, your first line is <success> and the output follows. \
If it ends with white space, or is empty, <end> stands right behind its last character.

The tool that is called now is described as:
"""

_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


def world_model_messages(call: PendingCall, *, max_chars: int = 32_000) -> list[dict[str, str]]:
    """The chat messages that ask for the observation of one call.

    Of parallel calls of one policy message only the pending one is in the prompt.

    Cutting: the tool's description, what the human said before a call, a call's arguments
    and an observation of the history keep their beginning and their end, an eighth of
    ``max_chars`` in all. When the history outgrows five eighths, its oldest exchanges are
    dropped down to half of that at once; so the beginning of the prompt stays the same
    for many calls, and then changes once.

    Args:
        call: the pending call with the messages that the policy saw.
        max_chars: about the most characters of the prompt, the constant system text and
            JSON's escapes not counted.

    Raises:
        ConfigurationError: ``max_chars`` is under 1,000.
    """
    if max_chars < MIN_PROMPT_CHARS:
        raise ConfigurationError(
            f"max_chars must be at least {MIN_PROMPT_CHARS} for a prompt, not {max_chars}"
        )
    limit = max_chars // 8
    pairs, said = _exchanges(call, limit)
    head = _SYSTEM + json.dumps(
        {"tool": call.name, "description": _cut(call.description, limit)}, ensure_ascii=False
    )
    messages = [_message("system", head)]
    for asked, returned in _latest(pairs, 5 * limit):
        messages += [_message("user", asked), _message("assistant", returned)]
    messages.append(_message("user", _call_text(call.name, call.canonical_args, said, limit)))
    return messages


def target_text(observation: Observation) -> str:
    """The answer that stands for an observation: what fine-tuning teaches.

    :func:`observation_from` gives the observation back. The text is never empty and has
    no white space at its edges. Content blocks are written as JSON; they are shown in a
    history, but never predicted.
    """
    text = observation.text
    if text is None:
        text = json.dumps(observation.content, default=repr, ensure_ascii=False)
    if text.endswith(_END) or text != text.rstrip():
        text += _END
    if observation.status == "error":
        return _ERROR + (text or _END)
    if not text or text.startswith((_ERROR, _SUCCESS)) or text != text.lstrip():
        return _SUCCESS + (text or _END)
    return text


def observation_from(text: str) -> Observation | None:
    """The observation that a model's answer stands for; None for an empty answer."""
    if not text:
        return None
    error = text.startswith(_ERROR)
    content = text.removeprefix(_ERROR if error else _SUCCESS).removesuffix(_END)
    return Observation(content, "error" if error else "success")


def _exchanges(call: PendingCall, limit: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Finished calls with their answers, and what a human has said since the last one."""
    pairs: list[tuple[str, str]] = []
    said: list[str] = []
    calls: dict[str | None, tuple[str, str]] = {}
    for message in call.messages:
        if isinstance(message, HumanMessage):
            said.append(message.text)
        elif isinstance(message, AIMessage):
            for made in message.tool_calls:
                calls[made["id"]] = (made["name"], canonical_args(made["args"]))
        elif isinstance(message, ToolMessage) and message.tool_call_id in calls:
            name, args = calls[message.tool_call_id]
            shown = Observation.of(message)
            if shown.text is not None:
                shown = Observation(_cut(shown.text, limit), shown.status)
            answer = target_text(shown)
            pairs.append((_call_text(name, args, said, limit), _cut(answer, 2 * limit)))
            said = []
    return pairs, said


def _latest(pairs: Sequence[tuple[str, str]], limit: int) -> Sequence[tuple[str, str]]:
    first = 0
    kept = 0
    for index, pair in enumerate(pairs):
        kept += len(pair[0]) + len(pair[1])
        if kept > limit:
            while kept > limit // 2 and first < index:
                kept -= len(pairs[first][0]) + len(pairs[first][1])
                first += 1
    return pairs[first:]


def _call_text(name: str, args: str, said: Sequence[str], limit: int) -> str:
    call: dict[str, Any] = {}
    if said:
        call["user"] = _cut("\n\n".join(said), limit)
    call["tool"] = name
    call["args"] = json.loads(args) if len(args) <= limit else _cut(args, limit)
    return json.dumps(call, ensure_ascii=False)


def _cut(text: str, limit: int) -> str:
    """The text, without its middle where it is longer than ``limit`` characters."""
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = limit - head
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[-tail:]}"


def _message(role: str, content: str) -> dict[str, str]:
    # Servers refuse lone surrogates, and clients can't encode them.
    return {"role": role, "content": _LONE_SURROGATES.sub("\ufffd", content)}
