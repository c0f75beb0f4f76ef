"""What happened, as frozen dataclasses, and the one sink that takes them.

Every event carries ``at``: seconds on the speculator's clock (monotonic by default), so
differences are exact; the trace's header says which wall time zero was. Nothing here
reaches a callback, stream or tracer of the user (contract, rule 8).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "DiscardReason",
    "Event",
    "GenerationCommitted",
    "GenerationDiscarded",
    "GenerationRefetched",
    "GenerationStarted",
    "ObservationPredicted",
    "PolicyAnswered",
    "RunEnded",
    "RunStarted",
    "Sink",
    "SkipReason",
    "SpeculationFailed",
    "StepEnded",
    "StepOutcome",
    "StepStarted",
    "ToolEnded",
    "ToolStarted",
    "VersionChanged",
]


class SkipReason(StrEnum):
    """Why no generation was begun for a step."""

    DISABLED = "disabled"
    """Speculation is off."""
    OPTED_OUT = "opted_out"
    """One of the step's tools is excluded by name or by its metadata."""
    UNKNOWN_TOOL = "unknown_tool"
    """The policy called a tool that the node does not have."""
    RETURN_DIRECT = "return_direct"
    """One of the step's tools ends the run: there is no next request."""
    AMBIGUOUS_CALLS = "ambiguous_calls"
    """Tool call ids are missing or repeated, so a result can't be told from its sibling's."""
    NO_MESSAGE = "no_message"
    """The policy message that made the call is not in the state."""
    NO_REQUEST = "no_request"
    """The request behind the message is unknown: its model is not wrapped by speculative()."""
    NO_PREDICTION = "no_prediction"
    """The world model had nothing to say about one of the calls."""
    UNUSABLE_PREDICTION = "unusable_prediction"
    """A prediction is over the length limit, or not text that a request can carry."""
    LATE = "late"
    """The tools had ended before the prediction came."""
    FAILED = "failed"
    """The world model, or the code that derives the request, raised; see SpeculationFailed."""
    IN_FLIGHT_LIMIT = "in_flight_limit"
    """As many speculative generations as allowed are in flight."""
    UNABORTABLE = "unabortable"
    """The model's call could not be aborted when it turns out wrong (contract, rule 10)."""
    CACHED = "cached"
    """The model's LLM cache holds the answer: there is nothing to hide."""
    RATE_LIMITED = "rate_limited"
    """The model has a rate limiter, which a speculation must neither pass by nor use up."""
    LOOP_CLOSED = "loop_closed"
    """The event loop that the policy was last called on is gone."""
    EXPIRED = "expired"
    """The prediction came after the expiry, which counts from the tool's start."""


class DiscardReason(StrEnum):
    """Why a generation was dropped. None of these looks at the generation itself."""

    CONTRADICTED = "contradicted"
    """A real observation differs from the predicted one, or the tool ended without any."""
    REQUEST_DIFFERS = "request_differs"
    """The observations were right, the real next request is another one all the same."""
    VERSION_CHANGED = "version_changed"
    """The policy's weights changed before the commit."""
    EXPIRED = "expired"
    """The expiry passed; it counts from the tool's start."""
    RUN_ENDED = "run_ended"
    """The run ended, failed or was cancelled before it asked."""
    UNREACHABLE = "unreachable"
    """The real call can't wait for the event loop that the generation runs on: it might be
    blocking it."""


class StepOutcome(StrEnum):
    """What became of a step: exactly one for each time that the tools of a policy message ran."""

    COMMITTED = "committed"
    MISSED = "missed"
    """A generation was begun and dropped."""
    SKIPPED = "skipped"
    """No generation was begun."""
    ENDED = "ended"
    """The run ended before the next request, so nothing was to be hidden. The reason says
    what became of the step's generation, or why none was begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    at: float
    """Seconds on the speculator's clock."""
    run: str
    """The run's id; empty for what belongs to no run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The first policy or tool call of a run was seen."""

    group: str | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """The run ended; nothing of it is in flight any more."""

    tool_seconds: float
    """Length of the union of the run's tool intervals, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAnswered(Event):
    """A policy call of the user's graph is complete: exactly one for each turn."""

    started: float
    """When the graph asked, in seconds on the same clock."""
    seconds: float
    """From the graph's request to the last token, in seconds."""
    tokens: int | None
    """Completion tokens, where the server says how many."""
    joined: bool
    """Whether it was a committed speculation."""
    version: str | None
    """The policy version that the tokens came from."""
    error: str | None = None
    """The class of what it raised, if it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent(Event):
    """An event of one step: a policy message with tool calls and what follows it."""

    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted(StepEvent):
    """The first tool of a policy message started."""

    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded(StepEvent):
    """The step's outcome is known."""

    outcome: StepOutcome
    reason: str = ""
    """The skip or discard reason."""
    seen: bool = False
    """Whether every call of the step had been seen before by its predictor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(StepEvent):
    """A real tool started."""

    call: str
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnded(StepEvent):
    """A real tool ended."""

    call: str
    tool: str
    seconds: float
    status: str
    """``success``, ``error``, ``command`` (no observation), or the exception's class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationPredicted(StepEvent):
    """A prediction came."""

    call: str
    tool: str
    predictor: str
    probability: float
    seen: bool
    seconds: float
    """How long the world model took, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationFailed(StepEvent):
    """Something of the speculation raised; the run never noticed."""

    stage: str
    """``prediction``, ``request``, ``generation``, ``memory``; ``step``, ``tool`` and
    ``policy`` where our own code failed."""
    error: str
    """Class and text of the exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationStarted(StepEvent):
    """A generation on predicted observations was begun."""

    speculation: str
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationCommitted(StepEvent):
    """The real request was equal, and the generation has reached its natural end."""

    speculation: str
    started: float
    """When the generation began."""
    claimed: float
    """When the real request asked for it."""
    seconds: float
    """From its beginning to its last token."""
    hidden_seconds: float
    """Of it, the seconds inside the union of the run's tool intervals, at most what such a
    generation takes unspeculated."""
    tokens: int | None
    version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDiscarded(StepEvent):
    """A generation was dropped."""

    speculation: str
    reason: DiscardReason
    started: float
    seconds: float
    finished: bool
    wasted_tokens: int
    """Tokens it had generated; estimated from the measured pace where the server had not
    said yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRefetched(StepEvent):
    """A joined generation met a transport fault and a fresh call took its place. Left out of
    the claim of losslessness (contract, rule 2)."""

    speculation: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChanged(Event):
    """The policy's version was set."""

    version: str | None


Sink = Callable[[Event], None]
"""Takes every event, from any thread. Must not block. What it raises is swallowed."""
