"""The state machine of speculation, also at depths and breadths that nothing uses yet."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from langchain_core.messages import AIMessage

from obsspec_agents.events import DiscardReason
from obsspec_agents.observation import Observation
from obsspec_agents.steps import Speculation, State, Step
from obsspec_agents.world_model.base import Prediction


def step_of(*ids: str, above: Speculation | None = None) -> Step:
    calls = [{"name": "shell", "args": {}, "id": i, "type": "tool_call"} for i in ids]
    step = Step(f"step {ids}", AIMessage("", tool_calls=calls), above)
    if above is not None:
        above.below.append(step)
    return step


def predict(**texts: str) -> dict[str, Prediction]:
    return {i: Prediction(Observation(t), 0.5, "p", seen=t != "new") for i, t in texts.items()}


def speculate(step: Step, key: str = "k", version: str | None = None, **texts: str) -> Speculation:
    predictions = predict(**texts)
    assumed = step.assume(predictions)
    assert assumed is not None
    known = {c.id for c in step.calls.values() if c.ended is not None}
    open_ones = {i: p for i, p in predictions.items() if i not in known}
    speculation = Speculation(key, step, assumed, open_ones, key, version)
    step.speculate(speculation)
    return speculation


def test_a_right_prediction_is_claimed_once() -> None:
    step = step_of("a")
    speculation = speculate(step, a="x")
    assert step.observe("a", Observation("x"), 1.0) == []
    assert step.observed
    assert step.claim("k", None, any_version=False) is speculation
    assert step.claim("k", None, any_version=False) is None
    assert (speculation.state, step.committed) == (State.COMMITTED, speculation)
    assert step.discard_all(DiscardReason.RUN_ENDED) == []


@pytest.mark.parametrize(
    "real", [Observation("y"), Observation("x", "error"), Observation(["x"]), None]
)
def test_anything_else_contradicts(real: Observation | None) -> None:
    step = step_of("a")
    speculation = speculate(step, a="x")
    assert step.observe("a", real, 1.0) == [speculation]
    assert speculation.discarded is DiscardReason.CONTRADICTED
    assert step.missed is DiscardReason.CONTRADICTED
    assert step.claim("k", None, any_version=True) is None


def test_another_key_claims_nothing() -> None:
    step = step_of("a")
    speculate(step, a="x")
    assert step.claim("other", None, any_version=False) is None
    assert len(step.live) == 1


def test_one_living_generation_a_request() -> None:
    step = step_of("a")
    first = speculate(step, a="x")
    assert not step.speculate(Speculation("again", step, first.assumed, {}, "k", None))
    assert step.live == [first]
    step.discard_all(DiscardReason.EXPIRED)
    assert step.speculate(Speculation("later", step, first.assumed, {}, "k", None))


def test_branches_are_contradicted_one_by_one() -> None:
    step = step_of("a")
    x, y = speculate(step, "kx", a="x"), speculate(step, "ky", a="y")
    assert step.observe("a", Observation("y"), 1.0) == [x]
    assert step.live == [y]


def test_what_is_below_falls_with_what_is_above() -> None:
    top = step_of("a")
    first, other = speculate(top, "k1", a="x"), speculate(top, "k2", a="y")
    second = step_of("b", above=first)
    deep = speculate(second, "k3", b="z")
    third = step_of("c", above=deep)
    deepest = speculate(third, "k4", c="w")
    assert [s.depth for s in (top, second, third)] == [1, 2, 3]
    assert top.observe("a", Observation("y"), 1.0) == [first, deep, deepest]
    assert (other.state, deepest.discarded) == (State.LIVE, DiscardReason.CONTRADICTED)


def test_versions() -> None:
    step = step_of("a")
    old, new = speculate(step, "k1", "v1", a="x"), speculate(step, "k2", "v2", a="x")
    assert step.claim("k1", "v2", any_version=False) is None
    assert step.discard_other_versions("v2") == [old]
    assert step.claim("k2", "v2", any_version=False) is new
    again = step_of("a")
    kept = speculate(again, "k1", "v1", a="x")
    assert again.claim("k1", "v2", any_version=True) is kept


def test_the_known_counts_before_the_predicted() -> None:
    step = step_of("a", "b")
    assert step.assume({}) is None
    assert step.assume(predict(a="x")) is None
    step.started("a", 1.0)
    step.started("b", 0.5)
    assert step.first_started == 0.5
    step.observe("a", Observation("real"), 2.0)
    assumed = step.assume(predict(a="x", b="y"))
    assert assumed == {"a": Observation("real"), "b": Observation("y")}
    assert not step.observed
    messages = step.messages(assumed)
    assert [m.content for m in messages] == ["", "real", "y"]
    assert [getattr(m, "tool_call_id", None) for m in messages] == [None, "a", "b"]
    step.observe("b", None, 3.0)
    assert step.assume(predict(a="x", b="y")) is None


@pytest.mark.parametrize(("text", "seen"), [("old", True), ("new", False)])
def test_seen_is_about_what_was_predicted(text: str, seen: bool) -> None:
    step = step_of("a", "b")
    step.observe("a", Observation("x"), 1.0)
    assert speculate(step, a="new", b=text).seen is seen


TEXTS = st.sampled_from(["x", "y", "z"])
REASONS = st.sampled_from([DiscardReason.EXPIRED, DiscardReason.RUN_ENDED])


class Steps(RuleBasedStateMachine):
    """Any order of predictions, observations, claims and ends on a step of two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.step = step_of("a", "b")
        self.made: list[Speculation] = []
        self.gone: set[str] = set()
        self.version = "v1"

    @rule(a=TEXTS, b=TEXTS)
    def speculates(self, a: str, b: str) -> None:
        assumed = self.step.assume(predict(a=a, b=b))
        if assumed is None:
            return
        key = f"{assumed['a'].text} {assumed['b'].text}"
        speculation = Speculation(
            str(len(self.made)), self.step, assumed, predict(a=a, b=b), key, self.version
        )
        twin = any(s.request_key == key for s in self.step.live)
        assert self.step.speculate(speculation) is not twin
        if not twin:
            self.made.append(speculation)

    @rule(call=st.sampled_from("ab"), text=st.none() | TEXTS)
    def observes(self, call: str, text: str | None) -> None:
        if self.step.calls[call].ended is not None:
            return
        observation = None if text is None else Observation(text)
        self.lost(self.step.observe(call, observation, 1.0), DiscardReason.CONTRADICTED)
        assert all(s.assumed[call] == observation for s in self.step.live)

    @rule(reason=REASONS)
    def ends(self, reason: DiscardReason) -> None:
        self.lost(self.step.discard_all(reason), reason)
        assert self.step.live == []

    @rule(version=st.sampled_from(["v1", "v2"]))
    def changes_version(self, version: str) -> None:
        self.version = version
        self.lost(self.step.discard_other_versions(version), DiscardReason.VERSION_CHANGED)

    @precondition(lambda self: self.made)
    @rule(data=st.data(), version=st.sampled_from(["v1", "v2"]), any_version=st.booleans())
    def claims(self, data: st.DataObject, version: str, any_version: bool) -> None:
        wanted = data.draw(st.sampled_from(self.made))
        living = wanted.state is State.LIVE
        fits = any_version or wanted.version == version
        claimed = self.step.claim(wanted.request_key, version, any_version=any_version)
        if living and fits:
            assert claimed is wanted
        if claimed is not None:
            assert claimed.request_key == wanted.request_key
            assert claimed.state is State.COMMITTED
            assert any_version or claimed.version == version

    def lost(self, dropped: list[Speculation], reason: DiscardReason) -> None:
        for speculation in dropped:
            assert speculation.id not in self.gone
            assert (speculation.state, speculation.discarded) == (State.DISCARDED, reason)
            self.gone.add(speculation.id)
        if dropped:
            assert self.step.missed is reason

    @invariant()
    def every_speculation_is_in_one_state(self) -> None:
        for speculation in self.made:
            assert (speculation.id in self.gone) == (speculation.state is State.DISCARDED)
            assert (speculation.discarded is not None) == (speculation.state is State.DISCARDED)
        keys = [s.request_key for s in self.step.live]
        assert len(keys) == len(set(keys))


Steps.TestCase.settings = settings(max_examples=60, stateful_step_count=20)
TestSteps = Steps.TestCase
