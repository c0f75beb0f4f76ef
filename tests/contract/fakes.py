"""A policy, tools and world models whose time and answers the test controls.

Asynchronous tests run on a virtual-time loop: every ``asyncio.sleep`` here costs nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import StructuredTool
from pydantic import PrivateAttr

from obsspec_agents import Observation, PendingCall, Prediction, WorldModel

Answer = Callable[[Sequence[BaseMessage]], AIMessage]


class Policy(BaseChatModel):
    """Answers by a function of the messages, a token a ``token_s``.

    ``draws`` counts the calls that began, ``open`` those under way, ``aborted`` those that
    were closed before their end. ``faults`` says, by the number of a draw (from 1), after how
    many pieces it raises what.
    """

    token_s: float = 0.1
    tells_tokens: bool = False
    """Whether the hook that does not stream calls ``on_llm_new_token`` itself."""
    _answer: Answer = PrivateAttr()
    _counts: dict[str, int] = PrivateAttr(
        default_factory=lambda: dict.fromkeys(("draws", "open", "aborted", "finished"), 0)
    )
    _faults: dict[int, tuple[int, BaseException]] = PrivateAttr(default_factory=dict)
    _requests: list[list[BaseMessage]] = PrivateAttr(default_factory=list)

    def __init__(
        self,
        answer: Answer,
        faults: dict[int, tuple[int, BaseException]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._answer = answer
        self._faults = faults or {}

    @property
    def counts(self) -> dict[str, int]:
        return self._counts

    @property
    def requests(self) -> list[list[BaseMessage]]:
        return self._requests

    @property
    def _llm_type(self) -> str:
        return "contract-policy"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=[getattr(t, "name", t) for t in tools], **kwargs)

    @contextmanager
    def _drawn(self, messages: list[BaseMessage]) -> Iterator[tuple[AIMessage, int]]:
        """One draw: its message, and its number."""
        self._counts["draws"] += 1
        self._counts["open"] += 1
        number = self._counts["draws"]
        self._requests.append(list(messages))
        end = "finished"
        try:
            yield self._answer(messages), number
        except (asyncio.CancelledError, GeneratorExit):
            end = "aborted"
            raise
        finally:
            self._counts["open"] -= 1
            self._counts[end] += 1

    def _fault(self, number: int, piece: int) -> None:
        after, error = self._faults.get(number, (-1, None))
        if error is not None and piece == after:
            raise error

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with self._drawn(messages) as (message, number):
            for index, piece in enumerate(pieces(message)):
                self._fault(number, index)
                await asyncio.sleep(self.token_s)
                if self.tells_tokens and run_manager is not None:
                    await run_manager.on_llm_new_token(str(piece.content))
        return ChatResult(generations=[ChatGeneration(message=with_usage(message))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        with self._drawn(messages) as (message, number):
            for index, piece in enumerate(pieces(message)):
                self._fault(number, index)
                await asyncio.sleep(self.token_s)
                chunk = ChatGenerationChunk(message=piece)
                if run_manager is not None:
                    await run_manager.on_llm_new_token(str(piece.content), chunk=chunk)
                yield chunk

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with self._drawn(messages) as (message, number):
            self._fault(number, 0)
            return ChatResult(generations=[ChatGeneration(message=with_usage(message))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        with self._drawn(messages) as (message, number):
            for index, piece in enumerate(pieces(message)):
                self._fault(number, index)
                yield ChatGenerationChunk(message=piece)


class SyncPolicy(Policy):
    """The same with synchronous hooks alone: its calls can't be aborted."""

    _agenerate = BaseChatModel._agenerate
    _astream = BaseChatModel._astream


def pieces(message: AIMessage) -> list[AIMessageChunk]:
    """The message as a stream: a word a chunk, then the tool calls, then the usage."""
    words = str(message.content).split(" ") if message.content else []
    parts = [
        AIMessageChunk(content=w + (" " if i < len(words) - 1 else "")) for i, w in enumerate(words)
    ]
    parts += [
        AIMessageChunk(
            content="",
            tool_call_chunks=[
                {
                    "name": c["name"],
                    "args": json.dumps(c["args"]),
                    "id": c["id"],
                    "index": i,
                    "type": "tool_call_chunk",
                }
            ],
        )
        for i, c in enumerate(message.tool_calls)
    ]
    parts.append(AIMessageChunk(content="", usage_metadata=usage(len(parts) + 1)))
    return parts


