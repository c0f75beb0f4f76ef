"""What becomes of a speculation never depends on its generation."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence

import httpx
import openai
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from obsspec_agents import Speculator, speculative
from obsspec_agents.events import (
    DiscardReason,
    Event,
    GenerationCommitted,
    GenerationDiscarded,
    GenerationRefetched,
    PolicyAnswered,
    SkipReason,
    StepEnded,
    ToolStarted,
)
from tests.contract.fakes import (
    Oracle,
    Policy,
    Shell,
    call,
    numbered,
    pieces,
    right,
    two_turns,
    wrong,
)
from tests.contract.graphs import agent, played

pytestmark = pytest.mark.looptime

MakeSpeculator = Callable[..., Speculator]
REQUEST = httpx.Request("POST", "http://policy/v1/chat/completions")
LONG = "a long answer of many many words that goes on and on about {}"


def outcomes(events: Sequence[Event]) -> list[tuple[str, str]]:
    return [(e.outcome.value, e.reason) for e in events if isinstance(e, StepEnded)]


def discarded(events: Sequence[Event]) -> list[GenerationDiscarded]:
    return [e for e in events if isinstance(e, GenerationDiscarded)]


@pytest.mark.parametrize("how", ["ainvoke", "astream"])
async def test_a_match_in_flight_is_joined_and_runs_to_its_end(
    make_speculator: MakeSpeculator, events: list[Event], how: str
) -> None:
    model = Policy(numbered(two_turns(last=LONG)))
    speculator = make_speculator(Oracle(right))
    messages, _, seconds = await played(agent(model, [Shell(0.5).tool], speculator), how)
    assert model.counts == {"draws": 2, "open": 0, "aborted": 0, "finished": 2}
    first, last = (AIMessage(m["content"], tool_calls=m["tool_calls"]) for m in messages[1::2])
    assert last.content.endswith("#2")
    # The generation began with the tool, and was never begun again.
    assert seconds == pytest.approx(0.1 * (len(pieces(first)) + len(pieces(last))))
    committed = [e for e in events if isinstance(e, GenerationCommitted)]
    assert [e.hidden_seconds for e in committed] == [pytest.approx(0.5)]


@pytest.mark.parametrize(("tool_s", "finished"), [(0.3, False), (9.0, True)])
async def test_a_contradicted_one_is_dropped_finished_or_not(
    make_speculator: MakeSpeculator, events: list[Event], tool_s: float, finished: bool
) -> None:
    model = Policy(numbered(two_turns(last=LONG)))
    speculator = make_speculator(Oracle(wrong))
    messages, _, _ = await played(agent(model, [Shell(tool_s).tool], speculator))
    assert [(e.reason, e.finished) for e in discarded(events)] == [
        (DiscardReason.CONTRADICTED, finished)
    ]
    assert messages[-1]["content"].endswith("#3")
    assert model.counts["draws"] == 3
    assert outcomes(events) == [("missed", "contradicted")]


@pytest.mark.parametrize(("words", "finished"), [("{}", True), (LONG, False)])
@pytest.mark.parametrize("predicted_after", [0.0, 0.5])
async def test_the_expiry_counts_from_the_tool_and_drops_both(
    make_speculator: MakeSpeculator,
    events: list[Event],
    words: str,
    finished: bool,
    predicted_after: float,
) -> None:
    model = Policy(numbered(two_turns(last=words)))
    speculator = make_speculator(Oracle(right, predicted_after), expiry_s=1.0)
    messages, _, _ = await played(agent(model, [Shell(2.0).tool], speculator))
    (tool,) = [e for e in events if isinstance(e, ToolStarted)]
    (dropped,) = discarded(events)
    assert (dropped.reason, dropped.finished) == (DiscardReason.EXPIRED, finished)
    assert dropped.at == pytest.approx(tool.at + 1.0)
    assert messages[-1]["content"].endswith("#3")
    assert outcomes(events) == [("missed", "expired")]


async def test_a_prediction_after_the_expiry_begins_nothing(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    model = Policy(two_turns())
    await played(agent(model, [Shell(3.0).tool], make_speculator(Oracle(right, 2.0), expiry_s=1.0)))
    assert outcomes(events) == [("skipped", SkipReason.EXPIRED)]
    assert model.counts["draws"] == 2


async def test_the_expiry_leaves_a_joined_one_alone(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    model = Policy(numbered(two_turns(last=LONG)))
    await played(agent(model, [Shell(0.5).tool], make_speculator(Oracle(right), expiry_s=0.8)))
    assert outcomes(events) == [("committed", "")]
    assert model.counts["aborted"] == 0


async def test_the_cap_decides_only_what_starts(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    speculator = make_speculator(Oracle(right), max_in_flight=1)
    first = Policy(two_turns(last=LONG))
    late = Policy(two_turns(last="short {}"), token_s=0.15)
    runs = [
        agent(m, [Shell(5.0).tool], speculator).ainvoke({"messages": "go"}) for m in (first, late)
    ]
    await asyncio.gather(*runs)
    assert sorted(outcomes(events)) == [("committed", ""), ("skipped", SkipReason.IN_FLIGHT_LIMIT)]
    assert (first.counts["draws"], first.counts["aborted"]) == (2, 0)
    assert (late.counts["draws"], late.counts["aborted"]) == (2, 0)


async def test_the_cap_counts_only_what_is_in_flight(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    speculator = make_speculator(Oracle(right), max_in_flight=1)
    finished_early = Policy(two_turns(last="short"))
    late = Policy(two_turns(last="short"), token_s=0.5)
    runs = [
        agent(m, [Shell(5.0).tool], speculator).ainvoke({"messages": "go"})
        for m in (finished_early, late)
    ]
    await asyncio.gather(*runs)
    assert outcomes(events) == [("committed", "")] * 2


ANSWERS = {
    "does not parse": ValueError("no JSON"),
    "refused": openai.BadRequestError(
        "too long", response=httpx.Response(400, request=REQUEST), body=None
    ),
    "server error": openai.InternalServerError(
        "crashed", response=httpx.Response(500, request=REQUEST), body=None
    ),
    "time-out": openai.APITimeoutError(REQUEST),
    "own time-out": TimeoutError("no token for 60 s"),
    "read time-out": httpx.ReadTimeout("no byte", request=REQUEST),
    "length": openai.LengthFinishReasonError.__new__(openai.LengthFinishReasonError),
}


@pytest.mark.parametrize("how", ["ainvoke", "astream"])
@pytest.mark.parametrize("tool_s", [0.15, 5.0])
@pytest.mark.parametrize("what", ANSWERS)
async def test_an_answer_that_is_refused_is_the_answer(
    make_speculator: MakeSpeculator, events: list[Event], what: str, tool_s: float, how: str
) -> None:
    error = ANSWERS[what]
    model = Policy(two_turns(), {2: (2, error)})
    speculator = make_speculator(Oracle(right))
    with pytest.raises(type(error)) as raised:
        await played(agent(model, [Shell(tool_s).tool], speculator), how)
    assert raised.value is error
    assert model.counts["draws"] == 2
    assert speculator.summary.refetched == 0
    assert outcomes(events) == [("committed", "")]
    assert [e.error for e in events if isinstance(e, PolicyAnswered)] == [
        None,
        type(error).__name__,
    ]


TRANSPORT = {
    "connection": openai.APIConnectionError(request=REQUEST),
    "overloaded": openai.RateLimitError(
        "busy", response=httpx.Response(429, request=REQUEST), body=None
    ),
    "gateway": openai.InternalServerError(
        "gone", response=httpx.Response(503, request=REQUEST), body=None
    ),
    "reset": ConnectionResetError("by peer"),
    "read": httpx.ReadError("cut", request=REQUEST),
    "protocol": httpx.RemoteProtocolError("cut", request=REQUEST),
}


@pytest.mark.parametrize("how", ["ainvoke", "astream"])
@pytest.mark.parametrize("tool_s", [0.0, 5.0])
@pytest.mark.parametrize("what", TRANSPORT)
async def test_a_transport_fault_gets_a_fresh_call_that_is_counted(
    make_speculator: MakeSpeculator, events: list[Event], what: str, tool_s: float, how: str
) -> None:
    plain, _, _ = await played(agent(Policy(two_turns()), [Shell(tool_s).tool], None), how)
    model = Policy(two_turns(), {2: (0, TRANSPORT[what])})
    speculator = make_speculator(Oracle(right), policy_version="v1")
    messages, shown, _ = await played(agent(model, [Shell(tool_s).tool], speculator), how)
    assert messages == plain
    assert model.counts["draws"] == 3
    assert speculator.summary.refetched == 1
    assert sum(isinstance(e, GenerationRefetched) for e in events) == 1
    assert not any(isinstance(e, GenerationCommitted) for e in events)
    assert [e.joined for e in events if isinstance(e, PolicyAnswered)] == [False, False]
    assert sum(kind == "end" for kind, _ in shown) == 2


async def test_a_fault_in_a_stream_that_was_seen_is_raised(make_speculator: MakeSpeculator) -> None:
    error = openai.APIConnectionError(request=REQUEST)
    model = Policy(two_turns(), {2: (2, error)})
    speculator = make_speculator(Oracle(right))
    with pytest.raises(openai.APIConnectionError) as raised:
        await played(agent(model, [Shell(0.1).tool], speculator), "astream")
    assert raised.value is error
    assert (model.counts["draws"], speculator.summary.refetched) == (2, 0)


async def test_a_fault_after_tokens_that_were_told_is_raised(
    make_speculator: MakeSpeculator,
) -> None:
    # This hook does not stream, but tells its tokens: a fresh call would tell them twice.
    model = Policy(
        two_turns(), {2: (2, openai.APIConnectionError(request=REQUEST))}, tells_tokens=True
    )
    with pytest.raises(openai.APIConnectionError):
        await played(agent(model, [Shell(5.0).tool], make_speculator(Oracle(right))))
    assert model.counts["draws"] == 2


async def test_a_generation_closed_under_its_consumer_gets_a_fresh_call(
    make_speculator: MakeSpeculator,
) -> None:
    model = Policy(numbered(two_turns(last=LONG)))
    speculator = make_speculator(Oracle(right))
    graph = agent(model, [Shell(0.5).tool], speculator)
    run = asyncio.create_task(graph.ainvoke({"messages": "go"}))
    await asyncio.sleep(1.5)  # the tool ended at 0.8, the join is under way
    for task in asyncio.all_tasks():
        if "_produce" in repr(task.get_coro()):
            task.cancel()
    state = await run
    assert state["messages"][-1].content.endswith("#3")
    assert speculator.summary.refetched == 1


# ------------------------------------------------------------------------ the distribution

SHORT, LENGTHY = "no", " ".join(["well"] * 12)


async def sampled_run(
    model: Policy, speculator: Speculator, chance: random.Random, observation: str
) -> str:
    """Two turns in a loop written by hand; gives the sampled second answer."""
    joining = speculative(model, speculator)
    with speculator.run():
        messages: list[BaseMessage] = [HumanMessage("go")]
        answer = await joining.ainvoke(messages)
        with speculator.step(answer) as step:
            await asyncio.sleep(chance.choice([0.2, 0.9, 1.6]))
            result = step.observe(
                ToolMessage(observation, tool_call_id=answer.tool_calls[0]["id"], name="shell")
            )
        last = await joining.ainvoke([*messages, answer, result])
    return str(last.content)


async def test_what_is_committed_is_distributed_as_what_is_drawn(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    chance = random.Random(7)

    def sampled(messages: Sequence[BaseMessage]) -> AIMessage:
        if isinstance(messages[-1], ToolMessage):
            return AIMessage(SHORT if chance.random() < 0.5 else LENGTHY)
        return AIMessage("", tool_calls=[call(command="ls")])

    model = Policy(sampled)
    # Predictions come true half of the time; some generations end before the tool, some
    # after it, some meet the expiry, some don't.
    speculator = make_speculator(
        Oracle(lambda c: chance.choice(["a", "b"]), 0.1), expiry_s=1.2, max_in_flight=20
    )
    runs = 600
    answers: list[str] = []
    for _ in range(runs // 30):
        answers += await asyncio.gather(
            *(sampled_run(model, speculator, chance, chance.choice(["a", "b"])) for _ in range(30))
        )
    kinds = Counter(outcome for outcome, _ in outcomes(events))
    assert min(kinds[k] for k in ("committed", "missed", "skipped")) > runs / 20
    reasons = Counter(e.reason for e in discarded(events))
    assert reasons[DiscardReason.EXPIRED] > runs / 20
    expected = runs / 2
    chi_square = sum((answers.count(kind) - expected) ** 2 / expected for kind in (SHORT, LENGTHY))
    assert chi_square < 6.63  # p = 0.01 with one degree of freedom; the seed is fixed
