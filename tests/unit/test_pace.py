"""The measured pace, and the union of tool intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obsspec_agents.pace import Intervals, Pace


def test_nothing_is_known_before_the_first_call() -> None:
    pace = Pace()
    assert (pace.seconds(10), pace.tokens(1.0)) == (None, 0)
    pace.add(None, 1.0)
    pace.add(0, 1.0)
    assert pace.seconds(10) is None


def test_one_call_gives_a_rate() -> None:
    pace = Pace()
    pace.add(60, 1.0)
    assert pace.seconds(120) == pytest.approx(2.0)
    assert pace.tokens(2.0) == 120
    assert pace.seconds(None) is None


@given(
    base=st.floats(0.0, 5.0),
    rate=st.floats(0.001, 0.5),
    counts=st.lists(st.integers(1, 1000), min_size=2, unique=True),
    asked=st.integers(1, 1000),
)
def test_a_first_token_and_a_rate_are_found(
    base: float, rate: float, counts: list[int], asked: int
) -> None:
    pace = Pace()
    for tokens in counts:
        pace.add(tokens, base + rate * tokens)
    assert pace.seconds(asked) == pytest.approx(base + rate * asked, rel=0.05, abs=0.05)
    assert abs(pace.tokens(base + rate * asked) - asked) <= 1 + 0.05 * (asked + base / rate)


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0.0, 100.0)), min_size=1))
def test_noise_never_gives_negative_times(calls: list[tuple[int, float]]) -> None:
    pace = Pace()
    for tokens, seconds in calls:
        pace.add(tokens, seconds)
    for tokens in (1, 10, 10_000):
        assert (pace.seconds(tokens) or 0.0) >= 0.0
    for seconds in (0.0, 0.1, 1e6):
        assert pace.tokens(seconds) >= 0


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


@given(spans, st.integers(0, 30), st.integers(0, 30))
def test_intervals_count_every_second_once(
    pairs: list[tuple[int, int]], start: int, end: int
) -> None:
    intervals, covered = Intervals(), set()
    for index, (one, other) in enumerate(pairs):
        low, high = sorted((one, other))
        intervals.start(str(index), low)
        intervals.end(str(index), high)
        covered |= set(range(low, high))
    assert intervals.seconds == len(covered)
    inside = covered & set(range(start, max(start, end)))
    assert intervals.inside(start, max(start, end)) == len(inside)


def test_a_tool_that_still_runs_counts_up_to_the_end_asked_for() -> None:
    intervals = Intervals()
    intervals.start("a", 2.0)
    assert intervals.inside(1.0, 5.0) == 3.0
    assert intervals.seconds == 0.0
    intervals.end("never started", 7.0)
    assert intervals.seconds == 0.0
