"""Keeps secrets out of whatever this library writes: traces, logs, memory files.

Secrets are found by their shape (known key formats, Authorization headers, private key
blocks, passwords in URLs) and by the name that they are assigned to. It errs towards
redacting, but knows the words of this field: ``max_tokens: 5`` and ``token count 12`` are
no secrets. A secret without a known shape or a telling name can't be found by anybody.

Every pattern runs in time linear in the text: repeats are bounded or possessive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["REDACTED", "holds_secret", "redact", "redact_data"]

REDACTED = "[redacted]"
"""What stands in a secret's place."""

_NAMES = (
    r"pass(?:word|wd|phrase)|secret(?:[_-]?(?:access[_-]?)?key)?|token|credentials?|"
    r"(?:api|access|private|account|auth|signing|encryption)[_-]?key|client[_-]?secret"
)
_HEADERS = r"(?:proxy[_-])?authorization|x[_-]api[_-]key"
_QUOTE = r"\\{0,3}[\"']"
_VALUE = (
    rf"(?P<quote>{_QUOTE})(?P<quoted>[^\n]{{1,4096}}?)(?P=quote)"
    r"|(?P<bare>[^\s\"'\\,;&(){}\[\]<>|`]++)"
)

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_KEY_FORMATS = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"(?:sk|pk|rk)[-_](?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic, Stripe
    r"|hf_[A-Za-z0-9]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|AIza[A-Za-z0-9_-]{30,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,}"
    r"|(?:npm_|pypi-)[A-Za-z0-9_-]{30,}"
    r"|eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+"  # JSON web tokens
    r")"
)
_KEY_STARTS = (
    *("sk", "pk", "rk", "hf_", "gh", "github_pat", "glpat", "akia", "asia", "aiza", "xox"),
    *("npm_", "pypi-", "eyj"),
)
_HEADER = re.compile(
    rf"(?P<head>\b(?:{_HEADERS})(?:{_QUOTE})?\s{{0,8}}[:=]\s{{0,8}}"
    rf"(?:{_QUOTE})?(?:(?:bearer|basic|token|digest|apikey)\s{{1,8}})?)(?P<bare>[^\s\"'\\,;]++)",
    re.IGNORECASE,
)
_BEARER = re.compile(
    r"(?P<head>\b(?:bearer|basic)\s{1,8})(?P<bare>(?=[a-z._~+/=-]*[0-9])[a-z0-9._~+/=-]{12,}+)",
    re.IGNORECASE,
)
_URL = re.compile(r"(?P<head>://[^\s/:@\"']{0,256}:)(?P<bare>[^\s/@\"']{1,256})(?=@)")
_ASSIGNED = re.compile(
    rf"(?P<head>(?P<name>{_NAMES})(?![\w-])(?:{_QUOTE})?"
    rf"\s{{0,20}}(?P<sign>=>|:=|=(?!=)|:(?![:=/]))\s{{0,20}})(?:{_VALUE})",
    re.IGNORECASE,
)
_FLAG = re.compile(
    rf"(?P<head>--(?:[a-z]{{1,20}}-){{0,3}}(?P<name>{_NAMES})(?P<sign>\s{{1,8}}))"
    rf"(?![-=])(?:{_VALUE})",
    re.IGNORECASE,
)
_COOKIE = re.compile(
    r"(?P<head>\b(?:set-)?cookie[\"']?\s{0,8}:\s{0,8}[\"']?[\w.-]{1,128}=)(?P<bare>[^\n\"']++)",
    re.IGNORECASE,
)

_HARMLESS = re.compile(
    r"\$\{?\w+\}?|none|null|true|false|str|string|bytes|int|any|optional|required|\*+|x+|\.+|"
    + re.escape(REDACTED),
    re.IGNORECASE,
)
_SECRET_KEY = re.compile(rf"(?:.*[^a-z])?(?:{_NAMES}|{_HEADERS}|(?:set-)?cookie)")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def _named(match: re.Match[str]) -> str:
    """The assignment without its value; unchanged where the value is no secret."""
    value = match["quoted"] or match["bare"]
    quote = match["quote"] or ""
    if _HARMLESS.fullmatch(value) or (not quote and not _looks_assigned(match, value)):
        return match[0]
    return f"{match['head']}{quote}{REDACTED}{quote}"


def _looks_assigned(match: re.Match[str], value: str) -> bool:
    """Whether a bare value is one, and not prose, code or a count."""
    if match.string[match.end() : match.end() + 1] in ("(", "["):
        return False  # a call or a subscript
    sign = match["sign"]
    if sign.isspace():
        return not value.isupper()  # a placeholder in a usage text
    if match["name"].lower() == "token":
        if value.replace(".", "").isdigit():
            return False
        if sign == ":" and len(value) < 16:
            return any(c.isdigit() for c in value)  # "Unexpected token: end"
    return True


def _bare(match: re.Match[str]) -> str:
    return match[0] if _HARMLESS.fullmatch(match["bare"]) else match["head"] + REDACTED


def _whole(_: re.Match[str]) -> str:
    return REDACTED


_RULES: tuple[tuple[tuple[str, ...], re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (("private key",), _PRIVATE_KEY, _whole),
    (("authorization", "api-key", "api_key"), _HEADER, _bare),
    (("bearer", "basic"), _BEARER, _bare),
    (("cookie",), _COOKIE, _bare),
    (("://",), _URL, _bare),
    (("pass", "secret", "token", "credential", "key"), _ASSIGNED, _named),
    (("--",), _FLAG, _named),
    (_KEY_STARTS, _KEY_FORMATS, _whole),
)
"""Words of which a text (in lower case) must hold one, the pattern, and its replacement."""


def redact(text: str) -> str:
    """The text with every secret that can be recognised replaced by ``[redacted]``."""
    lower = text.lower()
    for words, pattern, replace in _RULES:
        if any(word in lower for word in words):
            text = pattern.sub(replace, text)
    return text


def holds_secret(text: str) -> bool:
    """Whether :func:`redact` would change the text."""
    return redact(text) != text


def redact_data(data: Any) -> Any:
    """The same nested dicts, lists and tuples with secrets replaced.

    Strings are redacted as text. Under a key whose name says that it holds a secret, the
    whole value is replaced, but for None, booleans and, under ``token``, numbers. The
    ``token`` of a log-probability entry is a piece of text, not a secret.
    """
    if isinstance(data, str):
        return redact(data)
    if isinstance(data, Mapping):
        return {_redact_key(key): _redact_item(key, value, data) for key, value in data.items()}
    if isinstance(data, list):
        return [redact_data(item) for item in data]
    if isinstance(data, tuple):
        return tuple(redact_data(item) for item in data)
    return data


def _redact_key(key: Any) -> Any:
    return redact(key) if isinstance(key, str) else key


def _redact_item(key: Any, value: Any, siblings: Mapping[Any, Any]) -> Any:
    if not isinstance(key, str) or value is None or isinstance(value, bool) or value in ("", []):
        return redact_data(value)
    name = _CAMEL.sub("_", key).lower()
    if not _SECRET_KEY.fullmatch(name):
        return redact_data(value)
    if name.endswith("token") and (isinstance(value, (int, float)) or "logprob" in siblings):
        return redact_data(value)
    return REDACTED
