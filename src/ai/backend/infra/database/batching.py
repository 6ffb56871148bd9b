"""Statements over many values, in parts that every database takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeVar

CHUNK = 500
"""The number of values that one statement takes."""

T = TypeVar("T")


def chunks(items: Collection[T]) -> Iterator[list[T]]:
    """Split the items into lists of at most ``CHUNK``."""
    values = list(items)
    return (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))
