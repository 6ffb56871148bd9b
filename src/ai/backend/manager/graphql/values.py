"""Converts values for GraphQL replies.

The rules are the published client's (wire contract 3.3): a ``JSONString`` that may not be null is ``"{}"`` when empty,
a list is never null, ``shmem`` is plain bytes, and what only superadmins may see is null for others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from ai.backend.common.slots import ResourceSlot

View = dict[str, Any]


def attributes_of(value: Struct) -> View:
    """Returns the fields of a struct as a dictionary, for GraphQL types whose fields have the same names."""
    return asdict(value)


def slots_json(slots: ResourceSlot) -> str:
    """Returns slots as JSON text."""
    return json.dumps(slots.to_json())


def json_or_null(value: Any) -> str | None:
    """Returns a value as JSON text, or None if it is empty."""
    return json.dumps(value, default=str) if value else None


def current_value(node: Mapping[str, Any], name: str) -> float:
    """Returns the current value of a metric, or 0.0 if it is missing or malformed."""
    metric = node.get(name)
    try:
        return float(metric["current"]) if metric else 0.0
    except (KeyError, TypeError, ValueError):
        return 0.0
