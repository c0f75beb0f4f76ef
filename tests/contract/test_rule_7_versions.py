"""What was begun under one policy version is not committed under another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from obsspec_agents import Speculator
from obsspec_agents.events import (
    DiscardReason,
    Event,
    GenerationCommitted,
    GenerationDiscarded,
    PolicyAnswered,
    StepEnded,
    VersionChanged,
)
from tests.contract.fakes import Oracle, Policy, Shell, numbered, right, two_turns
from tests.contract.graphs import START_STATE, agent

pytestmark = pytest.mark.looptime

MakeSpeculator = Callable[..., Speculator]
LONG = " ".join(["word"] * 100)


@pytest.mark.parametrize(("words", "finished"), [("short", True), (LONG, False)])
async def test_a_new_version_drops_finished_and_unfinished_alike(
    make_speculator: MakeSpeculator, events: list[Event], words: str, finished: bool
) -> None:
    model = Policy(numbered(two_turns(last=words)))
    speculator = make_speculator(Oracle(right), policy_version="v1")
    run = asyncio.create_task(agent(model, [Shell(3.0).tool], speculator).ainvoke(START_STATE))
    await asyncio.sleep(2.0)
    speculator.set_policy_version("v2")
    state = await run
    assert state["messages"][-1].content.endswith("#3")
    (dropped,) = [e for e in events if isinstance(e, GenerationDiscarded)]
    assert (dropped.reason, dropped.finished) == (DiscardReason.VERSION_CHANGED, finished)
    assert [e.version for e in events if isinstance(e, PolicyAnswered)] == ["v1", "v2"]
    assert [e.reason for e in events if isinstance(e, StepEnded)] == ["version_changed"]
    assert [e.version for e in events if isinstance(e, VersionChanged)] == ["v2"]


async def test_the_same_version_again_drops_nothing(make_speculator: MakeSpeculator) -> None:
    model = Policy(two_turns())
    speculator = make_speculator(Oracle(right), policy_version="v1")
    run = asyncio.create_task(agent(model, [Shell(3.0).tool], speculator).ainvoke(START_STATE))
    await asyncio.sleep(2.0)
    speculator.set_policy_version("v1")
    await run
    assert speculator.summary.committed == 1


async def test_other_versions_when_the_caller_allows_them(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    model = Policy(numbered(two_turns()))
    speculator = make_speculator(Oracle(right), policy_version="v1", allow_other_versions=True)
    run = asyncio.create_task(agent(model, [Shell(3.0).tool], speculator).ainvoke(START_STATE))
    await asyncio.sleep(2.0)
    speculator.set_policy_version("v2")
    state = await run
    assert state["messages"][-1].content.endswith("#2")
    assert speculator.policy_version == "v2"
    # The turn records what its tokens came from.
    assert [e.version for e in events if isinstance(e, PolicyAnswered)] == ["v1", "v1"]
    assert [e.version for e in events if isinstance(e, GenerationCommitted)] == ["v1"]


async def test_a_call_keeps_the_version_that_it_was_made_under(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    model = Policy(two_turns(last=LONG))
    speculator = make_speculator(Oracle(lambda c: None), policy_version="v1")
    run = asyncio.create_task(agent(model, [Shell(1.0).tool], speculator).ainvoke(START_STATE))
    await asyncio.sleep(5.0)  # the second call, a plain one, is under way
    speculator.set_policy_version("v2")
    await run
    assert [e.version for e in events if isinstance(e, PolicyAnswered)] == ["v1", "v1"]


async def test_a_join_under_way_is_a_call_under_way(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    model = Policy(two_turns(last=LONG))
    speculator = make_speculator(Oracle(right), policy_version="v1")
    run = asyncio.create_task(agent(model, [Shell(1.0).tool], speculator).ainvoke(START_STATE))
    await asyncio.sleep(5.0)
    speculator.set_policy_version("v2")
    await run
    assert (model.counts["draws"], speculator.summary.committed) == (2, 1)
    assert [e.version for e in events if isinstance(e, PolicyAnswered)] == ["v1", "v1"]
