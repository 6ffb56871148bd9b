"""Removes secrets from texts that leave the installation, such as support bundles and reports of monitors."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

from pydantic import BaseModel, SecretStr

_REMOVED = "**removed**"
_PATTERNS = (
    re.compile(r"(?i)(https?://)[^/\s:@\"']+(?=@)"),
    re.compile(r"(?i)(://[^/\s:@]*:)[^\s\"'<>]+(?=@)"),
    re.compile(
        r"(?i)([\w.-]*(?:secret|passw(?:or)?d|passphrase|token|api[_-]?key|private[_-]?key|authorization|cookie|"
        r"credential)[\w.-]*[\"']?\s*[:=]\s*(?:bearer\s+|basic\s+)?[\"']?)[^\s\"',;}\]]+"
    ),
    re.compile(r"(?i)((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"()-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
    re.compile(r"(\A)(?:(?!-----BEGIN )[\s\S])*-----END [A-Z ]*PRIVATE KEY-----"),
    re.compile(r"()\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
)
"""Keys and passwords in URLs, values of telling names, headers, private keys, and JSON web tokens. What the first group
has is kept."""
_TELLING_KEY = re.compile(r"(?i)secret|passw|token|dsn|key$")
_MIN_SECRET_LENGTH = 4


def secrets_in(value: Any) -> Iterator[str]:
    """Yields the secret values of settings at any depth: secrets, passwords in URLs, and plugin values with secret-like
    keys."""
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, str) and "://" in value:
        yield from _password_of(value)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from secrets_in(getattr(value, name))
    elif isinstance(value, Mapping):
        for key, nested_value in value.items():
            if isinstance(nested_value, str) and _TELLING_KEY.search(str(key)):
                yield nested_value
            yield from secrets_in(nested_value)
    elif isinstance(value, list | tuple | set | frozenset):
        for nested_value in value:
            yield from secrets_in(nested_value)


def _forms_of(secret: str) -> Iterator[str]:
    """Yields a secret in each form in which it may be written: plain, JSON, Python, URL and base64."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    yield quote(secret, safe="")
    yield quote_plus(secret)
    yield base64.b64encode(secret.encode(errors="surrogateescape")).decode().rstrip("=")


def _password_of(url: str) -> Iterator[str]:
    with suppress(ValueError):
        password = urlsplit(url).password
        if password:
            yield password
            yield unquote(password)


class Cleaner:
    """Removes secrets, and texts that look like secrets, from texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        secret_forms = {
            secret_form for secret in secrets if len(secret) >= _MIN_SECRET_LENGTH for secret_form in _forms_of(secret)
        }
        self._known = sorted(secret_forms, key=len, reverse=True)

    def clean(self, text: str, *, has_values: bool = True) -> str:
        """Returns the text without secrets.

        A text of names and numbers alone (``has_values`` is False) loses only known secrets.
        """
        for secret in self._known:
            text = text.replace(secret, _REMOVED)
        for pattern in _PATTERNS if has_values else ():
            text = pattern.sub(rf"\1{_REMOVED}", text)
        return text
