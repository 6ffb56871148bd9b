"""Splits validation messages of msgspec into the path of the value and the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import structs

_MAX_CHOICES = 12
_PATTERN_PROBLEM = "Expected `str` matching regex '"
_LENGTH_PROBLEM = re.compile(r"Expected `(str|bytes|array|object)` of length (>=|<=|==) (\d+)$")
_KINDS = {"str": ("a text", "character"), "bytes": ("a value", "byte"), "array": ("a list", "item")}
_BOUNDS = {">=": "at least ", "<=": "at most ", "==": ""}
_MAX_TEXT_LENGTH = 200
"""The maximum characters of a message of msgspec, which quotes the input."""


def split_message(error: msgspec.ValidationError, annotation: Any = None) -> tuple[str, str]:
    """Splits a message of msgspec into the path below the converted value, such as ``[1].size``, and the problem.

    ``annotation`` is the type of the value, from which the message for a wrong enumeration value lists the choices.
    """
    text = str(error)
    problem, _, path = text.rpartition(" - at `$") if " - at `$" in text else (text, "", "")
    path = path.removesuffix("`")[:_MAX_TEXT_LENGTH]
    if problem.startswith("Invalid enum value"):
        fields = [part for part in path.replace("[", ".[").split(".") if part and part[0] != "["]
        choices = [str(choice) for choice in _allowed_values(annotation, fields)]
        if choices:
            problem = f"Expected one of {', '.join(choices[:_MAX_CHOICES])}{', ...' if choices[_MAX_CHOICES:] else ''}"
    elif problem.startswith(_PATTERN_PROBLEM):
        pattern = problem.removeprefix(_PATTERN_PROBLEM).removesuffix("'").replace("\\\\", "\\")
        words = next(_words_of(annotation, pattern), None)
        problem = problem if words is None else f"Expected {words}"
    elif length := _LENGTH_PROBLEM.match(problem):
        kind, unit = _KINDS.get(length[1], ("an object", "field"))
        problem = f"Expected {kind} of {_BOUNDS[length[2]]}{length[3]} {unit}{'' if length[3] == '1' else 's'}"
    return path, problem[:_MAX_TEXT_LENGTH]


def _words_of(annotation: Any, pattern: str, outer: tuple[type, ...] = ()) -> Iterator[str]:
    """Yields the descriptions of the constraints with a pattern in a type; a pattern means the same everywhere."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        if annotation not in outer:
            for field in structs.fields(annotation):
                yield from _words_of(field.type, pattern, (*outer, annotation))
        return
    for constraint in getattr(annotation, "__metadata__", ()):
        if isinstance(constraint, msgspec.Meta) and constraint.pattern == pattern and constraint.description:
            yield constraint.description
    for part in get_args(annotation):
        if part is not annotation:
            yield from _words_of(part, pattern, outer)


def _allowed_values(annotation: Any, fields: list[str]) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield from (member.value for member in annotation)
    elif isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        for field in structs.fields(annotation):
            if fields and field.encode_name == fields[0]:
                yield from _allowed_values(field.type, fields[1:])
    else:
        for part in get_args(annotation):
            yield from _allowed_values(part, fields)
