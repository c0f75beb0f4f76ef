"""The request: all that determines the distribution of the policy's next output.

A generation is committed only when the real request's key equals its own (contract, rule
1). Where the model can say what it would send, the key is made of that wire payload, key
order included, less the declared transport fields; else of everything in the messages and
parameters that could reach a model.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from pydantic import BaseModel

__all__ = ["TRANSPORT_FIELDS", "Mode", "Request", "UnkeyableRequestError"]

TRANSPORT_FIELDS = frozenset({"priority", "request_id", "cache_salt", "extra_headers"})
"""Fields of a wire payload (and of its ``extra_body``) that don't determine the output."""


class UnkeyableRequestError(Exception):
    """The request holds something that has no canonical form, so it is not speculated on."""


class Mode(StrEnum):
    """Through which hook of the chat model the request goes."""

    GENERATE = "generate"
    STREAM = "stream"

    @property
    def hooks(self) -> tuple[str, str]:
        """The names of the synchronous and of the asynchronous hook."""
        return (f"_{self.value}", f"_a{self.value}")


@dataclass(frozen=True)
class Request:
    """One policy call as its chat model's hook received it.

    ``messages`` and ``kwargs`` are the caller's own objects: read, never changed.
    """

    model: BaseChatModel
    mode: Mode
    messages: Sequence[BaseMessage]
    stop: Sequence[str] | None
    kwargs: Mapping[str, Any]
    loop: asyncio.AbstractEventLoop | None = field(default=None, compare=False)
    """The event loop that the call was awaited on; None for a synchronous call."""
    context: contextvars.Context | None = field(default=None, compare=False, repr=False)
    """The context variables that the call saw."""

    def extended(self, messages: Iterable[BaseMessage]) -> Request:
        """The request that follows when these messages are appended.

        All messages are copied: what the key is made of is what is generated from, though
        the graph, or the model's hook, should change a message in place.
        """
        return replace(self, messages=[_copied(m) for m in (*self.messages, *messages)])

    @cached_property
    def key(self) -> str:
        """Equal keys, equal requests: a SHA-256 of the canonical form.

        Raises:
            UnkeyableRequestError: a parameter has no canonical form, or the model can't say
                what it would send.
        """
        try:
            canonical = [id(self.model), self.mode.value, _settings(self.model), self._payload()]
            # Escaped to ASCII, so that a lone surrogate is a request like any other.
            text = json.dumps(canonical, separators=(",", ":"), default=_canonical)
        except Exception as error:
            raise UnkeyableRequestError(str(error)) from error
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def answers(self, call_ids: Iterable[str]) -> bool:
        """Whether, after the last policy message that makes one of these calls, the request
        carries a tool message for every one of them."""
        wanted = set(call_ids)
        answered: set[str] = set()
        for message in reversed(self.messages):
            if isinstance(message, ToolMessage):
                answered.add(message.tool_call_id)
            elif isinstance(message, AIMessage) and any(
                call["id"] in wanted for call in message.tool_calls
            ):
                break
        return answered.issuperset(wanted)

    def _payload(self) -> Any:
        stop = None if self.stop is None else list(self.stop)
        wire: Callable[..., Mapping[str, Any]] | None = getattr(
            self.model, "_get_request_payload", None
        )
        payload = None
        if wire is not None:
            payload = _without_transport(wire(list(self.messages), stop=stop, **self.kwargs))
            if _sends_its_payload(self.model, self.mode):
                return payload
        # A hook of another origin may send more than the payload says.
        return {
            "payload": payload,
            "messages": [_message_form(message) for message in self.messages],
            "stop": stop,
            "kwargs": _without_transport(self.kwargs),
        }


def _without_transport(payload: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in payload.items() if name not in TRANSPORT_FIELDS}
    if isinstance(extra := kept.get("extra_body"), Mapping):
        kept["extra_body"] = {k: v for k, v in extra.items() if k not in TRANSPORT_FIELDS}
    return kept


def _message_form(message: BaseMessage) -> dict[str, Any]:
    # Ids are given by the framework, and artifacts are by definition not for the model.
    return message.model_dump(exclude={"id", "artifact"})


def _settings(model: BaseChatModel) -> dict[str, Any]:
    """The model's settings, so that one changed in place changes the key; of what is no
    plain data (a client), which object it is."""
    values = vars(model)
    settings: dict[str, str | int] = {}
    for name in type(model).model_fields:
        value = values.get(name)
        try:
            settings[name] = json.dumps(value, default=_setting)
        except (TypeError, ValueError):
            settings[name] = id(value)
    return settings


def _setting(value: Any) -> Any:
    return _fields(value) if isinstance(value, BaseModel) else id(value)


def _fields(value: BaseModel) -> dict[str, Any]:
    """Every field as it is: ``model_dump`` drops what a field's declared type lacks."""
    cls = type(value)
    return {"of": f"{cls.__module__}.{cls.__qualname__}", "fields": dict(value)}


def _sends_its_payload(model: BaseChatModel, mode: Mode) -> bool:
    """Whether the hooks come from the same package as what says their payload."""
    return len(origins(original_class(model), (*mode.hooks, "_get_request_payload"))) == 1


def origins(cls: type[BaseChatModel], methods: Iterable[str]) -> set[str]:
    """The packages that a class has these methods from."""
    return {
        str(getattr(getattr(cls, method), "__module__", "")).partition(".")[0] for method in methods
    }


def original_class(model: BaseChatModel) -> type[BaseChatModel]:
    """The class that the user's model had before it was wrapped."""
    cls = type(model)
    return next(base for base in cls.__mro__ if not base.__dict__.get("_obsspec_joins", False))


def _copied(message: BaseMessage) -> BaseMessage:
    """A copy that shares nothing that can be changed in place, but for the artifact, which
    is not for the model and may be huge."""
    copied = message.model_copy()
    for name, value in vars(message).items():
        if name != "artifact" and not isinstance(value, (str, int, float, type(None))):
            vars(copied)[name] = copy.deepcopy(value)
    return copied


def _canonical(value: Any) -> Any:
    if isinstance(value, type) and issubclass(value, BaseModel):
        # What is parsed is an instance of this very class, not of one made like it.
        return {"class": id(value), "of": f"{value.__module__}.{value.__name__}"}
    if isinstance(value, BaseModel):
        return _fields(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"a {type(value).__name__} in the request has no canonical form")
