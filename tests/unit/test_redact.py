"""What is a secret, and what only reads like one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_agents.redact import REDACTED, holds_secret, redact, redact_data

KEY = "sk-proj-" + "a1B2" * 8

SECRETS = [
    ("Authorization: Bearer abcdef123456", "abcdef123456"),
    ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    ('{"Authorization": "Bearer abc"}', "abc"),
    ("-H 'Authorization: token s3cr3t'", "s3cr3t"),
    ("curl -H 'X-Api-Key: s3cr3t' host", "s3cr3t"),
    ("got Bearer abcdef.123456-xyz back", "abcdef.123456"),
    (f"the key {KEY} is old", KEY),
    ("sk-ant-api03-abcdefghij0123456789", "abcdefghij"),
    ("hf_abcdefghijABCDEFGHIJ", "hf_a"),
    ("ghp_abcdefghij0123456789abcdefghij012345", "ghp_"),
    ("github_pat_11ABCDEFG0123456789_abcdef", "github_pat"),
    ("glpat-abcdefghij0123456789", "glpat"),
    ("AKIAIOSFODNN7EXAMPLE", "AKIA"),
    ("xoxb-123456789012-abcdefghij", "xoxb"),
    ("AIzaSyA-1234567890abcdefghijklmnopqrstu", "AIza"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijkl", "eyJ"),
    ("PASSWORD=hunter2", "hunter2"),
    ("db_password = hunter2", "hunter2"),
    ("password: hunter2", "hunter2"),
    ("export OPENAI_API_KEY=whatever", "whatever"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalr"),
    ("client_secret='two words'", "two words"),
    ('{"token": "abc"}', "abc"),
    ('{\\"token\\": \\"abc\\"}', "abc"),
    ('"accessToken":"abc"', "abc"),
    ("token=abc", "abc"),
    ("'passphrase' => 'abc'", "'abc'"),
    ("apikey := abc", "abc"),
    ("login --password hunter2 --verbose", "hunter2"),
    ("login --api-key hunter2", "hunter2"),
    ("login --token=hunter2", "hunter2"),
    ("postgres://user:hunter2@host/db", "hunter2"),
    ("https://:hunter2@host", "hunter2"),
    ("Set-Cookie: session=abcdef; Path=/", "abcdef"),
    ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "abc"),
    ("-----BEGIN PRIVATE KEY-----\nabc and then cut", "abc"),
]

ORDINARY = [
    "max_tokens: 5",
    "max_tokens=512, temperature=0",
    "token count 12",
    "token: 12",
    "tokens: 12 in, 40 out",
    "wasted_tokens=40",
    '{"completion_tokens": 12, "token": 5}',
    "next_token = tokens[i]",
    "token = next(stream)",
    "SyntaxError: Unexpected token: end",
    "if token == 'x':",
    "def login(user: str, password: str) -> None:",
    "password=None",
    "token: null",
    "export TOKEN=$TOKEN",
    "usage: login --password PASSWORD",
    "The secret of a good test is that it can fail.",
    "the keyboard: a device",
    "key=value",
    "cache_key: abc",
    "primary_key=id",
    "https://example.com:8080/path@2",
    "git@github.com:owner/repo.git",
    "mailto:a@b.c",
    "bearer of bad news",
    "basic understanding",
    "Authorization is required",
    "task-list-of-things-to-do-1234567890",
    "sk-learn",
    "risk-assessment-of-the-year-2026-01",
    "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
    "deadbeefdeadbeefdeadbeefdeadbeefdeadbeef",
    "3 passed in 0.12s",
    "",
]


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_secrets_are_replaced(text: str, secret: str) -> None:
    assert secret not in redact(text)
    assert REDACTED in redact(text)
    assert holds_secret(text)


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text) == text
    assert not holds_secret(text)


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_what_stands_around_a_secret_stays(text: str, secret: str) -> None:
    assert redact(f"before it\n{text}").startswith("before it\n")
    if not text.startswith("-----BEGIN PRIVATE") and "ookie" not in text:
        assert redact(f"{text}\nafter it").endswith("\nafter it")


def test_all_secrets_of_a_text_are_replaced() -> None:
    text = "\n".join(text for text, _ in SECRETS)
    assert not [secret for _, secret in SECRETS if secret in redact(text)]


@pytest.mark.parametrize("text", [text for text, _ in SECRETS])
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@settings(deadline=None)
@given(st.text(st.characters(codec=None)))
def test_any_text_can_be_redacted(text: str) -> None:
    redact(text)


def test_data_is_redacted_by_key_and_by_value() -> None:
    data = {
        "api_key": "abc",
        "apiKey": "abc",
        "headers": [{"Authorization": "abc", "x-api-key": "abc", "accept": "json"}],
        "nested": {"credentials": {"user": "me", "pass": "abc"}, "pin": ("PASSWORD=abc", 1)},
        "password": 1234,
        "args": {"command": "login --password abc"},
        KEY: 1,
        "none": None,
    }
    assert redact_data(data) == {
        "api_key": REDACTED,
        "apiKey": REDACTED,
        "headers": [{"Authorization": REDACTED, "x-api-key": REDACTED, "accept": "json"}],
        "nested": {"credentials": REDACTED, "pin": (f"PASSWORD={REDACTED}", 1)},
        "password": REDACTED,
        "args": {"command": f"login --password {REDACTED}"},
        REDACTED: 1,
        "none": None,
    }


def test_the_words_of_this_field_stay() -> None:
    data = {
        "max_tokens": 5,
        "usage": {"completion_tokens": 7, "total_tokens": 9},
        "token": 12,
        "tokens": ["a", "b"],
        "stop_token_ids": [1, 2],
        "logprobs": [{"token": "hello", "logprob": -0.1}],
        "key": "abc",
        "secret": None,
        "has_password": True,
        "cached": 1.5,
    }
    assert redact_data(data) == data


def test_data_is_not_changed_in_place() -> None:
    data = {"list": [{"api_key": "abc"}]}
    before = json.dumps(data)
    redact_data(data)
    assert json.dumps(data) == before


HOSTILE = ["sk-", "eyJ", "token", 'token="', "token='", "password:", "://a:", "://", "-", "a", " ",
           "bearer ", "bearer", "cookie: a=", "--token ", "-----BEGIN PRIVATE KEY-----", "key",
           "\\", "eyJaaaaaaaa.", "authorization", "secret_", "pass=\\\"", "sk-a",
           "--a-a-a-"]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_takes_no_longer_than_its_length(piece: str) -> None:
    import time

    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        best = float("inf")
        for _ in range(3):
            begun = time.process_time()
            redact(text)
            best = min(best, time.process_time() - begun)
        return best

    # A quadratic pattern takes 64 times as long here; twice that of a linear one is noise.
    assert seconds(160_000) < 24 * seconds(20_000) + 0.05
