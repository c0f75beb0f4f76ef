"""Plays a set of rollouts through one graph, several at a time, and keeps what they said."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from obsspec_agents import SpeculativeToolNode, Speculator, speculative
from obsspec_agents.events import Event, GenerationCommitted
from obsspec_agents.replay import check_known
from obsspec_agents.report import RunRow, Span, Transcript, spans, transcript

from .agent import build_graph, rollout_config
from .environment import make_workspace
from .sandbox import Sandbox
from .shell import Shell, bash_tool
from .tasks import Task

__all__ = ["PlayedSet", "Player", "Playlist", "Rollout"]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt at a task."""

    task: Task
    id: str


Playlist = Sequence[Rollout]


@dataclass
class PlayedSet:
    """A set of rollouts that has been played."""

    name: str
    seconds: float
    """Wall time of the whole set."""
    speculator: Speculator
    speculates: bool
    transcripts: dict[str, Transcript] = field(default_factory=dict)
    messages: dict[str, list[BaseMessage]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    @property
    def row(self) -> RunRow:
        """For the table."""
        return RunRow(self.name, self.seconds, self.speculator.summary, self.speculates)

    def spans(self, rollout_id: str) -> list[Span]:
        """What happened when in one rollout."""
        return spans(self.events, str(run_id(self.name, rollout_id)))

    def hidden_seconds(self, rollout_id: str) -> float:
        """Seconds that one rollout's committed generations hid."""
        run = str(run_id(self.name, rollout_id))
        committed = (e for e in self.events if isinstance(e, GenerationCommitted))
        return sum(event.hidden_seconds for event in committed if event.run == run)


@dataclass(frozen=True)
class Player:
    """What all sets of a demo have in common.

    ``work_dir`` holds the workspaces; ``concurrency`` rollouts run at a time; each command
    takes ``round_trip_s`` longer, as in a sandbox that far away.
    """

    policy_url: str
    policy_model: str
    api_key: str
    work_dir: Path
    concurrency: int
    round_trip_s: float
    sandbox: Sandbox = Sandbox.NONE
    max_tokens: int | None = None

    async def play(
        self,
        name: str,
        playlist: Playlist,
        speculator: Speculator,
        events: list[Event],
        done: Callable[[], None],
    ) -> PlayedSet:
        """Play a set. ``done`` is called after each rollout.

        Raises:
            UnknownRequestError: a rollout committed an answer that the recording lacks.
            openai.APIError: the policy's endpoint failed.
        """
        shells: dict[str, Shell] = {}
        places = asyncio.Semaphore(self.concurrency)
        played = PlayedSet(name, 0.0, speculator, speculator.enabled, events=events)
        async with AsyncExitStack() as stack:
            client = openai.DefaultAsyncHttpxClient(timeout=120)
            await stack.enter_async_context(client)
            model = speculative(self._model(client), speculator)
            tools = SpeculativeToolNode([bash_tool(shells)], speculator=speculator)
            graph = build_graph(model, tools)

            async def one(rollout: Rollout) -> None:
                async with places:
                    base = self.work_dir / name
                    workspace = make_workspace(rollout.task, rollout.id, base)
                    shells[rollout.id] = Shell(
                        workspace, round_trip_s=self.round_trip_s, sandbox=self.sandbox
                    )
                    config = rollout_config(rollout.task.name, rollout.id)
                    config["run_id"] = run_id(name, rollout.id)
                    try:
                        state = await graph.ainvoke(
                            {"messages": [HumanMessage(rollout.task.prompt)]}, config
                        )
                    finally:
                        del shells[rollout.id]
                        workspace.remove()
                messages = state["messages"]
                for message in messages:
                    if isinstance(message, AIMessage):
                        check_known(message)
                played.messages[rollout.id] = messages
                played.transcripts[rollout.id] = transcript(messages)
                done()

            begun = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for rollout in playlist:
                    group.create_task(one(rollout))
            played.seconds = time.monotonic() - begun
        return played

    def _model(self, client: Any) -> ChatOpenAI:
        return ChatOpenAI(
            model=self.policy_model,
            base_url=self.policy_url,
            api_key=SecretStr(self.api_key),
            http_async_client=client,
            temperature=0,
            max_completion_tokens=self.max_tokens,
            max_retries=0,
        )


def run_id(set_name: str, rollout_id: str) -> uuid.UUID:
    """The LangChain run id of a rollout in a set, so that its events can be found."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{set_name}/{rollout_id}")
