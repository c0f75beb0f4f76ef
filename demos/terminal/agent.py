"""The agent: an ordinary LangGraph loop of a model and its tools.

Nothing in here knows of speculation. The model and the tool node that are passed in decide
whether there is any.
"""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode

from .environment import SYSTEM_PROMPT, seed_of

__all__ = ["build_graph", "rollout_config"]

Graph = CompiledStateGraph[MessagesState, None, MessagesState, MessagesState]


def build_graph(model: BaseChatModel, tool_node: ToolNode) -> Graph:
    """The loop as a compiled graph, for ``invoke`` and ``ainvoke``; many runs may share it.

    Each run is told its rollout by its config (see :func:`rollout_config`).
    """
    policy = model.bind_tools(list(tool_node.tools_by_name.values()))
    system = SystemMessage(SYSTEM_PROMPT)

    def prompt(state: MessagesState) -> list[BaseMessage]:
        return [system, *state["messages"]]

    def agent(state: MessagesState, config: RunnableConfig) -> dict[str, list[BaseMessage]]:
        return {"messages": [policy.invoke(prompt(state), config, **_sampling(config))]}

    async def aagent(state: MessagesState, config: RunnableConfig) -> dict[str, list[BaseMessage]]:
        return {"messages": [await policy.ainvoke(prompt(state), config, **_sampling(config))]}

    def after_agent(state: MessagesState) -> Literal["tools", "__end__"]:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else "__end__"

    graph = StateGraph(MessagesState)
    graph.add_node("agent", RunnableLambda(agent, aagent))
    graph.add_node("tools", tool_node)
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", after_agent)
    graph.add_edge("tools", "agent")
    return graph.compile()


def rollout_config(task: str, rollout_id: str) -> RunnableConfig:
    """The config of one rollout's run: its id for the tool, its seed for the policy."""
    return {
        "configurable": {"rollout_id": rollout_id, "seed": seed_of(rollout_id)},
        "metadata": {"obsspec_task": task, "obsspec_group": task},
        "recursion_limit": 60,
    }


def _sampling(config: RunnableConfig) -> dict[str, Any]:
    seed = config.get("configurable", {}).get("seed")
    return {} if seed is None else {"seed": seed}
