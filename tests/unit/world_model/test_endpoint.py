"""A language model behind a real local server, asked through the real client."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from obsspec_agents.errors import ConfigurationError
from obsspec_agents.observation import Observation
from obsspec_agents.world_model import EndpointWorldModel, Prediction, world_model_messages
from obsspec_agents.world_model.endpoint import UNKNOWN_PROBABILITY
from tests.unit.world_model.chat_server import ChatServer, Reply, answer, error
from tests.unit.world_model.transcripts import pending, returned

CALL = pending("cat f", after=[("ls", "f\n")])
Serve = Callable[[Callable[[dict[str, Any]], Reply | None]], ChatServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[ChatServer] = []

    def start(reply: Callable[[dict[str, Any]], Reply | None]) -> ChatServer:
        servers.append(ChatServer(reply).__enter__())
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__()


async def ask(model: EndpointWorldModel) -> list[Prediction]:
    """What both ways of asking answer."""
    predicted = list(await asyncio.to_thread(model.predict, CALL))
    assert list(await model.apredict(CALL)) == predicted
    await model.aclose()
    return predicted


async def test_the_answer_is_the_prediction_and_its_probability_that_of_its_tokens(
    serve: Serve,
) -> None:
    server = serve(lambda _: answer("a\n<end>", logprobs=[-0.1, -0.2, -0.3]))
    (prediction,) = await ask(EndpointWorldModel(server.url, "adapter-v1"))
    assert prediction.observation == returned("a\n")
    assert prediction.probability == pytest.approx(math.exp(-0.6))
    assert prediction.predictor == "adapter-v1"
    assert prediction.seen is False


async def test_what_is_sent(serve: Serve) -> None:
    server = serve(lambda _: answer())
    model = EndpointWorldModel(
        server.url, "m", api_key="k", max_tokens=7, extra_body={"priority": 3}
    )
    await ask(model)
    expected = {
        "model": "m",
        "messages": world_model_messages(CALL),
        "temperature": 0.0,
        "max_tokens": 7,
        "stream": False,
        "logprobs": True,
        "top_logprobs": 0,
        "priority": 3,
    }
    assert server.requests == [expected, expected]
    assert server.paths == ["/v1/chat/completions"] * 2
    assert server.keys == ["Bearer k"] * 2


@pytest.mark.parametrize(("variable", "sent"), [(None, "EMPTY"), ("env-key", "env-key")])
async def test_the_key_comes_from_the_environment_or_is_empty(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, variable: str | None, sent: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if variable is not None:
        monkeypatch.setenv("OPENAI_API_KEY", variable)
    server = serve(lambda _: answer())
    await ask(EndpointWorldModel(server.url, "m"))
    assert server.keys == [f"Bearer {sent}"] * 2


async def test_an_error_is_predicted_as_one(serve: Serve) -> None:
    server = serve(lambda _: answer("<error>\nno such file"))
    (prediction,) = await ask(EndpointWorldModel(server.url, "m"))
    assert prediction.observation == Observation("no such file", "error")


@pytest.mark.parametrize("logprobs", [None, []])
async def test_without_log_probabilities_the_probability_is_neutral(
    serve: Serve, logprobs: list[float] | None
) -> None:
    server = serve(lambda _: answer(logprobs=logprobs))
    (prediction,) = await ask(EndpointWorldModel(server.url, "m"))
    assert prediction.probability == UNKNOWN_PROBABILITY


@pytest.mark.parametrize(("logprobs", "probability"), [([-9999.0], 0.0), ([1e-7], 1.0)])
async def test_the_probability_stays_in_its_range(
    serve: Serve, logprobs: list[float], probability: float
) -> None:
    server = serve(lambda _: answer(logprobs=logprobs))
    (prediction,) = await ask(EndpointWorldModel(server.url, "m"))
    assert prediction.probability == probability


@pytest.mark.parametrize(
    "reply",
    [
        answer("cut", finish="length"),
        answer("filtered", finish="content_filter"),
        answer("aborted", finish="abort"),
        answer(""),
        answer(None),
        answer("x", refusal="I can't."),
        answer(
            "x",
            tool_calls=[
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        ),
        (200, {"id": "1", "object": "chat.completion", "choices": []}),
    ],
    ids=["cut", "filtered", "aborted", "empty", "null", "refused", "tool call", "no choice"],
)
async def test_some_answers_are_no_prediction(serve: Serve, reply: Reply) -> None:
    assert await ask(EndpointWorldModel(serve(lambda _: reply).url, "m")) == []


@pytest.mark.parametrize(("least", "predicted"), [(0.5, 1), (0.7, 0)])
async def test_improbable_answers_are_no_prediction(
    serve: Serve, least: float, predicted: int
) -> None:
    server = serve(lambda _: answer(logprobs=[math.log(0.6)]))
    model = EndpointWorldModel(server.url, "m", min_probability=least)
    assert len(await ask(model)) == predicted


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_a_failure_is_raised_and_not_repeated(serve: Serve, status: int) -> None:
    server = serve(lambda _: error(status, "no"))
    model = EndpointWorldModel(server.url, "m")
    with pytest.raises(openai.APIStatusError):
        await asyncio.to_thread(model.predict, CALL)
    with pytest.raises(openai.APIStatusError):
        await model.apredict(CALL)
    await model.aclose()
    assert len(server.requests) == 2


async def test_a_server_that_is_down_is_raised(serve: Serve) -> None:
    with ChatServer(lambda _: answer()) as server:
        url = server.url
    model = EndpointWorldModel(url, "m")
    with pytest.raises(openai.APIConnectionError):
        await asyncio.to_thread(model.predict, CALL)
    with pytest.raises(openai.APIConnectionError):
        await model.apredict(CALL)
    await model.aclose()


def picky(body: dict[str, Any]) -> Reply:
    if "logprobs" in body or "top_logprobs" in body:
        return error(400, "Unsupported parameter: 'logprobs' is not supported with this model.")
    return answer("x")


def test_refused_log_probabilities_are_left_out_once_and_for_all(serve: Serve) -> None:
    server = serve(picky)
    model = EndpointWorldModel(server.url, "m")
    with pytest.warns(RuntimeWarning, match="'m' refuses logprobs"):
        (prediction,) = model.predict(CALL)
    assert prediction.probability == UNKNOWN_PROBABILITY
    assert model.predict(CALL) == (prediction,)
    assert ["logprobs" in body for body in server.requests] == [True, False, False]
    model.close()


async def test_the_same_asynchronously_and_at_the_same_time(serve: Serve) -> None:
    server = serve(picky)
    model = EndpointWorldModel(server.url, "m")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = await asyncio.gather(*(model.apredict(CALL) for _ in range(5)))
    assert [len(predictions) for predictions in answers] == [1] * 5
    assert len([w for w in caught if "refuses logprobs" in str(w.message)]) == 1
    await model.aclose()


def test_another_refusal_leaves_log_probabilities_in(serve: Serve) -> None:
    server = serve(lambda _: error(400, "the prompt is too long (logprobs or not)"))
    model = EndpointWorldModel(server.url, "m")
    for _ in range(2):
        with pytest.raises(openai.BadRequestError):
            model.predict(CALL)
    assert ["logprobs" in body for body in server.requests] == [True, False] * 2
    model.close()


async def test_cancelling_closes_the_connection(serve: Serve) -> None:
    server = serve(lambda _: None)
    model = EndpointWorldModel(server.url, "m")
    task = asyncio.create_task(model.apredict(CALL))
    assert await asyncio.to_thread(server.asked.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(server.hung_up.wait, 10)
    await model.aclose()


async def test_a_server_that_does_not_answer_is_given_up(serve: Serve) -> None:
    server = serve(lambda _: None)
    model = EndpointWorldModel(server.url, "m", timeout_s=0.05)
    with pytest.raises((TimeoutError, openai.APITimeoutError)):
        await model.apredict(CALL)
    assert await asyncio.to_thread(server.hung_up.wait, 10)
    with pytest.raises(openai.APITimeoutError):
        await asyncio.to_thread(model.predict, CALL)
    await model.aclose()


async def test_connections_are_kept_and_closed(serve: Serve) -> None:
    server = serve(lambda _: answer())
    model = EndpointWorldModel(server.url, "m")
    for _ in range(3):
        await model.apredict(CALL)
    assert server.connections == 1
    assert not server.hung_up.is_set()
    await model.aclose()
    assert await asyncio.to_thread(server.hung_up.wait, 10)
    await model.aclose()


def test_each_loop_has_connections_of_its_own(serve: Serve) -> None:
    server = serve(lambda _: answer())
    model = EndpointWorldModel(server.url, "m")

    async def once() -> int:
        predictions = await model.apredict(CALL)
        await model.aclose()
        return len(predictions)

    assert [asyncio.run(once()) for _ in range(3)] == [1, 1, 1]
    assert not list(model._async_clients)


def test_connections_end_with_their_loop_and_loops_are_forgotten(serve: Serve) -> None:
    server = serve(lambda _: answer())
    model = EndpointWorldModel(server.url, "m")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            server.hung_up.clear()
            asyncio.run(_apredict(model))
            assert server.hung_up.wait(10)
            gc.collect()
    assert not caught  # such as an unclosed transport
    assert len(list(model._async_clients)) == 1
    model.close()
    assert not list(model._async_clients)


def test_closing_reaches_a_loop_that_runs_in_another_thread(serve: Serve) -> None:
    server = serve(lambda _: answer())
    model = EndpointWorldModel(server.url, "m")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(_apredict(model), loop).result(10)
    model.close()
    assert server.hung_up.wait(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def test_closing_on_the_loop_itself_closes_soon(serve: Serve) -> None:
    server = serve(lambda _: answer())
    model = EndpointWorldModel(server.url, "m")
    await model.apredict(CALL)
    model.close()
    assert await asyncio.to_thread(server.hung_up.wait, 10)


async def _apredict(model: EndpointWorldModel) -> None:
    await model.apredict(CALL)


async def test_lone_surrogates_are_no_obstacle(serve: Serve) -> None:
    server = serve(lambda _: answer())
    model = EndpointWorldModel(server.url, "m")
    assert await model.apredict(pending("a\ud800"))
    await model.aclose()


def test_the_key_is_not_shown() -> None:
    model = EndpointWorldModel("http://localhost/v1", "m", api_key="hunter2")
    assert "hunter2" not in repr(model)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"base_url": "localhost:8000"}, "base_url"),
        ({"model": ""}, "model"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_chars": 10}, "max_chars"),
        ({"min_probability": 1.5}, "min_probability"),
        ({"min_probability": math.nan}, "min_probability"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": math.inf}, "timeout_s"),
    ],
)
def test_values_that_can_not_work_are_named(arguments: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigurationError, match=names):
        EndpointWorldModel(**{"base_url": "http://localhost/v1", "model": "m"} | arguments)
