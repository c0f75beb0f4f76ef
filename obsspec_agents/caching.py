"""What sits above a chat model's hooks and could make a speculation pointless or unfair."""

from __future__ import annotations

from langchain_core.caches import BaseCache
from langchain_core.globals import get_llm_cache
from langchain_core.load import dumps

from obsspec_agents.request import Mode, Request

__all__ = ["cached"]


async def cached(request: Request) -> bool:
    """Whether the model's LLM cache would answer this request without a call.

    Looks up what ``BaseChatModel._agenerate_with_cache`` does; streaming has no cache.
    """
    model = request.model
    if request.mode is Mode.STREAM or model.cache is False:
        return False
    cache = model.cache if isinstance(model.cache, BaseCache) else get_llm_cache()
    if cache is None:
        return False
    prompt = dumps([m.model_copy(update={"id": None}) for m in request.messages])
    stop = None if request.stop is None else list(request.stop)
    return bool(await cache.alookup(prompt, model._get_llm_string(stop=stop, **request.kwargs)))
