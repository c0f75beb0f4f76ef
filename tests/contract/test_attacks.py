"""Cases that once broke a rule; each is kept."""

from __future__ import annotations

import asyncio
import contextvars
import socket
import threading
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from obsspec_agents import (
    CascadeWorldModel,
    ConfigurationError,
    Normalizer,
    Observation,
    Prediction,
    RecallWorldModel,
    Speculator,
    speculative,
)
from obsspec_agents.events import Event, SkipReason, StepEnded
from obsspec_agents.hooks import is_transport_fault
from obsspec_agents.model_pool import ModelPool
from obsspec_agents.request import Mode, Request
from obsspec_agents.tool_node import SpeculativeToolNode
from tests.contract.fakes import Oracle, Policy, Shell, call, right, two_turns
from tests.contract.graphs import START_STATE, agent, transcript
from tests.contract.server import Server
from tests.contract.test_real_sockets import answer, model_of, shell

MakeSpeculator = Callable[..., Speculator]


class Polished(ChatOpenAI):
    """Overrides a synchronous hook alone."""

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._generate(*args, **kwargs)
        message = result.generations[0].message
        message.content = str(message.content).upper()
        return result


def test_a_hook_that_only_the_sync_path_has_is_not_passed_by(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    with Server(answer) as server:
        model = Polished(base_url=server.url, api_key="none", model="m")
        speculator = make_speculator(Oracle(right))
        state = agent(model, [shell(lambda: None)], speculator, sync=True).invoke(START_STATE)
    assert state["messages"][-1].text == "DONE WITH RAN LS"
    assert [e.reason for e in events if isinstance(e, StepEnded)] == [SkipReason.UNABORTABLE]


def test_a_client_of_the_user_is_not_passed_by() -> None:
    with Server(answer) as server:
        stock = model_of(server)
        given = ChatOpenAI(model="m", api_key="none", client=stock.client)
        pool = ModelPool(allow_unabortable=False)
        for model, can in ((stock, True), (given, False)):
            request = Request(model, Mode.GENERATE, [HumanMessage("go")], None, {})
            assert (pool.starter(request) is not None) is can
        asyncio.run(pool.aclose())


def test_one_set_of_connections_for_each_endpoint() -> None:
    pool = ModelPool(allow_unabortable=False)
    for _ in range(3):
        model = ChatOpenAI(model="m", api_key="none", base_url="http://127.0.0.1:9/v1")
        assert pool.starter(Request(model, Mode.GENERATE, [], None, {})) is not None
    assert len(pool._clients) == 1
    asyncio.run(pool.aclose())


class Sampling(BaseModel):
    temperature: float = 0.0


class Nested(Policy):
    sampling: Sampling = Sampling()
    options: dict[str, Any] = {}


class Rule(BaseModel):
    pass


class Pattern(Rule):
    pattern: str


class Guide(BaseModel):
    rule: Rule


def key(model: Any, **kwargs: Any) -> str:
    return Request(model, Mode.GENERATE, [HumanMessage("go")], None, kwargs).key


def test_settings_and_parameters_count_below_the_top_level() -> None:
    model = Nested(two_turns(), sampling=Sampling(), options={"t": 0.0, "client": object()})
    before = key(model)
    assert key(model) == before
    model.sampling.temperature = 1.0
    nested = key(model)
    assert nested != before
    model.options["t"] = 1.0
    assert key(model) != nested
    first, second = (Guide(rule=Pattern(pattern=p)) for p in "ab")
    assert key(model, guide=first) != key(model, guide=second)
    assert key(model, guide=first) == key(model, guide=Guide(rule=Pattern(pattern="a")))


def test_a_class_made_anew_is_another_parameter() -> None:
    def made() -> type[BaseModel]:
        class Answer(BaseModel):
            text: str

        return Answer

    model = Policy(two_turns())
    one, other = made(), made()
    assert key(model, response_format=one) != key(model, response_format=other)
    assert key(model, response_format=one) == key(model, response_format=one)


class TokenChat(ChatOpenAI):
    """Its hook looks at more than its payload says."""

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        return await super()._agenerate(*args, **kwargs)


def test_what_a_hook_of_another_origin_may_read_counts() -> None:
    plain = ToolMessage("out", tool_call_id="c1")
    other = ToolMessage("out", tool_call_id="c1", additional_kwargs={"token_ids": [7, 8]})
    for cls, differ in ((ChatOpenAI, False), (TokenChat, True)):
        model = cls(model="m", api_key="none")
        keys = {Request(model, Mode.GENERATE, [m], None, {}).key for m in (plain, other)}
        assert (len(keys) == 2) is differ


def test_artifacts_are_shared_and_all_else_is_copied() -> None:
    artifact = {"rows": [1, 2, 3]}
    message = ToolMessage([{"type": "text", "text": "a"}], tool_call_id="c", artifact=artifact)
    request = Request(Policy(two_turns()), Mode.GENERATE, [message], None, {})
    copied = request.extended([]).messages[0]
    assert isinstance(copied, ToolMessage)
    assert copied.artifact is artifact
    assert copied.content == message.content
    assert copied.content is not message.content


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (socket.gaierror(-3, "no name"), True),
        (OSError(101, "Network is unreachable"), True),
        (httpx.ConnectTimeout("slow"), True),
        (httpx.PoolTimeout("full"), True),
        (httpx.ReadTimeout("slow"), False),
        (type("RateLimitError", (Exception,), {"status_code": 429})(), True),
        (type("BadRequest", (Exception,), {"status_code": 400})(), False),
        (type("APIConnectionError", (Exception,), {})(), True),
        (TimeoutError(), False),
        (ValueError("does not parse"), False),
        (FileNotFoundError("x"), False),
    ],
)
def test_transport_faults_of_any_client_are_known(error: Exception, *, fault: bool) -> None:
    assert is_transport_fault(error) is fault


