"""The wire, as the ``openai`` client sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from obsspec_agents.replay import RecordedEndpoint
from tests.unit.replay.recordings import GREETING, RECORDING, TASK, chat, results

Connect = Callable[[RecordedEndpoint], openai.OpenAI]


def seed_of(client: openai.OpenAI, calls: int, content: str) -> int:
    for seed in range(100):
        message = client.chat.completions.create(**chat(TASK, seed=seed)).choices[0].message
        if len(message.tool_calls or ()) == calls and (message.content or "") == content:
            return seed
    raise AssertionError("no seed gives this sample")


def test_an_answer(connect: Connect) -> None:
    with RecordedEndpoint(RECORDING, pace=0).threaded() as endpoint:
        answer = connect(endpoint).chat.completions.create(**GREETING)
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.created, answer.model) == ("chat.completion", 0, "policy")
    assert answer.system_fingerprint == "obsspec-recording"
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello there.")
    assert (choice.finish_reason, choice.logprobs) == ("stop", None)
    assert choice.message.tool_calls is None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    assert answer.usage.prompt_tokens == 16
    assert answer.usage.total_tokens == 19


def test_a_stream(connect: Connect) -> None:
    with RecordedEndpoint(RECORDING, pace=0).threaded() as endpoint:
        client = connect(endpoint)
        whole = client.chat.completions.create(**GREETING)
        chunks = list(client.chat.completions.create(**GREETING, stream=True))
        options: Any = {"include_usage": True}
        counted = list(
            client.chat.completions.create(**GREETING, stream=True, stream_options=options)
        )
    assert {(c.id, c.object, c.created, c.system_fingerprint) for c in chunks} == {
        (whole.id, "chat.completion.chunk", 0, "obsspec-recording")
    }
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].delta.content for c in chunks] == ["", "Hello", " there", ".", None]
    assert [c.choices[0].finish_reason for c in chunks] == [None] * 4 + ["stop"]
    assert {c.usage for c in chunks} == {None}
    assert counted[-1].choices == []
    assert counted[-1].usage == whole.usage
    assert [c.choices for c in counted[:-1]] == [c.choices for c in chunks]


def test_tool_calls_streamed_or_not(connect: Connect) -> None:
    with RecordedEndpoint(RECORDING, pace=0).threaded() as endpoint:
        client = connect(endpoint)
        request = chat(TASK, seed=seed_of(client, 2, "Both."))
        whole = client.chat.completions.create(**request).choices[0]
        chunks = list(client.chat.completions.create(**request, stream=True))
    assert whole.finish_reason == "tool_calls" == chunks[-1].choices[0].finish_reason
    calls = [call.model_dump() for call in whole.message.tool_calls or ()]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"n": 1}, {"n": [2]}]
    assert len({call["id"] for call in calls}) == 2

    streamed: list[dict[str, Any]] = []
    for chunk in chunks:
        for delta in chunk.choices[0].delta.tool_calls or ():
            assert delta.function is not None
            if delta.id is not None:
                assert (delta.index, delta.type) == (len(streamed), "function")
                assert (delta.function.name, delta.function.arguments) == ("bash", "")
                streamed.append({"id": delta.id, "name": "bash", "pieces": []})
            else:
                assert delta.function.name is None
                streamed[delta.index]["pieces"].append(delta.function.arguments)
    assert [(s["id"], "".join(s["pieces"])) for s in streamed] == [
        (call["id"], call["function"]["arguments"]) for call in calls
    ]
    assert all(len(s["pieces"]) > 1 for s in streamed)


def test_content_is_null_beside_bare_calls(connect: Connect) -> None:
    with RecordedEndpoint(RECORDING, pace=0).threaded() as endpoint:
        client = connect(endpoint)
        seed = seed_of(client, 1, "")
        message = client.chat.completions.create(**chat(TASK, seed=seed)).choices[0].message
    assert message.content is None
    assert message.tool_calls is not None
    assert f"SEED={seed}" in message.tool_calls[0].function.arguments


def test_a_conversation(connect: Connect) -> None:
    with RecordedEndpoint(RECORDING, pace=0).threaded() as endpoint:
        client = connect(endpoint)
        seed = seed_of(client, 1, "Let me look.")
        messages = chat(TASK)["messages"]
        texts = []
        for observation in ("7 failed", "fixed", None):
            answer = client.chat.completions.create(**chat(*messages, seed=seed))
            message = answer.choices[0].message.model_dump()
            texts.append(message["content"])
            if observation is not None:
                messages += results(message, observation)
    assert texts == ["Let me look.", "7 tests failed.", f"Done, seed {seed}."]


@pytest.mark.parametrize("top", [None, 0, 3])
def test_logprobs(connect: Connect, top: int | None) -> None:
    wanted = {"logprobs": True} if top is None else {"logprobs": True, "top_logprobs": top}
    # A recorded request is matched as it is, so this one has its own entry.
    entry = RECORDING.entries[0]
    made = type(entry)("asked", entry.samples, request={**GREETING, **wanted})
    recording = type(RECORDING)("policy", (made,))
    with RecordedEndpoint(recording, pace=0).threaded() as endpoint:
        client = connect(endpoint)
        whole = client.chat.completions.create(**GREETING, **wanted).choices[0].logprobs
        stream = client.chat.completions.create(**GREETING, **wanted, stream=True)
        chunks = [c.choices[0].logprobs for c in stream]
    assert whole is not None
    assert whole.content is not None
    assert [t.token for t in whole.content] == ["Hello", " there", "."]
    assert [t.logprob for t in whole.content] == [-0.5, -0.25, -0.125]
    assert bytes(whole.content[1].bytes or ()) == b" there"
    expected = 1 if top else 0
    assert [len(t.top_logprobs) for t in whole.content] == [expected] * 3
    streamed = [token for c in chunks if c is not None for token in c.content or ()]
    assert streamed == whole.content


def test_logprobs_that_were_not_recorded_are_null(connect: Connect) -> None:
    with RecordedEndpoint(RECORDING, pace=0).threaded() as endpoint:
        answer = connect(endpoint).chat.completions.create(**chat("Go on."), logprobs=True)
    assert answer.choices[0].message.content == "word " * 20
    assert answer.choices[0].logprobs is None


@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens(connect: Connect, stream: bool) -> None:
    with RecordedEndpoint(RECORDING, pace=0).threaded() as endpoint:
        client = connect(endpoint)
        request = chat("Go on.", max_tokens=2)
        if stream:
            chunks = list(client.chat.completions.create(**request, stream=True))
            text = "".join(c.choices[0].delta.content or "" for c in chunks)
            reason = chunks[-1].choices[0].finish_reason
        else:
            choice = client.chat.completions.create(**request).choices[0]
            text, reason = choice.message.content or "", choice.finish_reason
    assert (text, reason) == ("word word", "length")


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_requests_name_the_nearest(connect: Connect, stream: bool) -> None:
    with RecordedEndpoint(RECORDING).threaded() as endpoint:
        with pytest.raises(openai.NotFoundError) as caught:
            connect(endpoint).chat.completions.create(**chat("Hi!"), stream=stream)
        assert (endpoint.unknown, endpoint.running) == (1, 0)
    body: Any = caught.value.body
    assert (body["code"], body["type"]) == ("unknown_request", "NotFoundError")
    assert body["nearest"] == {
        "id": "greeting",
        "differs": {"at": "messages[0].content", "recorded": "Hi", "requested": "Hi!"},
    }
    assert "'greeting', which differs in messages[0].content" in body["message"]


def test_other_errors(connect: Connect) -> None:
    with RecordedEndpoint(RECORDING, max_body_bytes=2000).threaded() as endpoint:
        client = connect(endpoint)
        with pytest.raises(openai.NotFoundError, match="'gpt' is not served") as missing:
            client.chat.completions.create(**{**GREETING, "model": "gpt"})
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError, match="'n' is 2"):
            client.chat.completions.create(**GREETING, n=2)
        with pytest.raises(openai.APIStatusError, match="more than 2000 bytes") as large:
            client.chat.completions.create(**chat("x" * 3_000_000))
        assert large.value.status_code == 413
        with pytest.raises(openai.NotFoundError, match="POST /v1/embeddings is not served"):
            client.embeddings.create(model="policy", input="x")
        assert client.chat.completions.create(**GREETING).choices[0].finish_reason == "stop"


def test_an_empty_recording(connect: Connect) -> None:
    empty = type(RECORDING)("policy")
    with (
        RecordedEndpoint(empty, unknown="nearest").threaded() as endpoint,
        pytest.raises(openai.NotFoundError, match="the recording is empty"),
    ):
        connect(endpoint).chat.completions.create(**GREETING)


async def test_many_clients_get_what_one_gets() -> None:
    """In any order and company, the answer is that of request and seed."""

    async def ask(client: openai.AsyncOpenAI, seed: int, stream: bool) -> tuple[str, Any]:
        if not stream:
            whole = await client.chat.completions.create(**chat(TASK, seed=seed))
            made = whole.choices[0].message
            calls = [(c.id, c.function.arguments) for c in made.tool_calls or ()]
            return whole.id, (made.content or "", calls)
        text, heads, parts = "", [], []
        opened = await client.chat.completions.create(**chat(TASK, seed=seed), stream=True)
        async for chunk in opened:
            text += chunk.choices[0].delta.content or ""
            for call in chunk.choices[0].delta.tool_calls or ():
                if call.id:
                    heads.append(call.id)
                    parts.append("")
                parts[call.index] += (call.function and call.function.arguments) or ""
        return chunk.id, (text, list(zip(heads, parts, strict=True)))

    async with (
        RecordedEndpoint(RECORDING, pace=0.01) as endpoint,
        openai.AsyncOpenAI(base_url=endpoint.url, api_key="none", max_retries=0) as client,
    ):
        alone = [await ask(client, seed, False) for seed in range(20)]
        jobs = [(seed, stream) for seed in reversed(range(20)) for stream in (True, False)]
        together = await asyncio.gather(*(ask(client, *job) for job in jobs))
        assert endpoint.max_running > 1
        await asyncio.wrap_future(endpoint.reached(lambda counters: counters.running == 0))
    assert len(set(map(str, alone))) == 20
    assert together == [alone[seed] for seed, _ in jobs]
