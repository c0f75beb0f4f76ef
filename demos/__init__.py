"""Demonstrations that run as they are, installed as ``obsspec_agents.demos``."""

__all__: list[str] = []