@pytest.mark.looptime
async def test_a_stream_that_was_lost_before_it_was_asked_for_is_fetched_anew(
    make_speculator: MakeSpeculator,
) -> None:
    lost = {2: (2, ConnectionResetError("lost"))}
    model = Policy(two_turns(), faults=lost, token_s=0.05)
    speculator = make_speculator(Oracle(right))
    graph = agent(model, [Shell(1.0).tool], speculator)
    said = [
        chunk.content
        async for chunk, where in graph.astream(START_STATE, stream_mode="messages")
        if where["langgraph_node"] == "agent" and isinstance(chunk, AIMessage)
    ]
    assert "".join(map(str, said)).endswith("done with ran ls")
    assert speculator.summary.refetched == 1


class Partial(Policy):
    """A hook that is no plain function."""

    async def _answered(self, *args: Any, **kwargs: Any) -> Any:
        return await super()._agenerate(*args, **kwargs)

    _agenerate = partialmethod(_answered)  # type: ignore[assignment]


@pytest.mark.looptime
async def test_a_hook_that_is_no_plain_function(make_speculator: MakeSpeculator) -> None:
    speculator = make_speculator(Oracle(right))
    plain = await agent(Partial(two_turns()), [Shell().tool], None).ainvoke(START_STATE)
    run = await agent(Partial(two_turns()), [Shell().tool], speculator).ainvoke(START_STATE)
    assert transcript(run["messages"]) == transcript(plain["messages"])


def test_a_run_may_be_left_in_another_context(make_speculator: MakeSpeculator) -> None:
    speculator = make_speculator(Oracle(right))
    run = speculator.run()
    contextvars.copy_context().run(run.__enter__)
    run.__exit__(None, None, None)
    assert speculator._runs.runs == []


def test_a_step_cannot_enter_a_run_that_has_ended(make_speculator: MakeSpeculator) -> None:
    speculator = make_speculator(Oracle(right))
    with speculator.run():
        here = contextvars.copy_context()
        run, _ = speculator._runs.here()
    assert run is not None
    speculator._runs.here = lambda config=None: (run, ())  # type: ignore[method-assign]
    message = AIMessage("", tool_calls=[call(_id="c1", command="ls")])
    assert here.run(speculator.tool_started, message, "c1") is None
    assert run.steps == {}


def test_closing_wakes_whoever_waits(make_speculator: MakeSpeculator) -> None:
    """The call that had joined a generation makes its own instead."""
    speculator = make_speculator(Oracle(right))
    closed = threading.Event()

    def hold(body: Any) -> bool:
        return body["messages"][-1]["role"] == "tool" and not closed.is_set()

    with Server(answer, hold) as server:
        graph = agent(
            model_of(server),
            [shell(lambda: server.wait_for(lambda s: s.requests == 2))],
            speculator,
            sync=True,
        )
        states: list[Any] = []
        thread = threading.Thread(target=lambda: states.append(graph.invoke(START_STATE)))
        thread.start()
        server.wait_for(lambda s: bool(speculator.summary.committed))
        closed.set()
        speculator.close()
        thread.join(20)
        server.release()
    assert states
    assert states[0]["messages"][-1].text == "done with ran ls"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: CascadeWorldModel([]),
        lambda: CascadeWorldModel([RecallWorldModel]),  # type: ignore[list-item]
        lambda: CascadeWorldModel(RecallWorldModel()),  # type: ignore[arg-type]
        lambda: Speculator(normalizers=[lambda s: s]),  # type: ignore[list-item]
        lambda: Speculator(exclude_tools="slow"),
        lambda: Speculator(sink=3),  # type: ignore[arg-type]
        lambda: Speculator(max_in_flight="3"),  # type: ignore[arg-type]
        lambda: Normalizer.substitute("d", "x", "y", tools="slow"),
        lambda: speculative(Policy(two_turns()), Oracle(right)),  # type: ignore[arg-type]
        lambda: SpeculativeToolNode([], speculator=Oracle(right)),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_work_is_refused_where_it_is_made(wrong: Callable[[], Any]) -> None:
    with pytest.raises(ConfigurationError):
        wrong()


@pytest.mark.looptime
@pytest.mark.parametrize("probability", [1.5, -0.1, float("nan"), "high"])
async def test_a_probability_is_one(make_speculator: MakeSpeculator, probability: Any) -> None:
    oracle = Oracle(lambda c: [Prediction(Observation(right(c)), probability, "oracle")])
    speculator = make_speculator(oracle)
    await agent(Policy(two_turns()), [Shell().tool], speculator).ainvoke(START_STATE)
    assert speculator.summary.committed == 0
    assert speculator.summary.failures == 1
