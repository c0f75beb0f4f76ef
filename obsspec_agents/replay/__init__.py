"""A recorded endpoint: an OpenAI-compatible server that plays recorded answers at their pace.

The server needs the extra ``replay``; reading and writing recordings does not.
"""

from obsspec_agents.replay.client import check_known
from obsspec_agents.replay.entry import Entry, Pace, Sample, ToolCall, When
from obsspec_agents.replay.recording import Recording
from obsspec_agents.replay.server import RecordedEndpoint, serve

__all__ = [
    "Entry",
    "Pace",
    "RecordedEndpoint",
    "Recording",
    "Sample",
    "ToolCall",
    "When",
    "check_known",
    "serve",
]
