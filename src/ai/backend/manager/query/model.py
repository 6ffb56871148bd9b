"""Defines filters, orders and pages of lists, as the API parses them; stores raise InvalidInput for unknown fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

Scalar: TypeAlias = str | int | float | bool | None
Operator: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">=", "is", "isnot", "like", "ilike", "in", "contains"]


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """Compares a field with a value; ``%`` is the wildcard of like and ilike; ``in`` takes a tuple."""

    field: str
    op: Operator
    value: Scalar | tuple[Scalar, ...]


class Junction(msgspec.Struct, frozen=True, kw_only=True):
    """Combines several conditions: all of them must hold (``&``), or at least one (``|``)."""

    kind: Literal["&", "|"]
    terms: tuple[Filter, ...]


Filter: TypeAlias = Condition | Junction


class OrderBy(msgspec.Struct, frozen=True, kw_only=True):
    """Names a field by which a list is ordered."""

    field: str
    descending: bool = False


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Selects one page of a list. The default order is by creation, newest first, with the id as tie-break."""

    limit: int = 20
    offset: int = 0
    filter: Filter | None = None
    order: tuple[OrderBy, ...] = ()


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Holds one page of a list; ``total_count`` counts the items of all pages."""

    items: Sequence[T]
    total_count: int
