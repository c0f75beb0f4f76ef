"""The policy that can join a generation in flight.

:func:`speculative` gives a copy of the user's chat model whose class is a subclass made on
the fly. It differs in one thing: the hooks below the callback layer look whether the exact
request is being answered already, and if so follow that generation instead of starting
another. Everything above the hooks (callbacks, streams, tracing, caches, structured output)
sees an ordinary call.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from functools import lru_cache
from typing import Any, TypeVar, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableBinding

from obsspec_agents.errors import ConfigurationError
from obsspec_agents.hooks import (
    accepts_run_manager,
    original_class,
    overrides,
    plain,
    to_its_end,
)
from obsspec_agents.policy_turn import PolicyTurn
from obsspec_agents.request import Mode, Request
from obsspec_agents.speculator import Speculator

__all__ = ["speculative"]

ModelT = TypeVar("ModelT")

_SPECULATOR = "_obsspec_speculator"


def speculative(model: ModelT, speculator: Speculator) -> ModelT:
    """A copy of a chat model that commits this speculator's generations.

    It is of the same class for ``isinstance``, shares the original's connections, and is
    called like it: ``bind_tools``, ``with_structured_output``, ``stream``, ``ainvoke``…
    The original is left as it is. A model that is wrapped already is wrapped anew.

    Args:
        model: a chat model, or one with bound arguments (``model.bind_tools(...)``).
        speculator: the one that the graph's tool node has.

    Raises:
        ConfigurationError: it is neither.
    """
    if not isinstance(speculator, Speculator):
        raise ConfigurationError(
            f"speculative() takes a Speculator, not {type(speculator).__name__}: "
            "Speculator(world_model) makes one of a world model"
        )
    if isinstance(model, RunnableBinding):
        return cast(
            "ModelT", model.model_copy(update={"bound": speculative(model.bound, speculator)})
        )
    if not isinstance(model, BaseChatModel):
        raise ConfigurationError(
            f"speculative() takes a chat model, not {type(model).__name__}: "
            "wrap the model itself, before it goes into a chain"
        )
    cls = _joining_class(original_class(model))
    wrapped = cls.__new__(cls)
    object.__setattr__(wrapped, "__dict__", dict(model.__dict__))
    private = {**(model.__pydantic_private__ or {}), _SPECULATOR: speculator}
    object.__setattr__(wrapped, "__pydantic_private__", private)
    object.__setattr__(wrapped, "__pydantic_extra__", model.__pydantic_extra__)
    object.__setattr__(wrapped, "__pydantic_fields_set__", set(model.model_fields_set))
    return cast("ModelT", wrapped)


@lru_cache(maxsize=128)
def _joining_class(base: type[BaseChatModel]) -> type[BaseChatModel]:
    """The subclass whose hooks join. It has only the hooks that the base class has, since
    LangChain looks at which ones are overridden; and the base's name, since callbacks and
    tracers report it."""
    hooks: dict[str, Any] = {"_generate": _generate, "_agenerate": _agenerate}
    if overrides(base, "_stream"):
        hooks["_stream"] = _stream
    if overrides(base, "_astream"):
        hooks["_astream"] = _astream
    namespace = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        **hooks,
    }
    metaclass: Any = type(base)
    cls = cast("type[BaseChatModel]", metaclass(base.__name__, (base,), namespace))
    type.__setattr__(cls, "_obsspec_joins", True)
    return cls


def _turn(
    model: BaseChatModel,
    mode: Mode,
    messages: list[BaseMessage],
    stop: list[str] | None,
    kwargs: dict[str, Any],
    loop: asyncio.AbstractEventLoop | None,
) -> PolicyTurn | None:
    speculator = (model.__pydantic_private__ or {}).get(_SPECULATOR)
    if not isinstance(speculator, Speculator) or not speculator.listening:
        return None
    context = contextvars.copy_context()
    with speculator.log.guard("policy"):
        return speculator.policy_called(Request(model, mode, messages, stop, kwargs, loop, context))
    return None


def _with_manager(hook: Any, run_manager: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    if run_manager is None or not accepts_run_manager(hook):
        return kwargs
    return {**kwargs, "run_manager": run_manager}


def _generate(
    self: BaseChatModel,
    messages: list[BaseMessage],
    stop: list[str] | None = None,
    run_manager: CallbackManagerForLLMRun | None = None,
    **kwargs: Any,
) -> ChatResult:
    hook = plain(self)._generate
    turn = _turn(self, Mode.GENERATE, messages, stop, kwargs, None)
    arguments = _with_manager(hook, run_manager, kwargs)
    if turn is None:
        return hook(messages, stop=stop, **arguments)
    with turn:
        result = turn.joined(run_manager)
        if result is None:
            result = hook(messages, stop=stop, **arguments)
        turn.saw(result.generations[0].message)
        return result


async def _agenerate(
    self: BaseChatModel,
    messages: list[BaseMessage],
    stop: list[str] | None = None,
    run_manager: AsyncCallbackManagerForLLMRun | None = None,
    **kwargs: Any,
) -> ChatResult:
    hook = plain(self)._agenerate
    turn = _turn(self, Mode.GENERATE, messages, stop, kwargs, asyncio.get_running_loop())
    arguments = _with_manager(hook, run_manager, kwargs)
    if turn is None:
        return await hook(messages, stop=stop, **arguments)
    with turn:
        result = await turn.ajoined(run_manager)
        if result is None:
            result = await hook(messages, stop=stop, **arguments)
        turn.saw(result.generations[0].message)
        return result


def _stream(
    self: BaseChatModel,
    messages: list[BaseMessage],
    stop: list[str] | None = None,
    run_manager: CallbackManagerForLLMRun | None = None,
    **kwargs: Any,
) -> Iterator[ChatGenerationChunk]:
    hook = plain(self)._stream
    turn = _turn(self, Mode.STREAM, messages, stop, kwargs, None)
    arguments = _with_manager(hook, run_manager, kwargs)
    if turn is None:
        yield from hook(messages, stop=stop, **arguments)
        return
    with turn:
        for chunk in turn.joined_stream(run_manager):
            turn.saw(chunk.message)
            yield chunk
        if turn.flight is None:
            for chunk in hook(messages, stop=stop, **arguments):
                turn.saw(chunk.message)
                yield chunk


async def _astream(
    self: BaseChatModel,
    messages: list[BaseMessage],
    stop: list[str] | None = None,
    run_manager: AsyncCallbackManagerForLLMRun | None = None,
    **kwargs: Any,
) -> AsyncIterator[ChatGenerationChunk]:
    hook = plain(self)._astream
    turn = _turn(self, Mode.STREAM, messages, stop, kwargs, asyncio.get_running_loop())
    arguments = _with_manager(hook, run_manager, kwargs)
    if turn is None:
        async with aclosing(to_its_end(hook(messages, stop=stop, **arguments))) as chunks:
            async for chunk in chunks:
                yield chunk
        return
    with turn:
        async with aclosing(turn.ajoined_stream(run_manager)) as joined:
            async for chunk in joined:
                turn.saw(chunk.message)
                yield chunk
        if turn.flight is None:
            async with aclosing(to_its_end(hook(messages, stop=stop, **arguments))) as chunks:
                async for chunk in chunks:
                    turn.saw(chunk.message)
                    yield chunk
