"""The protocol behind every world model, and the words that it speaks in.

A world model is whatever predicts the observation of a tool call. It is asked while the
tool runs and told what the tool really returned. It never runs a tool (contract, rule 4),
and whatever it does wrong costs nothing but the time saved (rule 6).
"""

from __future__ import annotations

import json
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from obsspec_agents.observation import Observation
from obsspec_agents.worker import in_worker

__all__ = ["Exchange", "PendingCall", "Prediction", "RunInfo", "Scope", "WorldModel"]


class Scope(StrEnum):
    """With whom a memory is shared (contract, rule 9)."""

    RUN = "run"
    """Nobody: what one run saw is forgotten at its end."""
    GROUP = "group"
    """Runs with the same ``obsspec_group`` in their metadata (sibling rollouts)."""
    TASK = "task"
    """Runs with the same ``obsspec_task`` in their metadata (also of earlier epochs)."""
    ALL = "all"
    """Every run of the process, or of the file that backs the memory."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Which run a call belongs to, and what that run is labelled with."""

    id: str
    group: str | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One finished tool call of the history and what it returned."""

    name: str
    args: str
    """The arguments as canonical JSON (see :func:`canonical_args`)."""
    observation: Observation


@dataclass(frozen=True)
class PendingCall:
    """A tool call whose observation is to be predicted."""

    id: str
    name: str
    args: Mapping[str, Any]
    run: RunInfo
    messages: Sequence[BaseMessage] = field(default=(), repr=False)
    """What the policy saw, oldest first, ending with the message that made this call."""
    description: str = field(default="", repr=False)
    """The tool's own description, as the policy sees it."""

    @cached_property
    def canonical_args(self) -> str:
        """The arguments as JSON with sorted keys: equal arguments, equal text."""
        return canonical_args(self.args)

    @cached_property
    def history(self) -> tuple[Exchange, ...]:
        """The finished tool calls before this one, oldest first."""
        return history_of(self.messages)

    @cached_property
    def prompts(self) -> tuple[str, ...]:
        """The human messages before this call, oldest first, as text."""
        return tuple(m.text for m in self.messages if isinstance(m, HumanMessage))


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted observation, its probability and the predictor it came from."""

    observation: Observation
    probability: float
    """Of exact equality, in [0, 1]."""
    predictor: str
    """The predictor's name, as tables and traces show it."""
    seen: bool = False
    """Whether the same call (name and arguments) had been seen before by the predictor."""


class WorldModel(ABC):  # noqa: B024 - either of two methods, so neither is abstract
    """Base of every world model. Override :meth:`predict` or :meth:`apredict`, or both.

    Both may be called from any thread and from several event loops. A predictor that only
    has :meth:`predict` is run in a worker thread, unless :attr:`instant` is set.
    """

    name: str = "world model"
    """As tables and traces show it."""

    instant: bool = False
    """:meth:`predict` returns in well under a millisecond and never blocks, so it may be
    called on the event loop itself."""

    def predict(self, call: PendingCall) -> Sequence[Prediction]:
        """Predictions for one call, likeliest first; empty when there is none to make."""
        raise NotImplementedError(f"{type(self).__name__} predicts asynchronously: use apredict")

    async def apredict(self, call: PendingCall) -> Sequence[Prediction]:
        """The same, awaited. The default runs :meth:`predict`."""
        if self.instant:
            return self.predict(call)
        return await in_worker(partial(self.predict, call))

    def observe(self, call: PendingCall, observation: Observation) -> None:  # noqa: B027
        """Learn what a call really returned. Must not block; may run on an event loop."""

    def end_run(self, run: RunInfo) -> None:  # noqa: B027
        """The run has ended: forget what was only for it. Must not block."""

    def close(self) -> None:  # noqa: B027
        """Release what the model holds (threads, files, connections)."""


def canonical_args(args: Mapping[str, Any]) -> str:
    """Arguments as JSON with sorted keys; what JSON does not know is written by ``repr``."""
    return json.dumps(args, sort_keys=True, default=repr, separators=(",", ":"))


def history_of(messages: Sequence[BaseMessage]) -> tuple[Exchange, ...]:
    """The finished tool calls in a message list, in the order of their results."""
    calls: dict[str, tuple[str, str]] = {}
    exchanges: list[Exchange] = []
    for message in messages:
        if isinstance(message, AIMessage):
            for call in message.tool_calls:
                if call["id"] is not None:
                    calls[call["id"]] = (call["name"], canonical_args(call["args"]))
        elif isinstance(message, ToolMessage) and message.tool_call_id in calls:
            name, args = calls[message.tool_call_id]
            exchanges.append(Exchange(name, args, Observation.of(message)))
    return tuple(exchanges)
