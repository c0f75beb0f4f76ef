"""To all that looks at it, the wrapped model is the model."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from langchain_tests.unit_tests import ChatModelUnitTests
from pydantic import BaseModel

from obsspec_agents import ConfigurationError, Speculator, speculative
from tests.contract.fakes import Oracle, Policy, Shell, right, three_turns, two_turns, wrong
from tests.contract.graphs import agent, played

MakeSpeculator = Callable[..., Speculator]


def openai_model(**settings: Any) -> ChatOpenAI:
    return ChatOpenAI(model="m", api_key="none", base_url="http://127.0.0.1:1/v1", **settings)


class Answer(BaseModel):
    """An answer."""

    text: str


@pytest.mark.parametrize("make", [openai_model, lambda: Policy(three_turns())])
def test_it_looks_like_the_original(make_speculator: MakeSpeculator, make: Any) -> None:
    model = make()
    wrapped = speculative(model, make_speculator())
    assert wrapped is not model
    assert isinstance(wrapped, type(model))
    for same in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(type(wrapped), same) == getattr(type(model), same)
    assert dumpd(wrapped) == dumpd(model)
    assert wrapped.model_dump() == model.model_dump()
    assert repr(wrapped) == repr(model)
    assert wrapped.get_name() == model.get_name()
    assert wrapped._identifying_params == model._identifying_params
    assert wrapped._get_ls_params() == model._get_ls_params()
    assert wrapped.lc_id() == model.lc_id()
    assert wrapped.model_fields_set == model.model_fields_set
    assert wrapped._get_llm_string() == model._get_llm_string()


def test_it_has_only_the_hooks_of_the_original(make_speculator: MakeSpeculator) -> None:
    class OneHook(BaseChatModel):
        _llm_type = "one"  # type: ignore[assignment]

        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    wrapped = speculative(OneHook(), make_speculator())
    assert type(wrapped)._stream is BaseChatModel._stream
    assert type(wrapped)._astream is BaseChatModel._astream


def test_the_original_stays_as_it_is(make_speculator: MakeSpeculator) -> None:
    model = openai_model()
    before = dict(vars(model)), type(model), dict(model.__pydantic_private__ or {})
    wrapped = speculative(model, make_speculator())
    wrapped.temperature = 0.5
    assert (dict(vars(model)), type(model), dict(model.__pydantic_private__ or {})) == before
    assert wrapped.root_async_client is model.root_async_client


def test_wrapping_again_takes_the_other_speculator(make_speculator: MakeSpeculator) -> None:
    first, second = make_speculator(), make_speculator()
    wrapped = speculative(speculative(openai_model(), first), second)
    assert type(wrapped).__mro__[1] is ChatOpenAI
    assert (wrapped.__pydantic_private__ or {})["_obsspec_speculator"] is second


@pytest.mark.parametrize(
    "derive",
    [
        lambda m: m.bind_tools([Shell().tool]).bound,
        lambda m: m.bind(stop=["x"]).bound,
        lambda m: m.with_config(tags=["x"]).bound,
        lambda m: m.with_retry().bound,
        lambda m: m.with_fallbacks([openai_model()]).runnable,
        lambda m: m.with_structured_output(Answer).first.bound,
        lambda m: (m | StrOutputParser()).first,
        lambda m: m.model_copy(),
        lambda m: m.model_copy(update={"temperature": 0.1}),
        copy.copy,
    ],
)
def test_what_is_derived_from_it_joins_too(make_speculator: MakeSpeculator, derive: Any) -> None:
    speculator = make_speculator()
    derived = derive(speculative(openai_model(), speculator))
    assert isinstance(derived, ChatOpenAI)
    assert derived.__pydantic_private__["_obsspec_speculator"] is speculator


def test_a_deep_copy_has_the_same_speculator(make_speculator: MakeSpeculator) -> None:
    speculator = make_speculator()
    twin = copy.deepcopy(speculative(Policy(three_turns()), speculator))
    assert (twin.__pydantic_private__ or {})["_obsspec_speculator"] is speculator


@pytest.mark.parametrize(
    "bind", [lambda m: m.bind(stop=["x"]), lambda m: m.with_config(tags=["x"])]
)
def test_a_bound_model_can_be_wrapped(make_speculator: MakeSpeculator, bind: Any) -> None:
    speculator = make_speculator()
    bound = bind(openai_model())
    wrapped = speculative(bound, speculator)
    assert type(wrapped) is type(bound)
    assert (wrapped.kwargs, wrapped.config) == (bound.kwargs, bound.config)
    assert wrapped.bound.__pydantic_private__["_obsspec_speculator"] is speculator


@pytest.mark.parametrize(
    "not_a_model", ["m", None, RunnableLambda(lambda x: x), openai_model() | StrOutputParser()]
)
def test_anything_else_is_refused(make_speculator: MakeSpeculator, not_a_model: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes a chat model, not"):
        speculative(not_a_model, make_speculator())


MODES: list[dict[str, Any]] = [
    {},
    {"disable_streaming": True},
    {"disable_streaming": "tool_calling"},
    {"disable_streaming": False},
]


@pytest.mark.looptime
@pytest.mark.parametrize("settings", MODES, ids=str)
@pytest.mark.parametrize("predict", [right, wrong])
@pytest.mark.parametrize("how", ["ainvoke", "astream", "astream_events"])
async def test_streaming_settings(
    make_speculator: MakeSpeculator, settings: dict[str, Any], predict: Any, how: str
) -> None:
    bound = {"tools": ["shell"]}
    plain = await played(
        agent(Policy(three_turns(), **settings), [Shell().tool], None, bound=bound), how
    )
    speculator = make_speculator(Oracle(predict))
    run = await played(
        agent(Policy(three_turns(), **settings), [Shell().tool], speculator, bound=bound), how
    )
    assert run[:2] == plain[:2]
    assert speculator.summary.committed == (2 if predict is right else 0)


@pytest.mark.looptime
@pytest.mark.parametrize("through", ["retry", "fallbacks", "chain"])
async def test_a_call_through_other_runnables_joins(
    make_speculator: MakeSpeculator, through: str
) -> None:
    speculator = make_speculator(Oracle(right))
    wrapped: Any = speculative(Policy(two_turns()), speculator)
    model = {
        "retry": wrapped.with_retry(),
        "fallbacks": wrapped.with_fallbacks([Policy(two_turns())]),
        "chain": RunnableLambda(lambda x: x) | wrapped,
    }[through]
    with speculator.run():
        said = await model.ainvoke([HumanMessage("go")])
        with speculator.step(said) as step:
            await asyncio.sleep(2.0)
            result = step.observe(ToolMessage("ran ls", tool_call_id="c1", name="shell"))
        await model.ainvoke([HumanMessage("go"), said, result])
    assert speculator.summary.committed == 1


def test_outside_of_any_run_it_is_the_plain_model(make_speculator: MakeSpeculator) -> None:
    wrapped = speculative(FakeListChatModel(responses=["a", "b"]), make_speculator())
    assert wrapped.invoke("x").content == "a"
    assert [m.content for m in wrapped.batch(["x"])] == ["b"]
    assert "".join(str(c.content) for c in wrapped.stream("x")) == "a"
    assert isinstance(wrapped.invoke("x"), AIMessage)


class WrappedChatOpenAI(ChatOpenAI):
    """Made by class, as langchain's standard tests want it, and wrapped at once."""

    def __new__(cls, **settings: Any) -> Any:
        return speculative(ChatOpenAI(**settings), Speculator(Oracle(right)))


class TestStandard(ChatModelUnitTests):
    """langchain's own tests of a chat model, on the wrapped one."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return WrappedChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "m", "api_key": "none", "base_url": "http://127.0.0.1:1/v1"}

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return (
            {"OPENAI_API_KEY": "key", "OPENAI_API_BASE": "http://127.0.0.1:1/v1"},
            {"model": "m"},
            {"openai_api_key": "key", "openai_api_base": "http://127.0.0.1:1/v1"},
        )

    @pytest.fixture
    def snapshot(self) -> Callable[..., Any]:
        """What langchain's test compares the dump with: here the plain model's."""
        settings = {**self.standard_chat_model_params, **self.chat_model_params}
        return lambda name: dumpd(ChatOpenAI(**settings))
