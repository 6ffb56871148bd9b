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
    message = str(error)
    problem, _, path = message.rpartition(" - at `$") if " - at `$" in message else (message, "", "")
    path = path.removesuffix("`")[:_MAX_TEXT_LENGTH]
    if problem.startswith("Invalid enum value"):
        field_names = [
            path_part for path_part in path.replace("[", ".[").split(".") if path_part and path_part[0] != "["
        ]
        choices = [str(choice) for choice in _allowed_values(annotation, field_names)]
        if choices:
            problem = f"Expected one of {', '.join(choices[:_MAX_CHOICES])}{', ...' if choices[_MAX_CHOICES:] else ''}"
    elif problem.startswith(_PATTERN_PROBLEM):
        pattern = problem.removeprefix(_PATTERN_PROBLEM).removesuffix("'").replace("\\\\", "\\")
        description = next(_pattern_descriptions(annotation, pattern), None)
        problem = problem if description is None else f"Expected {description}"
    elif length_match := _LENGTH_PROBLEM.match(problem):
        kind_text, unit = _KINDS.get(length_match[1], ("an object", "field"))
        bound, length = _BOUNDS[length_match[2]], length_match[3]
        problem = f"Expected {kind_text} of {bound}{length} {unit}{'' if length == '1' else 's'}"
    return path, problem[:_MAX_TEXT_LENGTH]


def _pattern_descriptions(annotation: Any, pattern: str, enclosing_types: tuple[type, ...] = ()) -> Iterator[str]:
    """Yields the description of each constraint in a type that has the regular expression ``pattern``.

    A pattern means the same in every place of the type.
    """
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        if annotation not in enclosing_types:
            for field in structs.fields(annotation):
                yield from _pattern_descriptions(field.type, pattern, (*enclosing_types, annotation))
        return
    for constraint in getattr(annotation, "__metadata__", ()):
        if isinstance(constraint, msgspec.Meta) and constraint.pattern == pattern and constraint.description:
            yield constraint.description
    for type_argument in get_args(annotation):
        if type_argument is not annotation:
            yield from _pattern_descriptions(type_argument, pattern, enclosing_types)


def _allowed_values(annotation: Any, field_names: list[str]) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield from (member.value for member in annotation)
    elif isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        for field in structs.fields(annotation):
            if field_names and field.encode_name == field_names[0]:
                yield from _allowed_values(field.type, field_names[1:])
    else:
        for type_argument in get_args(annotation):
            yield from _allowed_values(type_argument, field_names)
