"""Splits statements over many values into parts that every database accepts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeVar

CHUNK = 500
"""The number of values in one statement."""

T = TypeVar("T")


def chunks(items: Collection[T]) -> Iterator[list[T]]:
    """Splits the items into lists of at most ``CHUNK``."""
    values = list(items)
    return (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))
