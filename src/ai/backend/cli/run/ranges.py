"""Range expressions of `run` (spec 03-11): `X=case:a,b`, `X=linspace:1,2,3`, `X=range:1,6,2`."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, InvalidOperation

MAX_CASES = 1000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


class RangeError(ValueError):
    """An expression is malformed; the message says how to write it."""


@dataclass(frozen=True, slots=True)
class Range:
    """A variable and the texts that it takes."""

    name: str
    values: tuple[str, ...]


def _number(text: str) -> Decimal:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise RangeError(f"{text!r} is not a number")
    return number


def _text(number: Decimal) -> str:
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _linspace(parts: Sequence[str]) -> list[str]:
    start, stop = _number(parts[0]), _number(parts[1])
    points = _number(parts[2])
    if points != int(points) or not 1 <= points <= MAX_CASES:
        raise RangeError(f"linspace takes 1 to {MAX_CASES} points, not {parts[2]}")
    if points == 1:
        return [_text(start)]
    exact = [start + (stop - start) * index / (points - 1) for index in range(int(points))]
    return [_text(round(number, 12)) for number in exact[:-1]] + [_text(stop)]


def _range(parts: Sequence[str]) -> list[str]:
    start, stop, step = (_number(part) for part in parts)
    if step == 0:
        raise RangeError("the step of a range must not be zero")
    steps = (stop - start) / step
    count = max(0, int(steps.to_integral_value(rounding=ROUND_CEILING)))
    if count > MAX_CASES:
        raise RangeError(f"a range of {count} values is too long; {MAX_CASES} is the most")
    return [_text(start + step * index) for index in range(count)]


def parse_range(expression: str) -> Range:
    """Parses ``NAME=case:A,B``, ``NAME=linspace:START,STOP,POINTS`` or ``NAME=range:START,STOP,STEP``.

    Raises RangeError: it is none of them.
    """
    name, equals, definition = expression.partition("=")
    kind, colon, body = definition.partition(":")
    parts = body.split(",")
    if not (equals and colon and body) or _NAME.fullmatch(name) is None:
        raise RangeError(
            f"{expression!r}: write X=case:A,B,C or X=linspace:START,STOP,POINTS or X=range:START,STOP,STEP"
        )
    kinds: Mapping[str, tuple[Callable[[Sequence[str]], list[str]], int | None]] = {
        "case": (list, None),
        "linspace": (_linspace, 3),
        "range": (_range, 3),
    }
    if kind not in kinds:
        raise RangeError(f"{expression!r}: {kind!r} is not one of case, linspace and range")
    make, arity = kinds[kind]
    if arity is not None and len(parts) != arity:
        raise RangeError(f"{expression!r}: {kind} takes {arity} numbers")
    values = tuple(make(parts))
    if not values:
        raise RangeError(f"{expression!r} has no values")
    return Range(name, values)


def combinations(ranges: Sequence[Range]) -> Iterator[dict[str, str]]:
    """Yields every combination of values, the last range varying fastest; one empty combination if there are no ranges.

    Raises RangeError: there are too many, or a name occurs twice.
    """
    names = [variable.name for variable in ranges]
    if len(set(names)) != len(names):
        raise RangeError("a range variable is given twice")
    total = math.prod(len(variable.values) for variable in ranges)
    if total > MAX_CASES:
        raise RangeError(f"{total} combinations are too many; {MAX_CASES} is the most")
    for values in itertools.product(*(variable.values for variable in ranges)):
        yield dict(zip(names, values, strict=True))


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Replaces ``$X`` and ``${X}`` where X is one of ``values``; every other dollar stays as it is."""

    def replace(match: re.Match[str]) -> str:
        return values.get(match[1] or match[2], match[0])

    return _REFERENCE.sub(replace, text)
