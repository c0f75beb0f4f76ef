"""World models: whatever predicts the observation of a tool call, behind one protocol."""

from obsspec_agents.world_model.base import (
    Exchange,
    PendingCall,
    Prediction,
    RunInfo,
    Scope,
    WorldModel,
)
from obsspec_agents.world_model.cascade import CascadeWorldModel
from obsspec_agents.world_model.endpoint import EndpointWorldModel
from obsspec_agents.world_model.prompt import (
    observation_from,
    target_text,
    world_model_messages,
)
from obsspec_agents.world_model.recall import RecallWorldModel

__all__ = [
    "CascadeWorldModel",
    "EndpointWorldModel",
    "Exchange",
    "PendingCall",
    "Prediction",
    "RecallWorldModel",
    "RunInfo",
    "Scope",
    "WorldModel",
    "observation_from",
    "target_text",
    "world_model_messages",
]
