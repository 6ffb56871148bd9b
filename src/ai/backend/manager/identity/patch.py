"""Helpers for partial changes of objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ai.backend.common.errors import NotFound

T = TypeVar("T")


def named(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that a partial change sets, without those that are None."""
    return {name: value for name, value in values.items() if value is not None}


def existing(value: T | None, what: str) -> T:
    """Returns the value. Raises NotFound for None."""
    if value is None:
        raise NotFound(f"There is no such {what}.")
    return value
