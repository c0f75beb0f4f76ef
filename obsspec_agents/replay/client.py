"""For clients of a recorded endpoint: telling its known answers from the others."""

from __future__ import annotations

from langchain_core.messages import AIMessage

from obsspec_agents.errors import UnknownRequestError

__all__ = ["KNOWN", "UNKNOWN", "check_known"]

KNOWN = "obsspec-recording"
"""The ``system_fingerprint`` of an answer to a request that the recording holds."""
UNKNOWN = "obsspec-unknown"
"""That of the nearest recording's answer, given for want of the request's own."""


def check_known(message: AIMessage) -> None:
    """Refuse an answer that no recording holds. Call it on every *committed* answer.

    Raises:
        UnknownRequestError: the endpoint marked the answer as the nearest recording's.
    """
    if message.response_metadata.get("system_fingerprint") != UNKNOWN:
        return
    called = ", ".join(str(call["id"]) for call in message.tool_calls)
    shown = called or f"{message.text[:80]!r}"
    raise UnknownRequestError(
        f"the run committed an answer that its recording doesn't hold: {shown}. "
        "Run the endpoint with unknown='error' to see what differs from the nearest recording"
    )