def usage(tokens: int) -> Any:
    return {"input_tokens": 1, "output_tokens": tokens, "total_tokens": tokens + 1}


def with_usage(message: AIMessage) -> AIMessage:
    return message.model_copy(update={"usage_metadata": usage(len(pieces(message)))})


_ids = itertools.count()


def call(name: str = "shell", _id: str | None = None, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args, "id": _id or f"call-{next(_ids)}", "type": "tool_call"}


def turns(*answers: AIMessage | Callable[[str], AIMessage]) -> Answer:
    """Answer n after n policy messages; a function gets the last observation's text."""

    def answer(messages: Sequence[BaseMessage]) -> AIMessage:
        done = sum(isinstance(m, AIMessage) for m in messages)
        chosen = answers[min(done, len(answers) - 1)]
        if isinstance(chosen, AIMessage):
            return chosen.model_copy()
        last = messages[-1]
        return chosen(last.text if isinstance(last, ToolMessage) else "")

    return answer


class Oracle(WorldModel):
    """Predicts by a function of the call, after ``seconds``; None for nothing."""

    name = "oracle"

    def __init__(
        self, predict: Callable[[PendingCall], Any], seconds: float = 0.0, *, seen: bool = True
    ) -> None:
        self._predict = predict
        self.seconds = seconds
        self.seen = seen
        self.asked: list[PendingCall] = []
        self.observed: list[tuple[str, Observation]] = []

    async def apredict(self, call: PendingCall) -> Sequence[Prediction]:
        self.asked.append(call)
        if self.seconds:
            await asyncio.sleep(self.seconds)
        guess = self._predict(call)
        if guess is None or not isinstance(guess, (str, Observation)):
            return guess  # type: ignore[no-any-return]
        observation = Observation(guess) if isinstance(guess, str) else guess
        return [Prediction(observation, 0.9, self.name, seen=self.seen)]

    def observe(self, call: PendingCall, observation: Observation) -> None:
        self.observed.append((call.id, observation))


class Shell:
    """A tool that takes ``seconds`` and returns ``result(command)``; ``runs`` its commands."""

    def __init__(
        self,
        seconds: float = 2.0,
        result: Callable[[str], Any] = "ran {}".format,
        name: str = "shell",
        **settings: Any,
    ) -> None:
        self.seconds, self.result = seconds, result
        self.started: Callable[[], object] = lambda: None
        """Called when it starts."""
        self.runs: list[str] = []

        async def run(command: str) -> Any:
            self.runs.append(command)
            self.started()
            await asyncio.sleep(self.seconds)
            return self.result(command)

        def run_sync(command: str) -> Any:
            self.runs.append(command)
            return self.result(command)

        self.tool = StructuredTool.from_function(
            run_sync, coroutine=run, name=name, description="Run a command.", **settings
        )


def right(call: PendingCall) -> str:
    """The prediction that comes true."""
    return f"ran {call.args['command']}"


def wrong(call: PendingCall) -> str:
    """The prediction that does not."""
    return "something else"


def three_turns() -> Answer:
    """Two tool calls, each answer quoting the last observation, and a last word."""
    return turns(
        AIMessage("let me look at it", tool_calls=[call(_id="c1", command="ls")]),
        lambda seen: AIMessage(f"saw {seen} now", tool_calls=[call(_id="c2", command="cat")]),
        lambda seen: AIMessage(f"done with {seen}"),
    )


def two_turns(first: AIMessage | None = None, last: str = "done with {}") -> Answer:
    """One tool call and a last word that quotes the observation."""
    return turns(
        first or AIMessage("look", tool_calls=[call(_id="c1", command="ls")]),
        lambda seen: AIMessage(last.format(seen)),
    )


def numbered(answer: Answer) -> Answer:
    """The same answers, each with the number of its draw: no two draws are alike."""
    numbers = itertools.count(1)

    def drawn(messages: Sequence[BaseMessage]) -> AIMessage:
        message = answer(messages)
        return message.model_copy(update={"content": f"{message.content} #{next(numbers)}"})

    return drawn
