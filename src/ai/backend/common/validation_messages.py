"""What msgspec says of a value that does not fit its type, split into the place and the reason."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import msgspec

_MAX_CHOICES = 12
_MAX_TEXT = 200
"""Characters of a message of msgspec, which quotes what was sent."""


def split_message(error: msgspec.ValidationError, annotation: Any = None) -> tuple[str, str]:
    """Split a message of msgspec into the path below the converted value, such as ``[1].size``, and what is wrong.

    ``annotation``: the type of the value; its choices are named where msgspec names only the wrong one.
    """
    text = str(error)
    what, _, path = text.rpartition(" - at `$") if " - at `$" in text else (text, "", "")
    choices = [str(choice) for choice in _choices(annotation)]
    if choices and what.startswith("Invalid enum value"):
        what = f"Expected one of {', '.join(choices[:_MAX_CHOICES])}{', ...' if choices[_MAX_CHOICES:] else ''}"
    return path.removesuffix("`")[:_MAX_TEXT], what[:_MAX_TEXT]


def _choices(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield from (member.value for member in annotation)
    else:
        for part in get_args(annotation):
            yield from _choices(part)
