"""Checks names that users choose (spec 03-07 "JSON Value Types", 03-08, client wire contract 2.1.1)."""

from __future__ import annotations

import re

from ai.backend.common.errors import InvalidName

_SLUG_PATTERN = re.compile(r"[A-Za-z0-9]+(?:[-_]+[A-Za-z0-9]+)*")
_DOTTED_SLUG_PATTERN = re.compile(r"[A-Za-z0-9]+(?:[-_.]+[A-Za-z0-9]+)*")
_ENV_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SLOT_NAME_PATTERN = re.compile(r"[a-z][a-z0-9_-]*(?:\.[a-z0-9][a-z0-9_:-]*)?")
_UUID_PATTERN = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)


def check_slug(name: str, *, what: str, min_length: int = 1, max_length: int = 64, allow_dots: bool = False) -> str:
    """Checks and returns a name of ASCII letters and digits, with hyphens and underscores only between them.

    Raises InvalidName.
    """
    pattern = _DOTTED_SLUG_PATTERN if allow_dots else _SLUG_PATTERN
    if not min_length <= len(name) <= max_length or pattern.fullmatch(name) is None:
        allowed_characters = "letters, digits, hyphens, underscores" + (" and dots" if allow_dots else "")
        raise InvalidName(
            f"{what} must be {min_length} to {max_length} characters of {allowed_characters}, "
            "none of the marks at either end",
            data={what: "malformed"},
        )
    return name


def check_session_name(name: str) -> str:
    """Returns ``name`` if it is a slug of 4 to 64 characters that is no UUID. Raises InvalidName."""
    if _UUID_PATTERN.fullmatch(name):
        raise InvalidName("name must not look like a session id", data={"name": "malformed"})
    return check_slug(name, what="name", min_length=4, max_length=64, allow_dots=True)


def check_env_name(name: str) -> str:
    if len(name) > 256 or _ENV_NAME_PATTERN.fullmatch(name) is None:
        raise InvalidName(f"not a name of an environment variable: {name[:64]!r}", data={"environ": "malformed"})
    return name


def check_slot_name(name: str) -> str:
    if len(name) > 64 or _SLOT_NAME_PATTERN.fullmatch(name) is None:
        raise InvalidName(f"not a name of a resource slot: {name[:64]!r}", data={"resources": "malformed"})
    return name
