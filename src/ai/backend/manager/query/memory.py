"""Applies filters, orders and pages to values in memory."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

from ai.backend.common.errors import InvalidInput
from ai.backend.manager.query.model import Condition, Filter, ListQuery, Page

T = TypeVar("T")

COMPARISON_FUNCTIONS = {
    "==": operator.eq,
    "is": operator.eq,
    "!=": operator.ne,
    "isnot": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Maps comparison operators to functions."""


def _field_value(item: object, name: str) -> Any:
    if name not in getattr(item, "__struct_fields__", ()):
        raise InvalidInput(f"there is no field {name[:64]!r} to filter or order by", data={"filter": "unknown field"})
    return getattr(item, name)


def parse_time(text: str) -> datetime:
    """Parses a time of a filter, which is in UTC if it names no zone.

    Raises ValueError if it is malformed, or outside the years 1 to 9999 in UTC.
    """
    parsed_time = datetime.fromisoformat(text)
    try:
        return parsed_time.astimezone(UTC) if parsed_time.tzinfo else parsed_time.replace(tzinfo=UTC)
    except OverflowError:
        raise ValueError(text) from None


def _convert_operand(value: Any, operand: Any) -> Any:
    """Converts the operand of a filter to the type of the field's value: a time, a UUID or an enum member.

    The SQL store does the same.
    """
    try:
        if isinstance(value, datetime) and isinstance(operand, str):
            return parse_time(operand)
        if isinstance(value, UUID) and isinstance(operand, str):
            return UUID(operand)
        if isinstance(value, StrEnum) and isinstance(operand, str):
            return next(member for member in type(value) if member.value.lower() == operand.lower())
    except (ValueError, StopIteration):
        raise InvalidInput(f"{operand!r} is no such value", data={"filter": "bad value"}) from None
    return operand


def _matches_like(value: object, pattern: str, *, ignore_case: bool) -> bool:
    return _compile_like(pattern, ignore_case).fullmatch(str(value)) is not None


@lru_cache(64)
def _compile_like(pattern: str, ignore_case: bool) -> re.Pattern[str]:
    """Compiles a LIKE pattern to a regular expression; atomic groups bound its time by the product of both lengths."""
    first_part, *other_parts = (
        "".join("." if character == "_" else re.escape(character) for character in literal_part)
        for literal_part in pattern.split("%")
    )
    regex_parts = [
        *(f"(?>.*?{literal_part})" for literal_part in other_parts[:-1] if literal_part),
        *(f".*{literal_part}" for literal_part in other_parts[-1:]),
    ]
    return re.compile(first_part + "".join(regex_parts), re.DOTALL | (re.IGNORECASE if ignore_case else 0))


def _meets_condition(item: object, condition: Condition) -> bool:
    value = _field_value(item, condition.field)
    operator, operand = condition.op, condition.value
    if operator == "in":
        return value in [
            _convert_operand(value, listed_value)
            for listed_value in (operand if isinstance(operand, tuple) else (operand,))
        ]
    if operator in ("like", "ilike"):
        return value is not None and _matches_like(value, str(operand), ignore_case=operator == "ilike")
    if operator == "contains":
        return value is not None and str(operand) in str(value)
    if value is None and operand is not None:
        return False
    try:
        return bool(COMPARISON_FUNCTIONS[operator](value, _convert_operand(value, operand)))
    except TypeError:
        raise InvalidInput(f"{operand!r} is no such value", data={"filter": "bad value"}) from None


def matches(item: object, filter_: Filter | None) -> bool:
    """Returns True if the item meets the filter. Raises InvalidInput for an unknown field."""
    if filter_ is None:
        return True
    if isinstance(filter_, Condition):
        return _meets_condition(item, filter_)
    results = [matches(item, term) for term in filter_.terms]
    return all(results) if filter_.kind == "&" else any(results)


def select(
    items: Iterable[T], query: ListQuery, *, default_field: str = "created_at", descending: bool = True
) -> Page[T]:
    """Returns the page of items that a query selects by its filter, order and position.

    The items must come in the order that breaks ties.
    """
    matching_items: Sequence[T] = [item for item in items if matches(item, query.filter)]
    matching_items = sorted(matching_items, key=lambda item: _field_value(item, default_field), reverse=descending)
    for order in reversed(query.order):
        value_item_pairs = [(_field_value(item, order.field), item) for item in matching_items]
        pairs_with_value = [value_and_item for value_and_item in value_item_pairs if value_and_item[0] is not None]
        items_without_value = [item for value, item in value_item_pairs if value is None]
        ordered_pairs = sorted(pairs_with_value, key=lambda pair: pair[0], reverse=order.descending)
        # As in SQLite, NULL is smaller than any value.
        ordered_items = [item for _, item in ordered_pairs]
        matching_items = (
            [*ordered_items, *items_without_value] if order.descending else [*items_without_value, *ordered_items]
        )
    return Page(items=matching_items[query.offset : query.offset + query.limit], total_count=len(matching_items))
