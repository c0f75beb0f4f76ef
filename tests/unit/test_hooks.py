"""Calling a chat model below its callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import httpx
import openai
import pytest
from langchain_core.language_models import FakeListChatModel, SimpleChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_openai import ChatOpenAI

from obsspec_agents.hooks import has_async_hook, is_transport_fault, plain, to_its_end
from obsspec_agents.request import Mode

REQUEST = httpx.Request("POST", "http://h/")


def status(code: int) -> openai.APIStatusError:
    return openai.APIStatusError("x", response=httpx.Response(code, request=REQUEST), body=None)


def timed_out(cause: Exception) -> openai.APITimeoutError:
    error = openai.APITimeoutError(REQUEST)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (openai.APIConnectionError(request=REQUEST), True),
        (status(429), True),
        (status(502), True),
        (status(503), True),
        (status(400), False),
        (status(404), False),
        (status(500), False),
        (status(504), False),
        (timed_out(httpx.ConnectTimeout("x")), True),
        (timed_out(httpx.PoolTimeout("x")), True),
        (timed_out(httpx.ReadTimeout("x")), False),
        (httpx.ReadError("x"), True),
        (httpx.RemoteProtocolError("x"), True),
        (httpx.ReadTimeout("x"), False),
        (ConnectionResetError(), True),
        (TimeoutError(), False),
        (ValueError(), False),
        (OSError(), False),
    ],
    ids=repr,
)
def test_what_says_nothing_about_the_answer(error: Exception, fault: bool) -> None:
    assert is_transport_fault(error) is fault


async def test_chunks_are_closed_though_somebody_else_holds_them() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[ChatGenerationChunk]:
        try:
            while True:
                yield ChatGenerationChunk(message=AIMessageChunk("x"))
        finally:
            closed.set()

    held = endless()
    async with aclosing(to_its_end(held)) as chunks:
        async for _ in chunks:
            break
    assert closed.is_set()


async def test_chunks_need_not_be_a_generator() -> None:
    class Two:
        def __init__(self) -> None:
            self.left = 2

        def __aiter__(self) -> Two:
            return self

        async def __anext__(self) -> ChatGenerationChunk:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return ChatGenerationChunk(message=AIMessageChunk("x"))

    assert len([chunk async for chunk in to_its_end(Two())]) == 2


@pytest.mark.parametrize("mode", Mode)
def test_which_models_can_be_aborted(mode: Mode) -> None:
    assert has_async_hook(ChatOpenAI, mode)
    assert has_async_hook(SimpleChatModel, mode) is False
    assert has_async_hook(FakeListChatModel, mode) is (mode is Mode.STREAM)


def test_a_plain_model_shares_the_live_state() -> None:
    model = FakeListChatModel(responses=["a", "b"])
    twin = plain(model)
    assert type(twin) is FakeListChatModel
    assert twin.invoke("x").content == "a"
    assert model.invoke("x").content == "b"
