"""``ChatOpenAI`` on a recorded endpoint, and answers that may not be committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import openai
import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from obsspec_agents.errors import UnknownRequestError
from obsspec_agents.replay import RecordedEndpoint, check_known
from tests.unit.replay.recordings import RECORDING, TASK

Make = Callable[[RecordedEndpoint], ChatOpenAI]


@tool
def bash(command: str) -> str:
    """Run a command."""
    return command


def streamed(model: ChatOpenAI, messages: Sequence[BaseMessage]) -> AIMessageChunk:
    chunks = [c for c in model.stream(messages) if isinstance(c, AIMessageChunk)]
    return sum(chunks[1:], chunks[0])


def first_turn(model: ChatOpenAI) -> AIMessage:
    for seed in range(100):
        answer = model.invoke([HumanMessage(TASK)], seed=seed)
        if answer.content == "Let me look.":
            return answer
    raise AssertionError("no seed gives this sample")


def test_invoke_and_stream_agree(chat_openai: Make) -> None:
    with RecordedEndpoint(RECORDING, pace=0).threaded() as endpoint:
        model = chat_openai(endpoint)
        for asked in (model, model.bind_tools([bash])):
            first = first_turn(asked)  # type: ignore[arg-type]
            messages = [
                HumanMessage(TASK),
                first,
                ToolMessage("2 failed", tool_call_id=first.tool_calls[0]["id"]),
            ]
            whole = asked.invoke(messages, seed=1)
            parts = streamed(asked.bind(seed=1), messages)  # type: ignore[arg-type]
            assert isinstance(whole, AIMessage)
            assert whole.content == parts.content == "2 tests failed."
            assert whole.tool_calls == parts.tool_calls
            assert whole.tool_calls[0]["args"] == {"command": "fix 2"}
            assert whole.usage_metadata is not None
            for answer in (whole, parts):
                assert answer.response_metadata["finish_reason"] == "tool_calls"
                assert answer.response_metadata["system_fingerprint"] == "obsspec-recording"
                check_known(answer)


@pytest.mark.parametrize("stream", [False, True])
def test_the_nearest_answer_may_not_be_committed(chat_openai: Make, stream: bool) -> None:
    with RecordedEndpoint(RECORDING, pace=0, unknown="nearest").threaded() as endpoint:
        model = chat_openai(endpoint)
        first = first_turn(model)
        check_known(first)
        messages = [
            HumanMessage(TASK),
            first,
            ToolMessage("nothing to see", tool_call_id=first.tool_calls[0]["id"]),
        ]
        answer = streamed(model, messages) if stream else model.invoke(messages)
        assert endpoint.unknown == 1
    assert answer.content == " tests failed."
    with pytest.raises(UnknownRequestError, match=r"call-build\.2-0-"):
        check_known(answer)


async def test_on_the_same_loop() -> None:
    async with (
        RecordedEndpoint(RECORDING, pace=0) as endpoint,
        openai.DefaultAsyncHttpxClient() as http,
    ):
        model = ChatOpenAI(
            base_url=endpoint.url,
            model="policy",
            api_key=SecretStr("none"),
            http_async_client=http,
        )
        assert (await model.ainvoke("Hi")).content == "Hello there."
        assert "".join([str(c.content) async for c in model.astream("Hi")]) == "Hello there."
