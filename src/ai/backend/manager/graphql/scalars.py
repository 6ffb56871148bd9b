"""Parses values of the scalar types of GraphQL (spec 03-09:101-113). Each raises GraphQLError for a value out of its
type.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from graphql import GraphQLError

MAX_WHOLE_NUMBER = 2**53 - 1
"""The largest absolute value of a BigInt, up to which JSON readers keep numbers exactly (spec 03-09:105)."""
MAX_JSON_DEPTH = 32
_MAX_JSON_LENGTH = 65_536


def parse_uuid(value: Any) -> UUID:
    try:
        return UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise GraphQLError(f"not a UUID: {str(value)[:64]!r}") from None


def parse_whole_number(value: Any) -> int:
    """Parses a BigInt, which is an integer between -(2^53-1) and 2^53-1, as a number or as text."""
    if isinstance(value, str) and len(value) <= 17 and value.removeprefix("-").isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_WHOLE_NUMBER:
        raise GraphQLError(f"not a whole number between -(2^53-1) and 2^53-1: {str(value)[:64]!r}")
    return value


def parse_json_text(value: Any) -> str:
    """Checks that a JSONString is a text with valid JSON, and returns the text unchanged."""
    if not isinstance(value, str):
        raise GraphQLError("a JSONString is JSON in a text")
    _decode(value)
    return value


def parse_json_value(value: Any) -> Any:
    """Returns a JSON value that is given as a structure, or decodes the value from a text with JSON."""
    if isinstance(value, str):
        return _decode(value)
    _check_depth(value, MAX_JSON_DEPTH)
    return value


def _decode(json_text: str) -> Any:
    if len(json_text) > _MAX_JSON_LENGTH:
        raise GraphQLError(f"the JSON text is longer than {_MAX_JSON_LENGTH} characters")
    try:
        value = msgspec.json.decode(json_text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise GraphQLError(f"not JSON: {json_text[:64]!r}") from None
    _check_depth(value, MAX_JSON_DEPTH)
    return value


def _check_depth(value: Any, depth: int) -> None:
    if isinstance(value, dict | list):
        if not depth:
            raise GraphQLError(f"the JSON is nested deeper than {MAX_JSON_DEPTH}")
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, depth - 1)
