"""Family lines of chains and tools, and their ends."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from obsspec_agents.runs import Lineage, RunTracker, lineage_of, tracker


def chain(tracking: RunTracker, parent: UUID | None = None) -> UUID:
    run = uuid4()
    tracking.on_chain_start({}, {}, run_id=run, parent_run_id=parent)
    return run


def test_a_line_goes_from_the_innermost_to_the_outermost() -> None:
    tracking = RunTracker()
    top = chain(tracking)
    tool_run, inner = uuid4(), uuid4()
    tracking.on_tool_start({}, "", run_id=tool_run, parent_run_id=top)
    tracking.on_chain_start({}, {}, run_id=inner, parent_run_id=tool_run)
    assert tracking.lineage(str(inner)) == (str(inner), str(tool_run), str(top))
    assert tracking.lineage(str(uuid4())) == ()


@pytest.mark.parametrize("end", ["on_chain_end", "on_chain_error", "on_tool_end", "on_tool_error"])
def test_every_end_is_told_once(end: str) -> None:
    tracking, told = RunTracker(), []
    run = chain(tracking)
    assert tracking.watch(str(run), lambda: told.append(1))
    assert tracking.watch(str(run), lambda: told.append(2))
    for _ in range(2):
        getattr(tracking, end)(ValueError() if "error" in end else {}, run_id=run)
    assert told == [1, 2]
    assert tracking.lineage(str(run)) == ()
    assert not tracking.watch(str(run), lambda: told.append(3))


def test_the_running_code_knows_its_line() -> None:
    lines: list[Lineage] = []

    @tool
    def inner(x: str) -> str:
        """Look."""
        lines.append(lineage_of()[0])
        return x

    def outer(x: str) -> str:
        lines.append(lineage_of()[0])
        return str(inner.invoke(x))

    tracker()
    RunnableLambda(outer).invoke("x", {"metadata": {"obsspec_task": "t"}})
    first, second = lines
    assert len(first) == 1
    assert second[-1] == first[0]
    assert lineage_of() == ((), {})
    assert tracker().lineage(first[0]) == ()


def test_there_is_one_tracker() -> None:
    assert tracker() is tracker()
