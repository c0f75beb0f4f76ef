"""Without LangGraph's tool node: loops by hand, the functional API; normalisers; the switch."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.func import entrypoint, task

from obsspec_agents import (
    ANSI_CODES,
    ConfigurationError,
    Normalizer,
    Speculator,
    speculative,
)
from obsspec_agents.events import Event, SkipReason, StepEnded, ToolEnded
from tests.contract.fakes import (
    Oracle,
    Policy,
    Shell,
    SyncPolicy,
    numbered,
    right,
    three_turns,
    two_turns,
    wrong,
)
from tests.contract.graphs import START_STATE, agent, played

MakeSpeculator = Callable[..., Speculator]


async def loop_by_hand(model: Any, speculator: Speculator | None) -> list[BaseMessage]:
    """A whole tool loop in a dozen lines."""
    messages: list[BaseMessage] = [HumanMessage("go")]
    while True:
        answer = await model.ainvoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            return messages
        if speculator is None:
            messages += [await ran(c) for c in answer.tool_calls]
            continue
        with speculator.step(answer) as step:
            messages += [step.observe(await ran(c)) for c in answer.tool_calls]


async def ran(call: Any) -> ToolMessage:
    await asyncio.sleep(2.0)
    return ToolMessage(f"ran {call['args']['command']}", tool_call_id=call["id"], name="shell")


@pytest.mark.looptime
@pytest.mark.parametrize("predict", [right, wrong])
async def test_an_asynchronous_loop(make_speculator: MakeSpeculator, predict: Any) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    plain = await loop_by_hand(Policy(three_turns()), None)
    plain_s = loop.time() - begun
    model = Policy(three_turns())
    speculator = make_speculator(Oracle(predict))
    with speculator.run(group="g", task="t") as run:
        begun = loop.time()
        messages = await loop_by_hand(speculative(model, speculator), speculator)
        seconds = loop.time() - begun
    assert run
    assert [m.content for m in messages] == [m.content for m in plain]
    assert speculator.summary.committed == (2 if predict is right else 0)
    assert (seconds < plain_s - 0.5) == (predict is right)
    assert model.counts["draws"] == (3 if predict is right else 5)


@pytest.mark.looptime
async def test_a_loop_outside_any_run_is_plain(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    model = Policy(three_turns())
    speculator = make_speculator(Oracle(right))
    messages = await loop_by_hand(speculative(model, speculator), speculator)
    assert messages[-1].content == "done with ran cat"
    assert (model.counts["draws"], events) == (3, [])


@pytest.mark.looptime
async def test_a_step_whose_tool_raises(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    model = Policy(two_turns(last=" ".join(["word"] * 50)))
    speculator = make_speculator(Oracle(right))
    joining = speculative(model, speculator)
    with speculator.run():
        said = await joining.ainvoke("go")
        with contextlib.suppress(KeyError), speculator.step(said):
            await asyncio.sleep(1.0)
            raise KeyError("the tool")
        await asyncio.sleep(0.1)
        assert model.counts == {"draws": 2, "open": 0, "aborted": 1, "finished": 1}
    assert [e.status for e in events if isinstance(e, ToolEnded)] == ["no result"]
    assert [e.outcome for e in events if isinstance(e, StepEnded)] == ["ended"]


def test_a_synchronous_loop(make_speculator: MakeSpeculator) -> None:
    drawn = threading.Event()

    class Telling(SyncPolicy):
        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            if len(messages) > 1:
                drawn.set()
            return super()._generate(messages, *args, **kwargs)

    model = Telling(two_turns())
    speculator = make_speculator(Oracle(right), allow_unabortable=True)
    joining = speculative(model, speculator)
    with speculator.run():
        said = joining.invoke("go")
        with speculator.step(said) as step:
            assert drawn.wait(10)
            result = step.observe(ToolMessage("ran ls", tool_call_id="c1", name="shell"))
        last = joining.invoke([HumanMessage("go"), said, result])
    assert last.content == "done with ran ls"
    assert (model.counts["draws"], speculator.summary.committed) == (2, 1)


@pytest.mark.looptime
@pytest.mark.parametrize("predict", [right, wrong])
async def test_the_functional_api(make_speculator: MakeSpeculator, predict: Any) -> None:
    speculator = make_speculator(Oracle(predict))
    model = Policy(three_turns())
    joining = speculative(model, speculator)

    @task
    async def ask(messages: list[BaseMessage]) -> AIMessage:
        answer = await joining.ainvoke(messages)
        assert isinstance(answer, AIMessage)
        return answer

    @task
    async def run_tool(call: Any) -> ToolMessage:
        return await ran(call)

    @entrypoint()
    async def workflow(prompt: str) -> list[BaseMessage]:
        messages: list[BaseMessage] = [HumanMessage(prompt)]
        while True:
            answer = await ask(messages)
            messages.append(answer)
            if not answer.tool_calls:
                return messages
            with speculator.step(answer) as step:
                messages += [step.observe(await run_tool(c)) for c in answer.tool_calls]

    messages = await workflow.ainvoke("go")
    assert [m.content for m in messages] == [
        m.content for m in await loop_by_hand(Policy(three_turns()), None)
    ]
    assert speculator.summary.committed == (2 if predict is right else 0)
    assert speculator.summary.runs == 1
    assert model.counts["open"] == 0


# ------------------------------------------------------------------------ normalisers

CLOCK = Normalizer.substitute("clock", r"in \d\.\d+s", "in <t>s", tools=["shell"])


def timed(command: str) -> str:
    return f"\x1b[31mran {command}\x1b[0m in 0.37s"


@pytest.mark.looptime
@pytest.mark.parametrize("switch", [{}, {"enabled": False}, "OBSSPEC_ENABLED"])
async def test_normalisers_apply_with_and_without_speculation(
    make_speculator: MakeSpeculator, monkeypatch: pytest.MonkeyPatch, switch: Any
) -> None:
    if isinstance(switch, str):
        monkeypatch.setenv(switch, " Off ")
        switch = {}
    speculator = make_speculator(
        Oracle(lambda c: f"{right(c)} in <t>s"), normalizers=[ANSI_CODES, CLOCK], **switch
    )
    on = speculator.enabled
    messages, _, _ = await played(
        agent(Policy(three_turns()), [Shell(result=timed).tool], speculator)
    )
    assert [m["content"] for m in messages if m["type"] == "tool"] == [
        "ran ls in <t>s",
        "ran cat in <t>s",
    ]
    assert speculator.summary.committed == (2 if on else 0)


@pytest.mark.looptime
async def test_normalisers_apply_in_a_step_by_hand(make_speculator: MakeSpeculator) -> None:
    speculator = make_speculator(enabled=False, normalizers=[ANSI_CODES])
    with speculator.step(three_turns()([])) as step:
        message = ToolMessage("\x1b[1mx\x1b[0m", tool_call_id="c1", name="shell")
        assert step.observe(message).content == "x"
        assert message.content == "\x1b[1mx\x1b[0m"


# ------------------------------------------------------------------------ the switch


@pytest.mark.looptime
@pytest.mark.parametrize("value", ["0", "false", "NO", "off"])
async def test_the_environment_turns_everything_off(
    make_speculator: MakeSpeculator, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("OBSSPEC_ENABLED", value)
    oracle = Oracle(right)
    speculator = make_speculator(oracle, enabled=True)
    model = Policy(numbered(three_turns()))
    await agent(model, [Shell().tool], speculator).ainvoke(START_STATE)
    assert (speculator.enabled, oracle.asked, oracle.observed) == (False, [], [])
    assert model.counts["draws"] == 3


@pytest.mark.looptime
async def test_off_the_run_is_still_measured(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    speculator = make_speculator(Oracle(right), enabled=False)
    await agent(Policy(three_turns()), [Shell().tool], speculator).ainvoke(START_STATE)
    assert (speculator.summary.turns, speculator.summary.tool_seconds) == (3, pytest.approx(4.0))
    assert [e.reason for e in events if isinstance(e, StepEnded)] == [SkipReason.DISABLED] * 2


@pytest.mark.parametrize(
    "wrong_one",
    [
        {"expiry_s": 0.0},
        {"expiry_s": float("nan")},
        {"max_in_flight": 0},
        {"world_model": "recall"},
        {"trace": "/proc/nowhere"},
    ],
    ids=str,
)
def test_parameters_that_can_not_work_are_named(wrong_one: dict[str, Any]) -> None:
    (name,) = wrong_one
    with pytest.raises(ConfigurationError, match=name):
        Speculator(**wrong_one)


@pytest.mark.parametrize("leave", ["with", "async with"])
def test_it_is_a_context_manager(leave: str) -> None:
    with Speculator(Oracle(right)) as speculator:
        assert speculator.enabled
    assert not speculator.enabled

    async def main() -> None:
        async with Speculator(Oracle(right)) as again:
            assert again.enabled
        assert not again.enabled

    asyncio.run(main())
