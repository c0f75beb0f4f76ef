"""Asking the world model about every call of a step, and taking only what can be used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from obsspec_agents.events import Event, ObservationPredicted, SkipReason
from obsspec_agents.world_model.base import PendingCall, Prediction, WorldModel

__all__ = ["SkipStep", "predict_step"]


class SkipStep(Exception):
    """No generation is begun for the step, for this reason."""

    def __init__(self, reason: SkipReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


async def predict_step(
    world_model: WorldModel,
    calls: Iterable[PendingCall],
    *,
    step: str,
    max_chars: int,
    clock: Callable[[], float],
    emit: Callable[[Event], None],
) -> dict[str, Prediction]:
    """The likeliest prediction for every call, asked for all at once; by call id.

    Raises:
        SkipStep: one of the calls has no prediction, or none that can be used.
        Exception: whatever the world model raised.
    """

    async def one(call: PendingCall) -> Prediction:
        begun = clock()
        predictions = await _ask(world_model, call)
        if not predictions:
            raise SkipStep(SkipReason.NO_PREDICTION)
        prediction = _checked(predictions[0], max_chars)
        at = clock()
        emit(
            ObservationPredicted(
                at=at,
                run=call.run.id,
                step=step,
                call=call.id,
                tool=call.name,
                predictor=prediction.predictor,
                probability=prediction.probability,
                seen=prediction.seen,
                seconds=at - begun,
            )
        )
        return prediction

    asked = list(calls)
    if len(asked) == 1:
        return {asked[0].id: await one(asked[0])}
    results = await asyncio.gather(*(one(call) for call in asked), return_exceptions=True)
    found: dict[str, Prediction] = {}
    for call, result in zip(asked, results, strict=True):
        if isinstance(result, BaseException):
            raise result
        found[call.id] = result
    return found


async def _ask(world_model: WorldModel, call: PendingCall) -> Any:
    try:
        return await world_model.apredict(call)
    except (Exception, asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:
        # A SystemExit in a task would stop the user's event loop.
        raise RuntimeError(f"the world model raised {type(error).__name__}") from error


def _checked(prediction: Any, max_chars: int) -> Prediction:
    if not isinstance(prediction, Prediction):
        raise TypeError(
            f"a world model must return Predictions, this one returned {type(prediction).__name__}"
        )
    text = prediction.observation.text
    probability = prediction.probability
    if not isinstance(probability, (int, float)) or not 0 <= probability <= 1:
        raise ValueError(f"a prediction's probability must be in [0, 1], not {probability!r}")
    if text is None or len(text) > max_chars or not _encodable(text):
        raise SkipStep(SkipReason.UNUSABLE_PREDICTION)
    return prediction


def _encodable(text: str) -> bool:
    # Servers refuse lone surrogates; some clients crash on them.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
