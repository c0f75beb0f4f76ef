"""What the speculator keeps of a run while it lasts: requests, steps, generations.

Plain data without behaviour of its own; guarded by the speculator's lock.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from langchain_core.messages import AIMessage

from obsspec_agents.generation import Generation
from obsspec_agents.pace import Intervals
from obsspec_agents.request import Request
from obsspec_agents.runs import Lineage
from obsspec_agents.steps import Speculation, Step
from obsspec_agents.world_model.base import PendingCall, RunInfo

__all__ = ["ActiveStep", "Asked", "Flight", "RunState"]

_REMEMBERED_CALLS = 256


@dataclass(frozen=True)
class Asked:
    """A policy call that the graph made, and where in the graph."""

    request: Request
    lineage: Lineage

    def may_follow(self, owner: str | None) -> bool:
        """Whether the call was made inside of this chain, so that it can be the next request
        of a step that the chain owns. Others may use the same tool call ids."""
        return owner is None or owner in self.lineage


@dataclass
class Flight:
    """The generation of one speculation, and what has to be undone with it."""

    speculation: Speculation
    generation: Generation
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None


@dataclass
class ActiveStep:
    """A step whose next request has not come yet."""

    step: Step
    owner: str | None
    """The innermost chain that may still ask: what its end means for the step."""
    calls: Mapping[str, PendingCall]
    asked: Asked | None
    predicting: asyncio.Task[None] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    flights: dict[str, Flight] = field(default_factory=dict)


@dataclass
class RunState:
    """One run."""

    info: RunInfo
    steps: dict[str, ActiveStep] = field(default_factory=dict)
    tools: Intervals = field(default_factory=Intervals)
    watched: set[str] = field(default_factory=set)
    """Chains whose end the speculator has asked to be told."""
    ended: bool = False
    _asked: OrderedDict[str, Asked] = field(default_factory=OrderedDict)

    def remember(self, call_ids: list[str], asked: Asked) -> None:
        """The policy answered this request with these tool calls."""
        for call_id in call_ids:
            self._asked[call_id] = asked
            self._asked.move_to_end(call_id)
        while len(self._asked) > _REMEMBERED_CALLS:
            self._asked.popitem(last=False)

    def asked_for(self, message: AIMessage) -> Asked | None:
        """The policy call that a message answers, known by the ids of its tool calls."""
        found = [self._asked.get(str(call["id"])) for call in message.tool_calls]
        return found[0] if found and all(asked is found[0] for asked in found) else None
