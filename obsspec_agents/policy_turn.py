"""One policy call of the user's graph, joined to a generation in flight or made afresh.

The chat model's hook opens a turn, takes the generation if there is one, and says what was
answered. The turn measures, reports, and closes a generation that its consumer left early.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Self

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from obsspec_agents.generation import Generation, GenerationClosedError, completion_tokens
from obsspec_agents.hooks import is_transport_fault

if TYPE_CHECKING:
    from obsspec_agents.run_state import Asked, Flight, RunState

__all__ = ["PolicyTurn", "TurnOwner"]


class TurnOwner:
    """What a turn reports to; the speculator is one."""

    clock: Callable[[], float]

    def refetched(self, turn: PolicyTurn, error: BaseException) -> str | None:
        """A transport fault: the turn makes its own call, under the version returned."""
        raise NotImplementedError

    def answered(self, turn: PolicyTurn, error: BaseException | None) -> None:
        """The turn is over."""
        raise NotImplementedError


class PolicyTurn:
    """A context manager around one hook call.

    ``version`` is the policy's when the call was made; a joined generation has its own.

    :meth:`joined` and its three siblings give the committed generation's answer, or
    nothing where there is none to join; then the hook makes the call itself.
    """

    def __init__(
        self,
        owner: TurnOwner,
        run: RunState,
        asked: Asked,
        flight: Flight | None,
        version: str | None,
    ) -> None:
        self.run = run
        self.asked = asked
        self.flight = flight
        self.version = version if flight is None else flight.speculation.version
        self.started = owner.clock()
        self.refetched = False
        self.call_ids: list[str] = []
        self.tokens: int | None = None
        self._owner = owner

    @property
    def _generation(self) -> Generation | None:
        return None if self.flight is None else self.flight.generation

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._owner.answered(self, error)

    def saw(self, message: BaseMessage) -> None:
        """A part of the answer, or all of it, was given to the graph."""
        if isinstance(message, AIMessageChunk):
            self.call_ids += [str(c["id"]) for c in message.tool_call_chunks if c.get("id")]
        elif isinstance(message, AIMessage):
            self.call_ids += [c["id"] for c in message.tool_calls if c["id"]]
        self.tokens = completion_tokens(message) or self.tokens

    def joined(self, run_manager: CallbackManagerForLLMRun | None) -> ChatResult | None:
        """The answer of the generation in flight; waits for its natural end."""
        if self._generation is None:
            return None
        try:
            return self._generation.wait(run_manager)
        except Exception as error:  # noqa: BLE001 - raised on, unless it says nothing
            self._refetch_or_raise(error)
            return None

    async def ajoined(self, run_manager: AsyncCallbackManagerForLLMRun | None) -> ChatResult | None:
        """The same, awaited."""
        if self._generation is None:
            return None
        try:
            return await self._generation.await_(run_manager)
        except Exception as error:  # noqa: BLE001 - raised on, unless it says nothing
            self._refetch_or_raise(error)
            return None

    def joined_stream(
        self, run_manager: CallbackManagerForLLMRun | None
    ) -> Iterator[ChatGenerationChunk]:
        """The chunks so far, then those that follow; none where there is nothing to join."""
        if self._generation is None:
            return
        try:
            self._raise_lost()
            yield from self._generation.replay(run_manager)
        except Exception as error:  # noqa: BLE001 - raised on, unless it says nothing
            self._refetch_or_raise(error)

    async def ajoined_stream(
        self, run_manager: AsyncCallbackManagerForLLMRun | None
    ) -> AsyncGenerator[ChatGenerationChunk, None]:
        """The same, awaited."""
        if self._generation is None:
            return
        try:
            self._raise_lost()
            async with aclosing(self._generation.areplay(run_manager)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except Exception as error:  # noqa: BLE001 - raised on, unless it says nothing
            self._refetch_or_raise(error)

    def _raise_lost(self) -> None:
        """A connection that was lost before the request came is not replayed up to there."""
        error = None if self._generation is None else self._generation.error
        if error is not None and is_transport_fault(error):
            raise error

    def _refetch_or_raise(self, error: Exception) -> None:
        """Only what says nothing about the answer gets a fresh call, and only while nothing
        of the answer was seen; all else is what the plain call would have raised."""
        fault = isinstance(error, GenerationClosedError) or is_transport_fault(error)
        if not fault or (self._generation is not None and self._generation.delivered):
            raise error
        self.version = self._owner.refetched(self, error)
        self.flight, self.refetched = None, True
