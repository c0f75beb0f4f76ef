"""Small transcripts to predict from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from obsspec_agents.observation import Observation
from obsspec_agents.world_model import PendingCall, RunInfo

Steps = Sequence[tuple[str, str]]
"""Commands and what they returned."""


def asks(command: str, id_: str) -> AIMessage:
    return AIMessage(
        "I think.", tool_calls=[{"name": "bash", "args": {"command": command}, "id": id_}]
    )


def transcript(steps: Steps, human: str = "Fix it.") -> list[BaseMessage]:
    messages: list[BaseMessage] = [HumanMessage(human)]
    for number, (command, returned) in enumerate(steps):
        messages.append(asks(command, f"call-{number}"))
        messages.append(ToolMessage(returned, tool_call_id=f"call-{number}", name="bash"))
    return messages


def pending(
    command: str = "ls",
    *,
    run: str = "run-1",
    group: str | None = None,
    task: str | None = None,
    after: Steps = (),
    human: str = "Fix it.",
    args: dict[str, Any] | None = None,
    description: str = "Runs a command.",
) -> PendingCall:
    id_ = f"call-{len(after)}"
    return PendingCall(
        id=id_,
        name="bash",
        args=args or {"command": command},
        run=RunInfo(run, group, task),
        messages=[*transcript(after, human), asks(command, id_)],
        description=description,
    )


def returned(text: str) -> Observation:
    return Observation(text)
