"""Clients that leave nothing open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from obsspec_agents.replay import RecordedEndpoint


@pytest.fixture
def connect() -> Iterator[Callable[[RecordedEndpoint], openai.OpenAI]]:
    """The ``openai`` client of an endpoint. It asks once, whatever happens."""
    with ExitStack() as stack:

        def make(endpoint: RecordedEndpoint) -> openai.OpenAI:
            client = openai.OpenAI(base_url=endpoint.url, api_key="none", max_retries=0)
            return stack.enter_context(client)

        yield make


@pytest.fixture
def chat_openai() -> Iterator[Callable[[RecordedEndpoint], ChatOpenAI]]:
    """``ChatOpenAI`` on an endpoint, with a client of its own."""
    with ExitStack() as stack:

        def make(endpoint: RecordedEndpoint) -> ChatOpenAI:
            http = stack.enter_context(openai.DefaultHttpxClient())
            return ChatOpenAI(
                base_url=endpoint.url,
                model="policy",
                api_key=SecretStr("none"),
                http_client=http,
                max_retries=0,
            )

        yield make
