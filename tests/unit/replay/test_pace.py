"""When answers come, and what happens to those that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from obsspec_agents.replay import RecordedEndpoint
from tests.unit.replay.recordings import GREETING, RECORDING, FakeTime, Gate, chat


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[tuple[RecordedEndpoint, openai.AsyncOpenAI]]:
    async with (
        RecordedEndpoint(RECORDING, **settings) as endpoint,
        openai.AsyncOpenAI(base_url=endpoint.url, api_key="none", max_retries=0) as client,
    ):
        yield endpoint, client


async def metrics(endpoint: RecordedEndpoint) -> dict[str, float]:
    async with openai.DefaultAsyncHttpxClient() as http:
        text = (await http.get(f"{endpoint.root}/metrics")).text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {
        name.replace('engine="0",model_name="policy"', "").replace("{}", ""): float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines)
    }


@pytest.mark.parametrize(("pace", "seconds"), [(1, 1.2), (2, 2.4), (0.5, 0.6)])
async def test_a_whole_answer_waits_once(pace: float, seconds: float) -> None:
    time = FakeTime()
    async with served(pace=pace, sleep=time.sleep, clock=time.clock) as (_, client):
        await client.chat.completions.create(**GREETING)
    assert time.slept == [seconds]


async def test_a_stream_waits_for_each_token() -> None:
    time = FakeTime()
    async with served(sleep=time.sleep, clock=time.clock) as (_, client):
        chunks = [c async for c in await client.chat.completions.create(**GREETING, stream=True)]
    assert time.slept == [1.0, 0.1, 0.1]
    assert len(chunks) == 5


async def test_without_a_pace_nothing_waits() -> None:
    time = FakeTime()
    async with served(pace=0, sleep=time.sleep, clock=time.clock) as (_, client):
        await client.chat.completions.create(**GREETING)
        async for _chunk in await client.chat.completions.create(**GREETING, stream=True):
            pass
    assert time.slept == []


async def test_unknown_requests_are_answered_at_the_nearest_ones_pace() -> None:
    time = FakeTime()
    async with served(unknown="nearest", sleep=time.sleep, clock=time.clock) as (_, client):
        answer = await client.chat.completions.create(**chat("Hi!"))
    assert answer.system_fingerprint == "obsspec-unknown"
    assert time.slept == [1.2]


async def test_a_client_that_leaves_a_whole_answer_is_noticed() -> None:
    gate = Gate()
    async with served(sleep=gate) as (endpoint, client):
        asking = asyncio.ensure_future(client.chat.completions.create(**GREETING))
        await gate.waiting.wait()
        assert (endpoint.running, endpoint.aborted) == (1, 0)
        running = await metrics(endpoint)
        asking.cancel()
        await asyncio.wrap_future(endpoint.reached(lambda counters: counters.aborted == 1))
        assert (endpoint.running, gate.cancelled) == (0, 1)
        after = await metrics(endpoint)
    assert running["vllm:num_requests_running"] == 1
    assert running["vllm:kv_cache_usage_perc"] == pytest.approx(19e-6)
    assert after["vllm:num_requests_running"] == after["vllm:kv_cache_usage_perc"] == 0
    assert after['vllm:request_success_total{,finished_reason="abort"}'] == 1
    assert after['vllm:request_success_total{,finished_reason="stop"}'] == 0
    assert after["vllm:generation_tokens_total"] == 0


async def test_a_client_that_leaves_a_stream_is_noticed() -> None:
    time, gate = FakeTime(), Gate()

    async def sleep(seconds: float) -> None:
        await (time.sleep if len(time.slept) < 2 else gate)(seconds)

    async with served(sleep=sleep, clock=time.clock) as (endpoint, client):
        stream = await client.chat.completions.create(**GREETING, stream=True)
        texts = [(await anext(stream)).choices[0].delta.content for _ in range(3)]
        await gate.waiting.wait()
        assert (endpoint.running, endpoint.aborted) == (1, 0)
        await stream.close()
        await asyncio.wrap_future(endpoint.reached(lambda counters: counters.aborted == 1))
        assert (endpoint.running, gate.cancelled) == (0, 1)
        assert (await metrics(endpoint))["vllm:generation_tokens_total"] == 2
    assert texts == ["", "Hello", " there"]


async def test_a_stream_begins_before_its_first_token() -> None:
    gate = Gate()
    async with served(sleep=gate) as (endpoint, client):
        stream = await client.chat.completions.create(**GREETING, stream=True)
        await gate.waiting.wait()
        gate.open()
        assert len([chunk async for chunk in stream]) == 5
        assert endpoint.aborted == 0


async def test_counters_and_metrics_of_finished_answers() -> None:
    gate = Gate()
    async with served(sleep=gate) as (endpoint, client):
        asking = [client.chat.completions.create(**chat("Go on.", seed=s)) for s in range(5)]
        asking.append(client.chat.completions.create(**chat("Go on.", max_tokens=3)))
        asked = asyncio.gather(*asking)
        await asyncio.wrap_future(endpoint.reached(lambda counters: counters.running == 6))
        gate.open()
        answers = await asked
        await asyncio.wrap_future(endpoint.reached(lambda counters: counters.running == 0))
        assert (endpoint.requests, endpoint.max_running, endpoint.aborted) == (6, 6, 0)
        found = await metrics(endpoint)
    usages = [answer.usage for answer in answers if answer.usage]
    assert found == {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
        "vllm:num_preemptions_total": 0,
        "vllm:prompt_tokens_total": sum(u.prompt_tokens for u in usages),
        "vllm:generation_tokens_total": sum(u.completion_tokens for u in usages),
        'vllm:request_success_total{,finished_reason="stop"}': 5,
        'vllm:request_success_total{,finished_reason="length"}': 1,
        'vllm:request_success_total{,finished_reason="abort"}': 0,
    }
