"""Whatever a world model, a sink or a speculation does wrong costs only the time saved."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage

from obsspec_agents import Observation, PendingCall, Prediction, Speculator, WorldModel
from obsspec_agents.events import (
    Event,
    SkipReason,
    SpeculationFailed,
    StepEnded,
)
from obsspec_agents.worker import MAX_WORKERS, in_worker
from tests.contract.fakes import Oracle, Policy, Shell, call, right, three_turns
from tests.contract.graphs import START_STATE, agent, played

pytestmark = pytest.mark.looptime

MakeSpeculator = Callable[..., Speculator]


class Rude(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("not even this")


class Odd(WorldModel):
    """Returns or raises what it is given."""

    def __init__(self, what: Any) -> None:
        self.what = what

    async def apredict(self, call: PendingCall) -> Any:
        if isinstance(self.what, BaseException):
            raise self.what
        return self.what(call) if callable(self.what) else self.what


def predicted(content: Any, probability: Any = 0.5, status: Any = "success") -> list[Any]:
    return [Prediction(Observation(content, status), probability, "odd")]


ODD: dict[str, tuple[Any, SkipReason]] = {
    "None": (None, SkipReason.NO_PREDICTION),
    "nothing": ([], SkipReason.NO_PREDICTION),
    "a string": ("ran ls", SkipReason.FAILED),
    "a number": (42, SkipReason.FAILED),
    "a list of strings": (["ran ls"], SkipReason.FAILED),
    "a dictionary": ({"content": "ran ls"}, SkipReason.FAILED),
    "not an observation": ([Prediction("ran ls", 0.5, "odd")], SkipReason.FAILED),  # type: ignore[arg-type]
    "a strange status": (predicted("x", status="maybe"), SkipReason.FAILED),
    "NaN": (predicted("x", float("nan")), SkipReason.FAILED),
    "infinite": (predicted("x", float("inf")), SkipReason.FAILED),
    "no probability": (predicted("x", None), SkipReason.FAILED),
    "megabytes": (predicted("x" * 5_000_000), SkipReason.UNUSABLE_PREDICTION),
    "surrogates": (predicted("x\udc80"), SkipReason.UNUSABLE_PREDICTION),
    "blocks": (predicted([{"type": "text", "text": "x"}]), SkipReason.UNUSABLE_PREDICTION),
    "no content": (predicted(None), SkipReason.UNUSABLE_PREDICTION),
    "an error": (RuntimeError("down"), SkipReason.FAILED),
    "a time-out": (TimeoutError("slow"), SkipReason.FAILED),
    "an interrupt of its own": (asyncio.CancelledError(), SkipReason.LATE),
    "an exit": (SystemExit(3), SkipReason.FAILED),
    "a generator's exit": (GeneratorExit(), SkipReason.FAILED),
    "no Exception": (Rude("x"), SkipReason.FAILED),
    "an error without words": (Mute(), SkipReason.FAILED),
}


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_world_model_changes_nothing(
    make_speculator: MakeSpeculator, events: list[Event], name: str
) -> None:
    odd, reason = ODD[name]
    plain = await played(agent(Policy(three_turns()), [Shell().tool], None), "astream_events")
    model = Policy(three_turns())
    run = await played(agent(model, [Shell().tool], make_speculator(Odd(odd))), "astream_events")
    assert run == plain
    assert model.counts["draws"] == 3
    assert [e.reason for e in events if isinstance(e, StepEnded)] == [reason] * 2
    failures = [e for e in events if isinstance(e, SpeculationFailed)]
    assert len(failures) == (2 if reason is SkipReason.FAILED else 0)


@pytest.mark.parametrize("name", ["an exit", "no Exception", "a string", "NaN"])
async def test_an_odd_world_model_and_parallel_calls(
    make_speculator: MakeSpeculator, events: list[Event], name: str
) -> None:
    def two_calls(messages: Sequence[Any]) -> AIMessage:
        if len(messages) > 1:
            return AIMessage("done")
        return AIMessage("", tool_calls=[call(_id="a", command="x"), call(_id="b", command="y")])

    odd, reason = ODD[name]
    state = await agent(Policy(two_calls), [Shell().tool], make_speculator(Odd(odd))).ainvoke(
        START_STATE
    )
    assert [m.content for m in state["messages"][2:4]] == ["ran x", "ran y"]
    assert [e.reason for e in events if isinstance(e, StepEnded)] == [reason]


@pytest.mark.parametrize("seconds", [2.5, 1e9])
async def test_a_slow_world_model_delays_nothing(
    make_speculator: MakeSpeculator, events: list[Event], seconds: float
) -> None:
    plain = await played(agent(Policy(three_turns()), [Shell().tool], None))
    run = await played(
        agent(Policy(three_turns()), [Shell().tool], make_speculator(Oracle(right, seconds)))
    )
    assert run == plain
    assert [e.reason for e in events if isinstance(e, StepEnded)] == [SkipReason.LATE] * 2


async def test_a_generation_that_does_not_match_is_not_waited_for(
    make_speculator: MakeSpeculator,
) -> None:
    class Stubborn(Policy):
        """Takes a minute to be cancelled."""

        async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return await super()._agenerate(messages, *args, **kwargs)
            except asyncio.CancelledError:
                await asyncio.sleep(60.0)
                raise

    plain = await played(agent(Policy(three_turns()), [Shell(0.05).tool], None))
    speculator = make_speculator(Oracle(lambda c: "something else"))
    run = await played(agent(Stubborn(three_turns()), [Shell(0.05).tool], speculator))
    assert (run[0], run[2]) == (plain[0], pytest.approx(plain[2]))
    await asyncio.sleep(120.0)


@pytest.mark.parametrize("error", [RuntimeError("x"), Rude("x"), SystemExit(1), Mute()])
async def test_a_memory_that_raises_changes_nothing(
    make_speculator: MakeSpeculator, events: list[Event], error: BaseException
) -> None:
    class Forgetful(Oracle):
        def observe(self, call: PendingCall, observation: Observation) -> None:
            raise error

        def end_run(self, run: Any) -> None:
            raise error

    plain = await played(agent(Policy(three_turns()), [Shell().tool], None))
    run = await played(
        agent(Policy(three_turns()), [Shell().tool], make_speculator(Forgetful(right)))
    )
    assert run[:2] == plain[:2]
    stages = [e.stage for e in events if isinstance(e, SpeculationFailed)]
    assert stages == ["memory"] * 3


@pytest.mark.parametrize("error", [RuntimeError("x"), Rude("x"), SystemExit(1)])
async def test_a_sink_that_raises_changes_nothing(
    make_speculator: MakeSpeculator, error: BaseException
) -> None:
    def sink(event: Event) -> None:
        raise error

    plain = await played(agent(Policy(three_turns()), [Shell().tool], None))
    speculator = make_speculator(Oracle(right), sink=sink)
    run = await played(agent(Policy(three_turns()), [Shell().tool], speculator))
    assert run[:2] == plain[:2]
    assert speculator.summary.committed == 2
    assert speculator.summary.failures > 10


@pytest.mark.parametrize("predict", [right, lambda c: "something else"])
async def test_a_speculation_that_fails_changes_nothing(
    make_speculator: MakeSpeculator, predict: Any
) -> None:
    plain = await played(agent(Policy(three_turns()), [Shell().tool], None))
    fault = openai.APIConnectionError(request=None)  # type: ignore[arg-type]
    model = Policy(three_turns(), {2: (1, fault)})
    speculator = make_speculator(Oracle(predict))
    run = await played(agent(model, [Shell().tool], speculator))
    assert run[:2] == plain[:2]
    assert speculator.summary.failures == 1


async def test_a_request_that_can_not_be_compared_is_not_speculated_on(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    speculator = make_speculator(Oracle(right))
    plain = await played(agent(Policy(three_turns()), [Shell().tool], None))
    model = Policy(three_turns())
    graph = agent(model, [Shell().tool], speculator, bound={"opaque": object()})
    run = await played(graph)
    assert run[0] == plain[0]
    assert model.counts["draws"] == 3
    assert [e.reason for e in events if isinstance(e, StepEnded)] == [SkipReason.FAILED] * 2


def test_a_blocking_world_model_that_hangs_takes_no_thread_of_the_run(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    """Fifty of them hang, more than asyncio's default executor has threads; the tools, which
    are synchronous, still run, and the loop still ends."""
    hanging = threading.Event()

    class Hanging(WorldModel):
        def predict(self, call: PendingCall) -> list[Prediction]:
            hanging.wait()
            return []

    speculator = make_speculator(Hanging())

    async def main() -> list[Any]:
        shell = Shell()
        tool = shell.tool.model_copy(update={"coroutine": None})
        graphs = [agent(Policy(three_turns(), token_s=0.0), [tool], speculator) for _ in range(50)]
        try:
            async with asyncio.timeout(30.0):
                return await asyncio.gather(*(graph.ainvoke(START_STATE) for graph in graphs))
        except TimeoutError:
            hanging.set()
            raise

    states = asyncio.run(main())
    assert [s["messages"][-1].content for s in states] == ["done with ran cat"] * 50
    assert {e.reason for e in events if isinstance(e, StepEnded)} == {SkipReason.LATE}
    hanging.set()


def test_hanging_workers_do_not_pile_up_for_ever() -> None:
    hanging = threading.Event()

    async def main() -> None:
        waiting = [asyncio.create_task(in_worker(hanging.wait)) for _ in range(MAX_WORKERS)]
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="worker threads"):
            await in_worker(hanging.wait)
        hanging.set()
        assert all(await asyncio.gather(*waiting))
        assert await in_worker(lambda: 1) == 1

    asyncio.run(main())
