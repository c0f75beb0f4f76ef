"""A policy, tools and world models whose time and answers the test controls.

Asynchronous tests run on a virtual-time loop: every ``asyncio.sleep`` here costs nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
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
from pydantic import PrivateAttr

from obsspec_agents import Observation, PendingCall, Prediction, WorldModel

Answer = Callable[[Sequence[BaseMessage]], AIMessage]


class Policy(BaseChatModel):
    """Answers by a function of the messages, a token a ``token_s``.

    ``draws`` counts the calls that began, ``open`` those under way, ``aborted`` those that
    were closed before their end.
    """

    token_s: float = 0.1
    _answer: Answer = PrivateAttr()
    _counts: dict[str, int] = PrivateAttr(default_factory=lambda: dict.fromkeys(
        ("draws", "open", "aborted", "finished"), 0
    ))
    _requests: list[list[BaseMessage]] = PrivateAttr(default_factory=list)

    def __init__(self, answer: Answer, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._answer = answer

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

    def _begin(self, messages: list[BaseMessage]) -> AIMessage:
        self._counts["draws"] += 1
        self._counts["open"] += 1
        self._requests.append(list(messages))
        return self._answer(messages)

    def _end(self, *, finished: bool) -> None:
        self._counts["open"] -= 1
        self._counts["finished" if finished else "aborted"] += 1

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        finished = False
        message = self._begin(messages)
        try:
            await asyncio.sleep(self.token_s * len(pieces(message)))
            finished = True
        finally:
            self._end(finished=finished)
        return ChatResult(generations=[ChatGeneration(message=with_usage(message))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        finished = False
        message = self._begin(messages)
        try:
            for piece in pieces(message):
                await asyncio.sleep(self.token_s)
                chunk = ChatGenerationChunk(message=piece)
                if run_manager is not None:
                    await run_manager.on_llm_new_token(str(piece.content), chunk=chunk)
                yield chunk
            finished = True
        finally:
            self._end(finished=finished)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = self._begin(messages)
        self._end(finished=True)
        return ChatResult(generations=[ChatGeneration(message=with_usage(message))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        message = self._begin(messages)
        for piece in pieces(message):
            yield ChatGenerationChunk(message=piece)
        self._end(finished=True)


def pieces(message: AIMessage) -> list[AIMessageChunk]:
    """The message as a stream: a word a chunk, then the tool calls, then the usage."""
    words = str(message.content).split(" ") if message.content else []
    parts = [AIMessageChunk(content=w + (" " if i < len(words) - 1 else ""))
             for i, w in enumerate(words)]
    parts += [
        AIMessageChunk(
            content="",
            tool_call_chunks=[
                {"name": c["name"], "args": _json(c["args"]), "id": c["id"], "index": i,
                 "type": "tool_call_chunk"}
            ],
        )
        for i, c in enumerate(message.tool_calls)
    ]
    parts.append(AIMessageChunk(content="", usage_metadata=usage(len(parts) + 1)))
    return parts


def _json(args: dict[str, Any]) -> str:
    import json

    return json.dumps(args)


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
