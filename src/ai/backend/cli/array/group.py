"""The group of `backend.ai array`, and how arrays are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ai.backend.cli.framework.lazy import LazyGroup
from ai.backend.cli.framework.output import columns

array = LazyGroup("array", help="Arrays of batch sessions: list, watch, cancel and repeat many jobs as one.")
ARRAY_COLUMNS = columns(
    "name | id/short: ID | image | status | elements | counts | maxParallel/wide: At a time | createdAt/time: Created"
)


def array_row(item: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an array as a row of a table."""
    return {**item, "elements": item["size"], "counts": describe_counts(item["counts"])}


def describe_counts(counts: Mapping[str, int]) -> str:
    """Returns ``RUNNING 2, SUCCESS 14``."""
    return ", ".join(f"{status} {number}" for status, number in counts.items())
