"""Range expressions of `run` (spec 03-11): `X=case:a,b`, `X=linspace:1,2,3`, `X=range:1,6,2`."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decimal import Decimal

MAX_CASES = 1000
_NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"
_REFERENCE_PATTERN = r"\$(?:(\w+)|\{(\w+)\})"
"""Compiled at their first use, as most runs have no ranges."""


class RangeError(ValueError):
    """Raised for a malformed range expression of `run`. The message says how to write such an expression."""


@dataclass(frozen=True, slots=True)
class Range:
    """A variable of a range expression and its values, as texts."""

    name: str
    values: tuple[str, ...]


def _parse_number(text: str) -> Decimal:
    from decimal import Decimal, InvalidOperation

    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise RangeError(f"{text!r} is not a number")
    return number


def _number_text(number: Decimal) -> str:
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _linspace_values(arguments: Sequence[str]) -> list[str]:
    start, stop = _parse_number(arguments[0]), _parse_number(arguments[1])
    point_count = _parse_number(arguments[2])
    if point_count != int(point_count) or not 1 <= point_count <= MAX_CASES:
        raise RangeError(f"linspace takes 1 to {MAX_CASES} points, not {arguments[2]}")
    if point_count == 1:
        return [_number_text(start)]
    exact_values = [start + (stop - start) * point_index / (point_count - 1) for point_index in range(int(point_count))]
    return [_number_text(round(number, 12)) for number in exact_values[:-1]] + [_number_text(stop)]


def _range_values(arguments: Sequence[str]) -> list[str]:
    from decimal import ROUND_CEILING

    start, stop, step = (_parse_number(argument) for argument in arguments)
    if step == 0:
        raise RangeError("the step of a range must not be zero")
    exact_count = (stop - start) / step
    count = max(0, int(exact_count.to_integral_value(rounding=ROUND_CEILING)))
    if count > MAX_CASES:
        raise RangeError(f"a range of {count} values is too long; {MAX_CASES} is the most")
    return [_number_text(start + step * index) for index in range(count)]


def parse_range(expression: str) -> Range:
    """Parses ``NAME=case:A,B``, ``NAME=linspace:START,STOP,POINTS`` or ``NAME=range:START,STOP,STEP``.

    Raises RangeError if it is none of them.
    """
    name, equals_sign, definition = expression.partition("=")
    kind, colon, argument_text = definition.partition(":")
    arguments = argument_text.split(",")
    if not (equals_sign and colon and argument_text) or re.fullmatch(_NAME_PATTERN, name) is None:
        raise RangeError(
            f"{expression!r}: write X=case:A,B,C or X=linspace:START,STOP,POINTS or X=range:START,STOP,STEP"
        )
    parsers_by_kind: Mapping[str, tuple[Callable[[Sequence[str]], list[str]], int | None]] = {
        "case": (list, None),
        "linspace": (_linspace_values, 3),
        "range": (_range_values, 3),
    }
    if kind not in parsers_by_kind:
        raise RangeError(f"{expression!r}: {kind!r} is not one of case, linspace and range")
    parse_values, argument_count = parsers_by_kind[kind]
    if argument_count is not None and len(arguments) != argument_count:
        raise RangeError(f"{expression!r}: {kind} takes {argument_count} numbers")
    values = tuple(parse_values(arguments))
    if not values:
        raise RangeError(f"{expression!r} has no values")
    return Range(name, values)


def combinations(ranges: Sequence[Range]) -> Iterator[dict[str, str]]:
    """Yields every combination of values, the last range varying fastest; one empty combination if there are no ranges.

    Raises RangeError if there are too many, or a name occurs twice.
    """
    names = [variable.name for variable in ranges]
    if len(set(names)) != len(names):
        raise RangeError("a range variable is given twice")
    combination_count = math.prod(len(variable.values) for variable in ranges)
    if combination_count > MAX_CASES:
        raise RangeError(f"{combination_count} combinations are too many; {MAX_CASES} is the most")
    for values in itertools.product(*(variable.values for variable in ranges)):
        yield dict(zip(names, values, strict=True))


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Replaces ``$X`` and ``${X}`` where X is one of ``values``; every other dollar stays as it is."""

    def replace(match: re.Match[str]) -> str:
        return values.get(match[1] or match[2], match[0])

    return re.sub(_REFERENCE_PATTERN, replace, text)
