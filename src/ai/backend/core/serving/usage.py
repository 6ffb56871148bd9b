"""Counts what requests to endpoints cost, by minute, token, revision and replica (serving anchors 9)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import msgspec

from ai.backend.common.wire.appproxy import FIRST_BYTE_BOUNDS_S, InferenceUsage

MAX_ROWS = 20_000
"""The largest number of rows in one report. Further rows go into the next report."""


class UsageKey(NamedTuple):
    """Names the minute, API token, endpoint and replica to which usage belongs.

    ``minute`` is unix time divided by 60.
    """

    minute: int
    token: str
    user: UUID | None
    circuit: UUID
    endpoint: UUID | None
    project: UUID | None
    revision: UUID | None
    session: UUID | None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the token counts of one response. ``is_estimated``: its engine named none, or impossible ones."""

    prompt: int = 0
    cached: int = 0
    output: int = 0
    is_estimated: bool = False


@dataclass(slots=True)
class _Row:
    requests: int = 0
    errors: int = 0
    prompt: int = 0
    cached: int = 0
    output: int = 0
    estimated: int = 0
    busy_s: float = 0.0
    first_bytes: list[int] = field(default_factory=lambda: [0] * (len(FIRST_BYTE_BOUNDS_S) + 1))


class UsageTracker:
    """Holds usage rows that are not reported yet.

    Their number is bounded by the tokens and replicas that are in use.
    """

    def __init__(self) -> None:
        self._rows: dict[UsageKey, _Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def count(
        self, key: UsageKey, cost: Cost, *, is_error: bool, busy_s: float, first_byte_s: float | None = None
    ) -> None:
        """Counts one request that has ended."""
        row = self._rows.setdefault(key, _Row())
        row.requests += 1
        row.errors += is_error
        row.prompt += cost.prompt
        row.cached += cost.cached
        row.output += cost.output
        row.estimated += cost.is_estimated
        row.busy_s += max(0.0, busy_s)
        if first_byte_s is not None:
            row.first_bytes[bisect_left(FIRST_BYTE_BOUNDS_S, first_byte_s)] += 1

    def take(self) -> list[InferenceUsage]:
        """Returns the rows for one report and removes them."""
        keys = list(self._rows)[:MAX_ROWS]
        return [_report_of(key, self._rows.pop(key)) for key in keys]


def _report_of(key: UsageKey, row: _Row) -> InferenceUsage:
    return InferenceUsage(
        **key._asdict(),
        requests=row.requests,
        errors=row.errors,
        prompt_tokens=row.prompt,
        cached_tokens=row.cached,
        output_tokens=row.output,
        estimated=row.estimated,
        busy_ms=int(row.busy_s * 1000),
        first_bytes=row.first_bytes if any(row.first_bytes) else [],
    )


def quantile_s(first_bytes: Sequence[int], quantile: float) -> float | None:
    """Returns the upper bound in seconds of the bucket that contains the given quantile.

    Returns None if there are no times. Times above the last bound count as twice that.
    """
    total_count = sum(first_bytes)
    if not total_count:
        return None
    remaining_count = quantile * total_count
    for bucket_count, bound_s in zip(first_bytes, (*FIRST_BYTE_BOUNDS_S, 2 * FIRST_BYTE_BOUNDS_S[-1]), strict=False):
        remaining_count -= bucket_count
        if remaining_count <= 0:
            return bound_s
    return 2 * FIRST_BYTE_BOUNDS_S[-1]
