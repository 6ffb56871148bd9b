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


def array_row(array_item: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an array as a row of a table."""
    return {**array_item, "elements": array_item["size"], "counts": describe_counts(array_item["counts"])}


def describe_counts(counts: Mapping[str, int]) -> str:
    """Formats the number of elements in each status, as ``RUNNING 2, SUCCESS 14``."""
    return ", ".join(f"{status} {count}" for status, count in counts.items())
