"""Filters, orders and pages of lists, as data that every store understands.

The API parses the filter mini-language of the client wire contract 3.1 into these; a store maps field names to columns
and raises InvalidInput for a field that it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

T = TypeVar("T")

Scalar: TypeAlias = str | int | float | bool | None
Operator: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">=", "is", "isnot", "like", "ilike", "in", "contains"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """``field op value``; ``%`` is the wildcard of like and ilike; ``in`` takes a tuple."""

    field: str
    op: Operator
    value: Scalar | tuple[Scalar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Junction:
    """All (``&``) or any (``|``) of its terms."""

    kind: Literal["&", "|"]
    terms: tuple[Filter, ...]


Filter: TypeAlias = Condition | Junction


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderBy:
    field: str
    descending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """One page of anything. The default order is by creation, newest first, with the id as tie-break."""

    limit: int = 20
    offset: int = 0
    filter: Filter | None = None
    order: tuple[OrderBy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """``total_count`` counts what the same query would deliver over all pages."""

    items: Sequence[T]
    total_count: int
