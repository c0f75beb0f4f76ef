"""Recall: what the same call returned before, and never to anybody out of scope."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from obsspec_agents.errors import ConfigurationError
from obsspec_agents.observation import Observation
from obsspec_agents.world_model import PendingCall, RecallWorldModel, RunInfo, Scope
from tests.unit.world_model.transcripts import Steps, pending, returned, transcript

texts = st.text(st.characters(codec=None), max_size=12)
"""Any text, lone surrogates included."""
observations = st.builds(Observation, texts, st.sampled_from(["success", "error"]))


def recalled(model: RecallWorldModel, call: PendingCall) -> list[tuple[Any, float]]:
    return [(p.observation.content, p.probability) for p in model.predict(call)]


def test_nothing_is_predicted_before_anything_was_seen() -> None:
    assert not RecallWorldModel().predict(pending())


def test_one_sighting_is_worth_a_half_and_agreement_more() -> None:
    model = RecallWorldModel()
    model.observe(pending(), returned("a"))
    assert recalled(model, pending()) == [("a", 1 / 2)]
    model.observe(pending(), returned("a"))
    assert recalled(model, pending()) == [("a", 2 / 3)]
    model.observe(pending(), returned("b"))
    assert recalled(model, pending()) == [("a", 2 / 4), ("b", 1 / 4)]


def test_of_equally_frequent_observations_the_latest_comes_first() -> None:
    model = RecallWorldModel()
    for text in ("a", "b"):
        model.observe(pending(), returned(text))
    assert [text for text, _ in recalled(model, pending())] == ["b", "a"]
    model.observe(pending(), returned("c"))
    assert [text for text, _ in recalled(model, pending())] == ["c", "b", "a"]


def test_the_same_history_is_preferred_to_the_call_alone() -> None:
    model = RecallWorldModel()
    edited: Steps = [("edit", "done")]
    model.observe(pending("test"), returned("1 failed"))
    model.observe(pending("test"), returned("1 failed"))
    model.observe(pending("test", after=edited), returned("passed"))
    assert recalled(model, pending("test", after=edited)) == [("passed", 1 / 2)]
    assert recalled(model, pending("test")) == [("1 failed", 2 / 3)]


def test_a_call_with_a_new_history_is_answered_by_the_call_alone() -> None:
    model = RecallWorldModel()
    model.observe(pending("pwd"), returned("/work"))
    (prediction,) = model.predict(pending("pwd", after=[("ls", "a b")]))
    assert prediction.observation == returned("/work")
    assert prediction.seen
    assert prediction.predictor == "recall"


@pytest.mark.parametrize(
    "other",
    [
        pending("test", after=[("edit", "done"), ("ls", "a")]),
        pending("test", after=[("edit", "failed")]),
        pending("test", after=[("edit 2", "done")]),
        pending("test", after=[("edit", "done")], human="Break it."),
    ],
    ids=["longer", "other observation", "other arguments", "other human"],
)
def test_histories_differ_in_exchanges_and_in_what_humans_said(other: PendingCall) -> None:
    model = RecallWorldModel()
    model.observe(pending("test", after=[("edit", "done")]), returned("passed"))
    model.observe(other, returned("other"))
    assert recalled(model, other) == [("other", 1 / 2)]


def test_the_status_is_part_of_the_observation() -> None:
    model = RecallWorldModel()
    model.observe(pending(), Observation("x", "error"))
    assert [p.observation.status for p in model.predict(pending())] == ["error"]


def test_the_order_of_arguments_does_not_matter() -> None:
    model = RecallWorldModel()
    model.observe(pending(args={"a": 1, "b": 2}), returned("x"))
    assert model.predict(pending(args={"b": 2, "a": 1}))
    assert not model.predict(pending(args={"a": 2, "b": 1}))


def test_what_is_not_kept_still_counts() -> None:
    model = RecallWorldModel(max_observation_chars=3)
    model.observe(pending(), returned("abc"))
    model.observe(pending(), returned("abcd"))
    model.observe(pending(), Observation([{"type": "text", "text": "x"}]))
    assert recalled(model, pending()) == [("abc", 1 / 4)]


def test_volatile_observations_do_not_pile_up() -> None:
    model = RecallWorldModel()
    for _ in range(2):
        model.observe(pending(), returned("often"))
    for number in range(50):
        model.observe(pending(), returned(str(number)))
    candidates = recalled(model, pending())
    assert len(candidates) == 8
    assert candidates[0] == ("often", 2 / 53)
    assert candidates[1] == ("49", 1 / 53)


def test_the_least_recently_used_entries_are_forgotten() -> None:
    model = RecallWorldModel(max_entries=4)  # two calls
    model.observe(pending("a"), returned("1"))
    model.observe(pending("b"), returned("2"))
    model.predict(pending("a"))
    model.predict(pending("a", after=[("x", "y")]))
    model.observe(pending("c"), returned("3"))
    assert not model.predict(pending("b"))
    assert model.predict(pending("a"))
    assert model.predict(pending("c"))


def test_entries_that_gave_way_leave_nothing_of_their_run() -> None:
    model = RecallWorldModel(max_entries=4)
    for number in range(20):
        model.observe(pending(str(number), run=f"run-{number}"), returned("x"))
    assert sum(len(keys) for keys in model._keys_of_run.values()) == len(model._entries) == 4
    for number in range(20):
        model.end_run(RunInfo(f"run-{number}"))
    assert not model._entries
    assert not model._keys_of_run


SHARING = [
    (Scope.RUN, {"run": "1"}, {"run": "1"}, True),
    (Scope.RUN, {"run": "1", "group": "g", "task": "t"}, {"run": "2", "group": "g"}, False),
    (Scope.GROUP, {"run": "1", "group": "g"}, {"run": "2", "group": "g"}, True),
    (Scope.GROUP, {"run": "1", "group": "g"}, {"run": "2", "group": "h"}, False),
    (Scope.GROUP, {"run": "1", "task": "t"}, {"run": "2", "task": "t"}, False),
    (Scope.GROUP, {"run": "1"}, {"run": "1"}, True),
    (Scope.GROUP, {"run": "g"}, {"run": "2", "group": "g"}, False),
    (Scope.TASK, {"run": "1", "task": "t"}, {"run": "2", "task": "t", "group": "h"}, True),
    (Scope.TASK, {"run": "1", "task": "t"}, {"run": "2", "task": "u"}, False),
    (Scope.TASK, {"run": "1"}, {"run": "2"}, False),
    (Scope.ALL, {"run": "1"}, {"run": "2", "task": "t"}, True),
]


@pytest.mark.parametrize(("scope", "seen_by", "asked_by", "shared"), SHARING)
def test_a_memory_is_shared_within_its_scope_only(
    scope: Scope, seen_by: dict[str, str], asked_by: dict[str, str], shared: bool
) -> None:
    model = RecallWorldModel(scope)
    model.observe(pending(**seen_by), returned("x"))  # type: ignore[arg-type]
    assert bool(model.predict(pending(**asked_by))) is shared  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    seen=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), observations)),
    scope=st.sampled_from([Scope.RUN, Scope.GROUP, Scope.TASK]),
)
def test_every_prediction_was_observed_in_its_scope(
    seen: list[tuple[str, str, Observation]], scope: Scope
) -> None:
    model = RecallWorldModel(scope)
    for label, command, observation in seen:
        model.observe(pending(command, run=label, group=label, task=label), observation)
    for label in "ab":
        for command in "xyz":
            own = [o for owner, c, o in seen if (owner, c) == (label, command)]
            predictions = model.predict(pending(command, run=label, group=label, task=label))
            assert {p.observation for p in predictions} <= set(own)
            assert bool(predictions) is bool(own)
            assert sum(p.probability for p in predictions) < 1


@pytest.mark.parametrize(
    ("scope", "labels", "forgotten"),
    [
        (Scope.RUN, {}, True),
        (Scope.GROUP, {}, True),
        (Scope.GROUP, {"group": "g"}, False),
        (Scope.TASK, {"task": "t"}, False),
        (Scope.ALL, {}, False),
    ],
)
def test_the_end_of_a_run_forgets_what_was_only_for_it(
    scope: Scope, labels: dict[str, str], forgotten: bool
) -> None:
    model = RecallWorldModel(scope)
    call = pending(**labels)  # type: ignore[arg-type]
    model.observe(call, returned("x"))
    model.end_run(RunInfo("another"))
    assert model.predict(call)
    model.end_run(call.run)
    assert bool(model.predict(call)) is not forgotten


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["ls", "cat"]), texts), min_size=1, max_size=5))
def test_a_learned_transcript_predicts_itself_at_every_turn(steps: Steps) -> None:
    model = RecallWorldModel(Scope.TASK)
    assert model.learn(transcript(steps), RunInfo("log", task="t")) == len(steps)
    for turn, (command, text) in enumerate(steps):
        call = pending(command, task="t", after=steps[:turn])
        assert recalled(model, call)[0] == (text, 1 / 2)
        assert not model.predict(pending(command, task="u", after=steps[:turn]))


def test_parallel_calls_are_learned_with_the_history_before_their_message() -> None:
    made = AIMessage(
        "",
        tool_calls=[
            {"name": "bash", "args": {"command": command}, "id": command} for command in "ab"
        ],
    )
    messages = [HumanMessage("Fix it."), made]
    log = [*messages, *(ToolMessage(f"did {c}", tool_call_id=c) for c in "ab")]
    model = RecallWorldModel()
    model.learn(log, RunInfo("run-1"))
    model.observe(pending("b", after=[("x", "y")]), returned("other"))
    call = PendingCall("b", "bash", {"command": "b"}, RunInfo("run-1"), messages)
    assert recalled(model, call) == [("did b", 1 / 2)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=8), st.data())
def test_digests_that_grow_equal_digests_made_at_once(
    steps: list[tuple[str, str]], data: st.DataObject
) -> None:
    grown = RecallWorldModel(Scope.ALL)
    for turn, (command, text) in enumerate(steps):
        grown.observe(pending(command, after=steps[:turn]), returned(text))
        if data.draw(st.booleans()):  # the graph trims, or another agent of the run calls
            grown.predict(pending("z", after=steps[1:turn], human="Else."))
    fresh = RecallWorldModel(Scope.ALL)
    fresh.learn(transcript(steps), RunInfo("another"))
    assert set(grown._entries) == set(fresh._entries)


def test_a_message_changed_in_place_is_another_history() -> None:
    model = RecallWorldModel()
    call = pending("test", after=[("edit", "done")])
    model.observe(call, returned("passed"))
    call.messages[2].content = "cleared"
    model.observe(call, returned("other"))
    assert recalled(model, call) == [("other", 1 / 2)]


def test_many_runs_keep_few_transcripts() -> None:
    model = RecallWorldModel()
    for number in range(300):
        model.predict(pending(run=str(number)))
    assert len(model._histories._chains) == 256


def test_threads_lose_no_sighting() -> None:
    model = RecallWorldModel(Scope.ALL)
    start = threading.Barrier(8)

    def work(worker: int) -> None:
        start.wait()
        for turn in range(100):
            call = pending(run=f"run-{worker}", after=[("x", str(turn % 3))])
            model.predict(call)
            model.observe(call, returned("same"))
            if turn % 10 == 0:
                model.end_run(call.run)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recalled(model, pending()) == [("same", 800 / 801)]


async def test_it_is_instant_and_answers_on_the_loop() -> None:
    model = RecallWorldModel()
    model.observe(pending(), returned("x"))
    assert model.instant
    assert [p.observation for p in await model.apredict(pending())] == [returned("x")]
    model.close()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"scope": "family"}, "'family'"),
        ({"max_entries": 1}, "max_entries"),
        ({"max_observation_chars": 0}, "max_observation_chars"),
        ({"path": "memory.db"}, "scope 'run'"),
    ],
)
def test_values_that_can_not_work_are_named(arguments: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigurationError, match=names):
        RecallWorldModel(**arguments)
