"""Hit, miss and failure: the transcript, the callbacks and the time of each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from obsspec_agents import Speculator
from tests.contract.fakes import Oracle, Policy, Shell, three_turns
from tests.contract.graphs import agent, played

pytestmark = pytest.mark.looptime

MakeSpeculator = Callable[..., Speculator]


def policy() -> Policy:
    return Policy(three_turns())


PREDICTIONS = {
    "right": lambda c: f"ran {c.args['command']}",
    "wrong": lambda c: "something else",
    "none": lambda c: None,
    "failing": lambda c: 1 / 0,
}


@pytest.mark.parametrize("how", ["ainvoke", "astream", "astream_events"])
@pytest.mark.parametrize("predicted", PREDICTIONS)
async def test_what_the_run_shows_is_what_the_plain_run_shows(
    make_speculator: MakeSpeculator, how: str, predicted: str
) -> None:
    plain = await played(agent(policy(), [Shell().tool], None), how)
    speculator = make_speculator(Oracle(PREDICTIONS[predicted], 0.1))
    model = policy()
    run = await played(agent(model, [Shell().tool], speculator), how)
    assert run[0] == plain[0]
    assert run[1] == plain[1]
    assert model.counts["open"] == 0
    if predicted == "right":
        assert run[2] < plain[2] - 0.5
        assert speculator.summary.committed == 2
        assert speculator.summary.hidden_seconds == pytest.approx(plain[2] - run[2])
    else:
        assert run[2] == pytest.approx(plain[2])
        assert speculator.summary.committed == 0
