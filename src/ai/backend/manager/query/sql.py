"""Compiles filters and orders of list queries to SQL."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

from sqlalchemy import Boolean, Column, ColumnElement, Float, Integer, Table, TypeDecorator, and_, cast, or_
from sqlalchemy import String as SqlString

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.database import GUID, UTCDateTime
from ai.backend.infra.database.columns import EnumText
from ai.backend.manager.query.memory import COMPARISON_FUNCTIONS, parse_time
from ai.backend.manager.query.model import Condition, Filter, OrderBy, Scalar

NO_COLUMNS: Mapping[str, Column[Any]] = MappingProxyType({})
_NUMBER_LIMIT = 2.0**63
_EQUALITY_OPERATORS = frozenset({"==", "is", "!=", "isnot"})


def _column(table: Table, name: str, hidden: frozenset[str], joined: Mapping[str, Column[Any]]) -> Column[Any]:
    column = joined.get(name, table.c.get(name))
    if column is None or name in hidden:
        raise InvalidInput(f"there is no field {name[:64]!r} to filter or order by", data={"filter": "unknown field"})
    return column


def _typed_value(column: Column[Any], value: Scalar) -> Any:
    try:
        if value is None:
            return None
        if isinstance(column.type, UTCDateTime):
            return parse_time(str(value))
        if isinstance(column.type, GUID):
            return UUID(str(value))
        if isinstance(column.type, EnumText):
            return _enum_member(column.type.kind, str(value))
        if isinstance(column.type, Boolean):
            return _parse_boolean(value)
        if isinstance(column.type, Integer | Float):
            return _parse_number(value)
        return str(value)
    except ValueError:
        raise InvalidInput(f"{column.name}: {value!r} is no such value", data={"filter": column.name}) from None


def _parse_boolean(value: Scalar) -> bool:
    if not isinstance(value, int) or value not in (0, 1):
        raise ValueError(value)
    return bool(value)


def _parse_number(value: Scalar) -> int | float:
    if isinstance(value, bool):
        raise ValueError(value)
    number = value if isinstance(value, int | float) else float(str(value))
    if not abs(number) < _NUMBER_LIMIT:
        raise ValueError(value)
    return number


def _is_structured(column: Column[Any]) -> bool:
    """Returns True if a column stores JSON as text; filters compare such columns as text only."""
    return isinstance(column.type, TypeDecorator) and not isinstance(column.type, UTCDateTime | GUID | EnumText)


def _enum_member(enum_type: type[StrEnum], text: str) -> StrEnum:
    """Returns an enum member by its value or by its name (``READ_ONLY``, as in the published client's help), in any
    case.
    """
    members = {member.name.lower(): member for member in enum_type} | {
        member.value.lower(): member for member in enum_type
    }
    return members[text.lower()] if text.lower() in members else enum_type(text)


def _compile_condition(
    table: Table, condition: Condition, hidden: frozenset[str], joined: Mapping[str, Column[Any]]
) -> ColumnElement[bool]:
    column = _column(table, condition.field, hidden, joined)
    operator, value = condition.op, condition.value
    if _is_structured(column) and operator not in ("like", "ilike", "contains", "is", "isnot"):
        raise InvalidInput(f"{condition.field}: {operator} does not apply; use like", data={"filter": condition.field})
    if operator == "in":
        values = value if isinstance(value, tuple) else (value,)
        return column.in_([_typed_value(column, listed_value) for listed_value in values])
    if isinstance(value, tuple):
        raise InvalidInput(f"{condition.field}: {operator} takes one value", data={"filter": condition.field})
    if operator in ("like", "ilike", "contains"):
        text_column = cast(column, SqlString)
        if operator == "contains":
            return text_column.contains(str(value), autoescape=True)
        # PostgreSQL takes a backslash as an escape, and refuses one at the end; SQLite has no escape.
        pattern = str(value).replace("\\", "\\\\")
        if operator == "like":
            return text_column.like(pattern, escape="\\")
        return text_column.ilike(pattern, escape="\\")
    operand = _typed_value(column, value)
    if operand is not None and _is_structured(column):
        raise InvalidInput(f"{condition.field}: {operator} takes only null here", data={"filter": condition.field})
    if operand is None:
        if operator not in _EQUALITY_OPERATORS:
            raise InvalidInput(f"{condition.field}: {operator} takes a value", data={"filter": condition.field})
        return column.is_(None) if operator in ("==", "is") else column.is_not(None)
    if isinstance(operand, bool) and operator not in _EQUALITY_OPERATORS:
        raise InvalidInput(f"{condition.field}: {operator} does not apply", data={"filter": condition.field})
    comparison: ColumnElement[bool] = COMPARISON_FUNCTIONS[operator](column, operand)
    return comparison


def compile_filter(
    table: Table,
    filter_: Filter | None,
    *,
    hidden: frozenset[str] = frozenset(),
    joined: Mapping[str, Column[Any]] = NO_COLUMNS,
) -> list[ColumnElement[bool]]:
    """Returns the clauses of a SQL WHERE for a filter of a list query.

    ``joined`` has fields that are columns of other tables of the query. Raises InvalidInput for an unknown or hidden
    field.
    """
    if filter_ is None:
        return []
    if isinstance(filter_, Condition):
        return [_compile_condition(table, filter_, hidden, joined)]
    terms = [and_(*compile_filter(table, term, hidden=hidden, joined=joined)) for term in filter_.terms]
    return [(and_ if filter_.kind == "&" else or_)(*terms)]


def compile_order(
    table: Table,
    order: tuple[OrderBy, ...],
    default: tuple[ColumnElement[Any], ...],
    *,
    hidden: frozenset[str] = frozenset(),
    joined: Mapping[str, Column[Any]] = NO_COLUMNS,
) -> list[ColumnElement[Any]]:
    """Returns the clauses of an ORDER BY for a list query. Raises InvalidInput for an unknown or hidden field."""
    columns = [(_column(table, order_by.field, hidden, joined), order_by.descending) for order_by in order]
    return [*((column.desc() if is_descending else column.asc()) for column, is_descending in columns), *default]
