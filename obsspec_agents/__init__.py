"""ObsSpec Agents: hides the time a LangGraph agent spends waiting for its tools.

While a tool runs, a world model predicts its observation and the policy begins its next
generation on it. The work is kept only if the real next request is exactly the same.
"""

from obsspec_agents.chat_model import speculative
from obsspec_agents.errors import (
    ConfigurationError,
    MissingExtraError,
    ObsSpecError,
    RecordingError,
    SandboxError,
    UnknownRequestError,
)
from obsspec_agents.observation import ANSI_CODES, Normalizer, Observation
from obsspec_agents.report.summary import Summary
from obsspec_agents.speculator import Speculator
from obsspec_agents.step_handle import StepHandle
from obsspec_agents.tool_node import SpeculativeToolNode
from obsspec_agents.world_model import (
    CascadeWorldModel,
    EndpointWorldModel,
    PendingCall,
    Prediction,
    RecallWorldModel,
    RunInfo,
    Scope,
    WorldModel,
)

__all__ = [
    "ANSI_CODES",
    "CascadeWorldModel",
    "ConfigurationError",
    "EndpointWorldModel",
    "MissingExtraError",
    "Normalizer",
    "ObsSpecError",
    "Observation",
    "PendingCall",
    "Prediction",
    "RecallWorldModel",
    "RecordingError",
    "RunInfo",
    "SandboxError",
    "Scope",
    "SpeculativeToolNode",
    "Speculator",
    "StepHandle",
    "Summary",
    "UnknownRequestError",
    "WorldModel",
    "speculative",
]
