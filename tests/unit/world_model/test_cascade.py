"""The cascade: in order, around failures, and everybody is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from obsspec_agents.errors import ConfigurationError
from obsspec_agents.observation import Observation
from obsspec_agents.world_model import (
    CascadeWorldModel,
    PendingCall,
    Prediction,
    RecallWorldModel,
    RunInfo,
    WorldModel,
)
from tests.unit.world_model.transcripts import pending, returned


class Fake(WorldModel):
    def __init__(self, text: str | None = None, error: Exception | None = None) -> None:
        self.text = text
        self.error = error
        self.told: list[str] = []

    def predict(self, call: PendingCall) -> Sequence[Prediction]:
        self.told.append("predict")
        if self.error is not None:
            raise self.error
        return () if self.text is None else [Prediction(returned(self.text), 0.5, "fake")]

    def observe(self, call: PendingCall, observation: Observation) -> None:
        self.told.append(f"observe {observation.content}")
        if self.error is not None:
            raise self.error

    def end_run(self, run: RunInfo) -> None:
        self.told.append(f"end {run.id}")

    def close(self) -> None:
        self.told.append("close")


class AsyncOnly(WorldModel):
    async def apredict(self, call: PendingCall) -> Sequence[Prediction]:
        await asyncio.sleep(0)
        return [Prediction(returned("async"), 0.5, "async")]


async def both(model: WorldModel) -> list[object]:
    sync = [p.observation.content for p in model.predict(pending())]
    assert [p.observation.content for p in await model.apredict(pending())] == sync
    return list(sync)


async def test_the_first_member_with_a_prediction_answers() -> None:
    last = Fake("c")
    assert await both(CascadeWorldModel([Fake(), Fake("b"), last])) == ["b"]
    assert not last.told


async def test_no_prediction_where_no_member_has_one() -> None:
    assert await both(CascadeWorldModel([Fake(), Fake()])) == []


async def test_a_member_that_fails_is_passed_over() -> None:
    assert await both(CascadeWorldModel([Fake(error=OSError("down")), Fake("b")])) == ["b"]


async def test_the_first_error_is_raised_when_no_member_answers() -> None:
    model = CascadeWorldModel([Fake(), Fake(error=OSError("1")), Fake(error=OSError("2")), Fake()])
    with pytest.raises(OSError, match="1"):
        model.predict(pending())
    with pytest.raises(OSError, match="1"):
        await model.apredict(pending())


async def test_members_may_be_async_only_and_threads_pass_them_over() -> None:
    model = CascadeWorldModel([AsyncOnly(), Fake("sync")])
    assert [p.predictor for p in await model.apredict(pending())] == ["async"]
    assert [p.predictor for p in model.predict(pending())] == ["fake"]


async def test_cancelling_reaches_the_caller() -> None:
    started = asyncio.Event()

    class Slow(WorldModel):
        async def apredict(self, call: PendingCall) -> Sequence[Prediction]:
            started.set()
            await asyncio.Event().wait()
            return ()

    last = Fake("b")
    task = asyncio.create_task(CascadeWorldModel([Slow(), last]).apredict(pending()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not last.told


def test_all_members_are_told_even_when_one_fails() -> None:
    first, second = Fake(error=OSError("full")), Fake()
    model = CascadeWorldModel([first, second])
    with pytest.raises(OSError, match="full"):
        model.observe(pending(), returned("x"))
    model.end_run(RunInfo("run-1"))
    model.close()
    assert first.told == second.told == ["observe x", "end run-1", "close"]


def test_it_is_instant_when_all_members_are() -> None:
    assert CascadeWorldModel([RecallWorldModel(), RecallWorldModel()]).instant
    assert not CascadeWorldModel([RecallWorldModel(), Fake()]).instant


def test_a_cascade_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        CascadeWorldModel([])
