"""Uncommitted work is seen by nobody; a committed generation is an ordinary call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler, get_usage_metadata_callback
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.context import collect_runs
from langchain_core.tracers.schemas import Run

from obsspec_agents import PendingCall, Prediction, Speculator, WorldModel
from obsspec_agents.events import Event, GenerationStarted, PolicyAnswered
from tests.contract.fakes import Oracle, Policy, Shell, right, three_turns, two_turns, wrong
from tests.contract.graphs import START_STATE, Everything, agent, played

pytestmark = pytest.mark.looptime

MakeSpeculator = Callable[..., Speculator]
PREDICTIONS = {"hit": right, "miss": wrong}


class Tracer(BaseTracer):
    """Every finished run as a tree of kinds, names, inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.trees: list[Any] = []

    def _persist_run(self, run: Run) -> None:
        self.trees.append(self.tree(run))

    def tree(self, run: Run) -> Any:
        shown = None
        if run.run_type == "llm":
            assert run.outputs is not None
            text = run.outputs["generations"][0][0]["text"]
            shown = (text, [event["name"] for event in run.events])
        return (run.run_type, run.name, shown, run.error, [self.tree(c) for c in run.child_runs])


def llm_runs(tree: Any) -> int:
    return (tree[0] == "llm") + sum(llm_runs(child) for child in tree[4])


@pytest.mark.parametrize("predict", PREDICTIONS)
@pytest.mark.parametrize("how", ["ainvoke", "astream"])
async def test_the_tracer_sees_the_plain_tree(
    make_speculator: MakeSpeculator, predict: str, how: str
) -> None:
    trees: list[Any] = []
    for speculator in (None, make_speculator(Oracle(PREDICTIONS[predict]))):
        tracer = Tracer()
        graph = agent(Policy(three_turns()), [Shell().tool], speculator)
        config = {"callbacks": [tracer]}
        if how == "ainvoke":
            await graph.ainvoke(START_STATE, config)
        else:
            async for _ in graph.astream(START_STATE, config, stream_mode="messages"):
                pass
        trees.append(tracer.trees)
    assert trees[0] == trees[1]
    assert [llm_runs(tree) for tree in trees[1]] == [3]


@pytest.mark.parametrize("predict", PREDICTIONS)
async def test_usage_is_counted_once_a_turn(make_speculator: MakeSpeculator, predict: str) -> None:
    counted: list[Any] = []

    def named(model: Policy) -> Policy:
        answer = model._answer
        model._answer = lambda messages: answer(messages).model_copy(
            update={"response_metadata": {"model_name": "m"}}
        )
        return model

    for speculator in (None, make_speculator(Oracle(PREDICTIONS[predict]))):
        with get_usage_metadata_callback() as usage, collect_runs() as runs:
            graph = agent(named(Policy(three_turns())), [Shell().tool], speculator)
            await graph.ainvoke(START_STATE)
        counted.append((usage.usage_metadata, len(runs.traced_runs)))
    assert counted[0] == counted[1]
    assert counted[0][0]


async def test_a_world_model_made_with_langchain_is_unseen(make_speculator: MakeSpeculator) -> None:
    class Chatty(WorldModel):
        async def apredict(self, call: PendingCall) -> list[Prediction]:
            model = GenericFakeChatModel(
                messages=iter(
                    [
                        AIMessage(
                            "x",
                            response_metadata={"model_name": "world"},
                            usage_metadata={
                                "input_tokens": 1,
                                "output_tokens": 1,
                                "total_tokens": 2,
                            },
                        )
                    ]
                )
            )
            await model.ainvoke("predict")
            predicted.append(call.id)
            return []

    predicted: list[str] = []
    with collect_runs() as plain_runs:
        plain = await played(agent(Policy(three_turns()), [Shell().tool], None), "astream_events")
    with get_usage_metadata_callback() as usage, collect_runs() as runs:
        graph = agent(Policy(three_turns()), [Shell().tool], make_speculator(Chatty()))
        shown = await played(graph, "astream_events")
    assert predicted == ["c1", "c2"]
    assert shown[1] == plain[1]
    assert usage.usage_metadata == {}
    names = [[run.name for run in c.traced_runs] for c in (plain_runs, runs)]
    assert names[0] == names[1]


