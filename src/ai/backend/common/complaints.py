"""What is wrong with a value that does not fit its schema, in sentences for whoever sent it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import msgspec

_AT = re.compile(r"(?P<key>`key` in )?`\$?(?P<path>.*)`", re.DOTALL)
_LONGEST = 1_000
"""Characters of each half of what msgspec says; it quotes what was sent, and that may be megabytes long."""
_QUOTED = 200
_KINDS = {
    "array": "a list",
    "bool": "true or false",
    "bytes": "bytes in base64",
    "date": "a date such as 2026-01-31",
    "datetime": "a time such as 2026-01-31T12:00:00Z",
    "decimal": "a decimal number",
    "dict": "an object",
    "duration": "a duration such as PT90S",
    "ext": "an extension",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "null": "null",
    "object": "an object",
    "str": "text",
    "time": "a time of day such as 12:00:00",
    "timedelta": "a duration such as PT90S",
    "uuid": "a UUID",
}
_UNITS = {"array": "item", "object": "entry", "str": "character", "bytes": "byte"}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_SHOWN = 12
Found = re.Match[str]


def _kinds(found: Found) -> str:
    names = [_KINDS.get(name, name) for name in found["kinds"].split(" | ")]
    return "must be " + " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def _length(found: Found) -> str:
    return f"must have {_BOUNDS[found['bound']]} {_count(found['size'], found['kind'])}"


def _count(size: str, kind: str) -> str:
    unit = _UNITS[kind]
    return f"{size} {unit}" if size == "1" else f"{size} {unit[:-1]}ies" if unit[-1] == "y" else f"{size} {unit}s"


_SENTENCES: tuple[tuple[str, Callable[[Found], str]], ...] = (
    (r"Object missing required field `.*`", lambda _: "required"),
    (r"Object contains unknown field `.*", lambda _: "unknown field"),
    (r"Expected `(?P<kind>array|object|str|bytes)` of length (?P<bound>[<>]=) (?P<size>\d+)", _length),
    (
        r"Expected `array` of at (?P<bound>least|most) length (?P<size>\d+)(, got \d+)?",
        lambda found: f"must have at {found['bound']} {_count(found['size'], 'array')}",
    ),
    (
        r"Expected `array` of length (?P<least>\d+) to (?P<most>\d+)(, got \d+)?",
        lambda found: f"must have {found['least']} to {_count(found['most'], 'array')}",
    ),
    (
        r"Expected `array` of length (?P<size>\d+)(, got \d+)?",
        lambda found: f"must have {_count(found['size'], 'array')}",
    ),
    (
        r"Expected `str` matching regex (?P<quote>['\"])(?P<pattern>.*)(?P=quote)",
        lambda f: f"must match {f['pattern']}",
    ),
    (r"Expected `\w+` that's a multiple of (?P<step>\S+)", lambda found: f"must be a multiple of {found['step']}"),
    (
        r"Expected `\w+` (?P<bound>[<>]=?) (?P<limit>\S+)",
        lambda found: f"must be {_BOUNDS[found['bound']]} {found['limit']}",
    ),
    (r"Expected `\w+` with no timezone component", lambda _: "must be a time without a zone"),
    (
        r"Expected `\w+` with a timezone component",
        lambda _: "must be a time with its zone, such as 2026-01-31T12:00:00Z",
    ),
    (r"Expected `(?P<kinds>[^`]+)`(, got `.*`)?", _kinds),
    (r"(Integer value|Number) out of range", lambda _: "is too large or too small"),
    (r"Invalid UUID.*", lambda _: f"must be {_KINDS['uuid']}"),
    (r"Invalid base64 encoded string", lambda _: f"must be {_KINDS['bytes']}"),
    (r"Invalid decimal string", lambda _: f"must be {_KINDS['decimal']}"),
    (r"Invalid ISO8601 duration", lambda _: f"must be {_KINDS['duration']}"),
    (r"Invalid RFC3339 encoded (?P<kind>\w+)", lambda found: f"must be {_KINDS[found['kind']]}"),
    (r"Invalid epoch timestamp", lambda _: f"must be {_KINDS['datetime']}"),
)
_TABLE = tuple((re.compile(pattern, re.DOTALL), sentence) for pattern, sentence in _SENTENCES)


def complaint(error: msgspec.ValidationError, annotation: Any = None) -> tuple[str, str]:
    """Where a value does not fit, as ``.field[...]`` below the value that was converted, and what must be instead.

    ``annotation``: the type that was asked for, so that the values which it allows can be named. What msgspec says in
    words that are not known here is handed on, up to 200 characters of it.
    """
    said = str(error)
    what, separator, where = said.rpartition(" - at ")
    found = _AT.fullmatch(where) if separator and len(where) <= _LONGEST else None
    sentence = _sentence((what if found else said)[:_LONGEST], annotation)
    return found["path"] if found else "", f"a key {sentence}" if found and found["key"] else sentence


def _sentence(what: str, annotation: Any) -> str:
    if what.startswith(("Invalid enum value ", "Invalid value ")):
        choices = [str(choice) for choice in _choices(annotation)]
        if choices:
            more = ", ..." if len(choices) > _SHOWN else ""
            return f"must be {'one of ' if choices[1:] else ''}{', '.join(choices[:_SHOWN])}{more}"
        return f"must not be {what.partition('value ')[2][:64]}"
    for pattern, sentence in _TABLE:
        if (found := pattern.fullmatch(what)) is not None:
            return sentence(found)
    return what[:_QUOTED]


def _choices(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield from (member.value for member in annotation)
    else:
        for part in get_args(annotation):
            yield from _choices(part)
