"""Only an equal request gets the generation."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    trim_messages,
)
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition
from pydantic import BaseModel

from obsspec_agents import Observation, SpeculativeToolNode, Speculator, speculative
from obsspec_agents.events import DiscardReason, Event, GenerationDiscarded
from obsspec_agents.request import TRANSPORT_FIELDS, Mode, Request, UnkeyableRequestError
from tests.contract.fakes import Oracle, Policy, Shell, call, numbered, right, three_turns, turns
from tests.contract.graphs import START_STATE, agent, played

MakeSpeculator = Callable[..., Speculator]

FAKE = Policy(three_turns())
OPENAI = ChatOpenAI(model="m", api_key="none", base_url="http://127.0.0.1:1/v1")
MODELS: list[Any] = [FAKE, OPENAI]


def key(
    model: Any = FAKE,
    messages: list[BaseMessage] | None = None,
    stop: list[str] | None = None,
    mode: Mode = Mode.GENERATE,
    **kwargs: Any,
) -> str:
    return Request(model, mode, messages or [HumanMessage("go")], stop, kwargs).key


texts = st.text(st.characters(exclude_categories=()), max_size=20)  # lone surrogates, too
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(scalars, lambda v: st.lists(v) | st.dictionaries(texts, v), max_leaves=8)


# ------------------------------------------------------------------------ the key


@pytest.mark.parametrize("model", MODELS, ids=["fallback", "wire"])
@given(one=st.lists(texts, max_size=4), other=st.lists(texts, max_size=4))
def test_other_texts_other_keys(model: Any, one: list[str], other: list[str]) -> None:
    keys = [key(model, [SystemMessage("s"), *map(HumanMessage, texts)]) for texts in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


@given(
    kwargs=st.dictionaries(st.sampled_from(["seed", "temperature", "top_p", "n", "x"]), values),
    more=st.dictionaries(st.sampled_from(["seed", "temperature", "top_p", "n", "x"]), values),
)
def test_other_parameters_other_keys(kwargs: dict[str, Any], more: dict[str, Any]) -> None:
    same = repr(kwargs) == repr(more)
    assert (key(**kwargs) == key(**more)) == same


@given(kwargs=st.dictionaries(st.sampled_from("abcdef"), values, min_size=2))
def test_the_order_of_keys_counts(kwargs: dict[str, Any]) -> None:
    assert key(x=kwargs) != key(x=dict(reversed(kwargs.items())))


@settings(max_examples=30)
@given(transport=st.dictionaries(st.sampled_from(sorted(TRANSPORT_FIELDS)), scalars, min_size=1))
def test_transport_fields_do_not_count(transport: dict[str, Any]) -> None:
    assert key(seed=1, **transport) == key(seed=1)
    for model in MODELS:
        body = {"top_k": 5}
        assert key(model, extra_body={**body, **transport}) == key(model, extra_body=body)
        assert key(model, extra_body=body) != key(model, extra_body={"top_k": 6})


@pytest.mark.parametrize(
    "change",
    [
        {"stop": ["x"]},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "auto"},
        {"temperature": 0.5},
        {"seed": 3},
        {"max_tokens": 10},
        {"timeout": 5},
        {"mode": Mode.STREAM},
        {"response_format": {"type": "json_object"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("model", MODELS, ids=["fallback", "wire"])
def test_what_determines_the_answer_counts(model: Any, change: dict[str, Any]) -> None:
    assert key(model, **change) != key(model)


@pytest.mark.parametrize("model", MODELS, ids=["fallback", "wire"])
def test_tools_count_by_all_that_the_model_sees(model: Any) -> None:
    def make(description: str) -> Any:
        @tool(description=description)
        def shell(command: str) -> str:
            return command

        return shell

    plain = OPENAI.bind_tools([make("a")])
    other = OPENAI.bind_tools([make("b")])
    assert key(model, **plain.kwargs) == key(model, **OPENAI.bind_tools([make("a")]).kwargs)
    assert key(model, **plain.kwargs) != key(model, **other.kwargs)


def test_schemas_count_by_what_they_say() -> None:
    class First(BaseModel):
        x: int

    class Second(BaseModel):
        x: str

    assert key(schema=First) == key(schema=First)
    assert key(schema=First) != key(schema=Second)
    Second.__name__ = Second.__qualname__ = "First"
    assert key(schema=First) != key(schema=Second)


@pytest.mark.parametrize("model", MODELS, ids=["fallback", "wire"])
def test_ids_and_artifacts_do_not_reach_the_model(model: Any) -> None:
    def messages(name: str) -> list[BaseMessage]:
        said = AIMessage("", tool_calls=[call(_id="c", command="ls")], id=name)
        return [
            HumanMessage("go", id=name),
            said,
            ToolMessage("x", tool_call_id="c", name="shell", artifact=name, id=name),
        ]

    assert key(model, messages("a")) == key(model, messages("b"))


@pytest.mark.parametrize(
    "change",
    [
        {"content": "y"},
        {"status": "error"},
        {"tool_call_id": "d"},
        {"name": "other"},
        {"additional_kwargs": {"x": 1}},
    ],
    ids=str,
)
def test_all_else_in_a_message_does(change: dict[str, Any]) -> None:
    message = ToolMessage("x", tool_call_id="c", name="shell")
    assert key(messages=[message]) != key(messages=[message.model_copy(update=change)])


def test_a_message_changed_in_place_is_another_request() -> None:
    message = HumanMessage("go")
    before = key(messages=[message])
    message.content = "stop"
    assert key(messages=[message]) != before


@pytest.mark.parametrize("model", MODELS, ids=["fallback", "wire"])
def test_the_model_counts(model: Any) -> None:
    assert key(model) != key(copy.copy(model))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.3),
        ("model_name", "other"),
        ("openai_api_base", "http://127.0.0.1:2/v1"),
        ("model_kwargs", {"logit_bias": {}}),
        ("extra_body", {"top_k": 1}),
        ("max_tokens", 7),
        ("async_client", object()),
    ],
)
def test_a_setting_changed_in_place_counts(field: str, value: Any) -> None:
    model = ChatOpenAI(model="m", api_key="none", base_url="http://127.0.0.1:1/v1")
    before = key(model)
    setattr(model, field, value)
    assert key(model) != before


def test_a_plain_setting_of_any_model_counts() -> None:
    class Tuned(Policy):
        knobs: dict[str, Any] = {}

    model = Tuned(three_turns())
    before = key(model)
    model.knobs["x"] = 1
    assert key(model) != before


@pytest.mark.parametrize("value", [object(), lambda: 1, {"deep": [object()]}, b"bytes"])
def test_what_has_no_canonical_form_has_no_key(value: Any) -> None:
    with pytest.raises(UnkeyableRequestError):
        key(x=value)


def test_a_model_that_can_not_say_what_it_sends_has_no_key() -> None:
    class Torn(Policy):
        def _get_request_payload(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            raise KeyError("torn")

    with pytest.raises(UnkeyableRequestError):
        key(Torn(three_turns()))


def test_a_request_answers_the_calls_of_the_last_message_that_makes_them() -> None:
    def asked(*messages: BaseMessage) -> Request:
        return Request(FAKE, Mode.GENERATE, [HumanMessage("go"), *messages], None, {})

    said = AIMessage("", tool_calls=[call(_id="c"), call(_id="d")])
    c, d = ToolMessage("x", tool_call_id="c"), ToolMessage("y", tool_call_id="d")
    assert asked(said, c, d).answers(["c", "d"])
    assert not asked(said, c).answers(["c", "d"])
    assert not asked(said, c, d, said).answers(["c", "d"])
    assert not asked(said, c, d, said, d).answers(["c", "d"])


def test_a_following_request_is_a_copy() -> None:
    messages: list[Any] = [HumanMessage([{"type": "text", "text": "go"}])]
    following = Request(FAKE, Mode.GENERATE, messages, None, {}).extended([AIMessage("x")])
    before = following.key
    messages[0].content[0]["text"] = "stop"
    assert following.messages[0].content == [{"type": "text", "text": "go"}]
    assert following.key == before


# ------------------------------------------------------------------------ graphs

CHANGES: dict[str, Callable[[list[BaseMessage]], list[BaseMessage]]] = {
    "trimmed": lambda messages: trim_messages(
        messages, max_tokens=2, token_counter=len, include_system=True
    ),
    "last two": lambda messages: messages[-2:],
    "counted": lambda messages: [SystemMessage(f"turn {len(messages)}"), *messages],
    "reminded": lambda messages: [*messages, HumanMessage("mind the gap")],
    "rewritten": lambda messages: [
        m.model_copy(update={"content": m.text.upper()}) if isinstance(m, ToolMessage) else m
        for m in messages
    ],
}


def by_last_observation(messages: Sequence[BaseMessage]) -> AIMessage:
    """Three turns, whatever part of the conversation is in the prompt."""
    seen = [m.text.lower() for m in messages if isinstance(m, ToolMessage)]
    if not seen:
        return AIMessage("look", tool_calls=[call(_id="c1", command="ls")])
    if seen[-1] == "ran ls":
        return AIMessage("look again", tool_calls=[call(_id="c2", command="cat")])
    return AIMessage(f"done with {seen[-1]}")


@pytest.mark.looptime
@pytest.mark.parametrize("how", ["ainvoke", "astream"])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_graph_that_makes_its_own_prompt_misses_without_harm(
    make_speculator: MakeSpeculator, events: list[Event], change: str, how: str
) -> None:
    before_model = CHANGES[change]
    plain = await played(
        agent(Policy(by_last_observation), [Shell().tool], None, before_model=before_model), how
    )
    model = Policy(by_last_observation)
    speculator = make_speculator(Oracle(right))
    graph = agent(model, [Shell().tool], speculator, before_model=before_model)
    run = await played(graph, how)
    assert run[:2] == plain[:2]
    assert speculator.summary.committed == 0
    reasons = [e.reason for e in events if isinstance(e, GenerationDiscarded)]
    assert reasons
    assert set(reasons) == {DiscardReason.REQUEST_DIFFERS}
    assert model.counts["open"] == 0


def with_node_between(
    model: Any, speculator: Speculator, between: Callable[[list[AnyMessage]], Any]
) -> Any:
    joining = speculative(model, speculator)

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await joining.ainvoke(state["messages"])]}

    async def change(state: MessagesState) -> dict[str, Any]:
        return {"messages": between(state["messages"])}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", ask)
    graph.add_node("tools", SpeculativeToolNode([Shell().tool], speculator=speculator))
    graph.add_node("between", change)
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "between")
    graph.add_edge("between", "agent")
    return graph.compile()


@pytest.mark.looptime
async def test_a_node_between_that_changes_nothing_hits(make_speculator: MakeSpeculator) -> None:
    speculator = make_speculator(Oracle(right))
    await played(with_node_between(Policy(three_turns()), speculator, lambda messages: []))
    assert speculator.summary.committed == 2


@pytest.mark.looptime
@pytest.mark.parametrize(
    "between",
    [
        lambda messages: [HumanMessage("and now?")],
        lambda messages: [messages[-1].model_copy(update={"content": "edited"})],
    ],
    ids=["adds", "edits"],
)
async def test_a_node_between_that_changes_the_state_misses(
    make_speculator: MakeSpeculator, events: list[Event], between: Any
) -> None:
    model = Policy(numbered(three_turns()))
    speculator = make_speculator(Oracle(right))
    messages, _, _ = await played(with_node_between(model, speculator, between))
    assert speculator.summary.committed == 0
    assert [m["content"][-2:] for m in messages if m["type"] == "ai"] == ["#1", "#3", "#5"]


@pytest.mark.looptime
async def test_a_model_changed_while_the_tool_runs_is_asked_again(
    make_speculator: MakeSpeculator, events: list[Event]
) -> None:
    model = Policy(numbered(three_turns()))
    speculator = make_speculator(Oracle(right))
    joining = speculative(model, speculator)
    with speculator.run():
        said = await joining.ainvoke("go")
        with speculator.step(said) as step:
            await asyncio.sleep(5.0)
            joining.token_s = 0.2
            result = step.observe(ToolMessage("ran ls", tool_call_id="c1", name="shell"))
        last = await joining.ainvoke([HumanMessage("go"), said, result])
    assert last.content.endswith("#3")
    assert [e.reason for e in events if isinstance(e, GenerationDiscarded)] == [
        DiscardReason.REQUEST_DIFFERS
    ]


@pytest.mark.looptime
async def test_a_message_changed_while_the_tool_runs_is_another_request(
    make_speculator: MakeSpeculator,
) -> None:
    model = Policy(numbered(three_turns()))
    speculator = make_speculator(Oracle(right))
    joining = speculative(model, speculator)
    start = HumanMessage("go")
    with speculator.run():
        said = await joining.ainvoke([start])
        with speculator.step(said) as step:
            await asyncio.sleep(1.0)
            start.content = "stop"
            result = step.observe(ToolMessage("ran ls", tool_call_id="c1", name="shell"))
        last = await joining.ainvoke([start, said, result])
    assert last.content.endswith("#3")
    assert speculator.summary.committed == 0


@pytest.mark.looptime
async def test_a_hook_that_changes_its_messages_changes_only_its_own(
    make_speculator: MakeSpeculator,
) -> None:
    class Rough(Policy):
        async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(messages[-1], ToolMessage):
                for message in messages:
                    message.additional_kwargs["seen"] = True
            return await super()._agenerate(messages, *args, **kwargs)

    speculator = make_speculator(Oracle(lambda c: "something else"))
    graph = agent(Rough(three_turns()), [Shell().tool], speculator)
    run = asyncio.create_task(graph.ainvoke(START_STATE))
    await asyncio.sleep(2.0)  # the speculation's hook has run; the real one has not
    assert speculator.summary.turns == 1
    plain = await agent(Rough(three_turns()), [Shell().tool], None).ainvoke(START_STATE)
    state = await run
    assert [m.additional_kwargs for m in state["messages"]] == [
        m.additional_kwargs for m in plain["messages"]
    ]


@pytest.mark.looptime
async def test_a_text_that_can_not_be_sent_is_answered_plainly(
    make_speculator: MakeSpeculator,
) -> None:
    """A lone surrogate in a real observation: no crash, no hit."""
    shell = Shell(result=lambda command: "half \ud83d")
    speculator = make_speculator(Oracle(lambda c: Observation("half ?")))
    messages, _, _ = await played(
        agent(
            Policy(turns(three_turns()([HumanMessage("x")]), AIMessage("done"))),
            [shell.tool],
            speculator,
        )
    )
    assert messages[-2]["content"] == "half \ud83d"
    assert messages[-1]["content"] == "done"