@pytest.mark.parametrize("stage", ["predicting", "generating", "finished"])
async def test_nothing_is_seen_while_the_tool_runs(
    make_speculator: MakeSpeculator, events: list[Event], stage: str
) -> None:
    shown = Everything()
    streamed: list[Any] = []
    seen: list[Any] = []
    prediction_s = {"predicting": 5.0, "generating": 0.0, "finished": 0.0}[stage]
    word_count = {"predicting": 1, "generating": 100, "finished": 1}[stage]
    model = Policy(two_turns(last=" ".join(["word"] * word_count)), tells_tokens=True)
    graph = agent(model, [Shell(2.0).tool], make_speculator(Oracle(right, prediction_s)))

    async def follow() -> None:
        config: Any = {"callbacks": [shown]}
        modes = ["messages", "updates", "custom", "debug"]
        async for part in graph.astream(START_STATE, config, stream_mode=modes):
            streamed.append(part)  # noqa: PERF401 - looked at while it grows

    run = asyncio.create_task(follow())
    await asyncio.sleep(0.4)
    seen.append((list(shown.events), len(streamed)))
    await asyncio.sleep(1.5)
    assert sum(isinstance(e, GenerationStarted) for e in events) == (stage != "predicting")
    assert model.counts["draws"] == (1 if stage == "predicting" else 2)
    assert (shown.events, len(streamed)) == seen[0]
    await run
    assert (shown.count("start"), shown.count("end")) == (2, 2)


@pytest.mark.parametrize("how", ["ainvoke", "astream"])
async def test_a_hook_that_tells_its_tokens_itself_tells_them_once(
    make_speculator: MakeSpeculator, how: str
) -> None:
    plain = await played(agent(Policy(three_turns(), tells_tokens=True), [Shell().tool], None), how)
    speculator = make_speculator(Oracle(right))
    run = await played(
        agent(Policy(three_turns(), tells_tokens=True), [Shell().tool], speculator), how
    )
    assert run[1] == plain[1]
    assert speculator.summary.committed == 2


async def test_the_first_token_of_a_joined_stream_does_not_wait_for_the_last(
    make_speculator: MakeSpeculator,
) -> None:
    loop, arrived = asyncio.get_running_loop(), []
    graph = agent(
        Policy(two_turns(last=" ".join(["word"] * 50))),
        [Shell(1.0).tool],
        make_speculator(Oracle(right)),
    )
    async for message, _ in graph.astream(START_STATE, stream_mode="messages"):
        if message.content == "word ":
            arrived.append(loop.time())
    # The answer begins at 0.3, the tool ends at 1.3: ten tokens at once, the rest at pace.
    assert arrived[9] == pytest.approx(1.3)
    assert arrived[20] == pytest.approx(0.3 + 2.1)


async def test_n_turns_are_n_recorded_calls(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    for predict in PREDICTIONS.values():
        await played(agent(Policy(three_turns()), [Shell().tool], make_speculator(Oracle(predict))))
    assert sum(isinstance(e, PolicyAnswered) for e in events) == 6


class FirstToken(BaseCallbackHandler):
    """An inheritable handler that raises: the run's own business."""

    raise_error = True

    def on_llm_new_token(self, token: str, **kwargs: Any) -> None:
        raise RuntimeError("from the user's own callback")


async def test_an_error_of_the_users_callback_is_raised_as_in_the_plain_run(
    make_speculator: MakeSpeculator,
) -> None:
    for speculator in (None, make_speculator(Oracle(right))):
        graph = agent(Policy(three_turns()), [Shell().tool], speculator)
        with pytest.raises(RuntimeError, match="user's own"):
            async for _ in graph.astream(
                START_STATE, {"callbacks": [FirstToken()]}, stream_mode="messages"
            ):
                pass
