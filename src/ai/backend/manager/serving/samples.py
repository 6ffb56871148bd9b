"""Sums up the recent answers of revisions of endpoints, for the guards of roll-outs (serving anchors 8)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from ai.backend.common.wire.appproxy import FIRST_BYTE_BOUNDS_S, InferenceUsage
from ai.backend.core.serving.model import RevisionSample
from ai.backend.core.serving.usage import quantile_s

WINDOW_S = 300.0
"""The longest time in seconds over which guards evaluate answers."""
_TTFT_PART = 0.9


def _do_nothing() -> None: ...


@dataclass(slots=True)
class _Sums:
    """Sums up the reports about one revision that arrived at one moment."""

    requests: int = 0
    errors: int = 0
    output_tokens: int = 0
    busy_ms: int = 0
    first_bytes: list[int] = field(default_factory=lambda: [0] * (len(FIRST_BYTE_BOUNDS_S) + 1))

    def add(self, usage: InferenceUsage) -> None:
        self.requests += usage.requests
        self.errors += usage.errors
        self.output_tokens += usage.output_tokens
        self.busy_ms += usage.busy_ms
        for bucket, number in enumerate(usage.first_bytes):
            self.first_bytes[bucket] += number


@dataclass(eq=False, repr=False)
class RevisionSamples:
    """Keeps the reports of the last minutes by revision and arrival time, so that all revisions have the same window.
    They are in memory: after a restart of the manager a guard judges what comes from then on.

    ``ask`` is called when a guard needs newer reports.
    """

    ask: Callable[[], None] = _do_nothing
    _sums: dict[UUID, deque[tuple[float, _Sums]]] = field(default_factory=dict, init=False)

    def record(self, reports: Iterable[InferenceUsage], now: float) -> None:
        """Adds reports that arrived at ``now`` (unix time), except late ones, and drops reports before the window."""
        sums: dict[UUID, _Sums] = defaultdict(_Sums)
        for usage in reports:
            if usage.revision is not None and usage.minute >= (now - WINDOW_S) // 60:
                sums[usage.revision].add(usage)
        for revision, revision_sums in sums.items():
            self._sums.setdefault(revision, deque()).append((now, revision_sums))
        for revision, sums_by_time in list(self._sums.items()):
            while sums_by_time and sums_by_time[0][0] < now - WINDOW_S:
                sums_by_time.popleft()
            if not sums_by_time:
                del self._sums[revision]

    def sum_since(self, revision_ids: Collection[UUID], since: float, now: float) -> dict[UUID, RevisionSample]:
        """Returns the sums of the answers of these revisions since a moment, at most since the start of the window."""
        window_start = max(since, now - WINDOW_S)
        return {
            revision: _sample_of(
                [sums for arrived_at, sums in self._sums.get(revision, ()) if arrived_at > window_start]
            )
            for revision in revision_ids
        }


def _sample_of(sums_in_window: Iterable[_Sums]) -> RevisionSample:
    total = _Sums()
    for sums in sums_in_window:
        total.requests += sums.requests
        total.errors += sums.errors
        total.output_tokens += sums.output_tokens
        total.busy_ms += sums.busy_ms
        total.first_bytes = [
            total_count + added_count
            for total_count, added_count in zip(total.first_bytes, sums.first_bytes, strict=True)
        ]
    return RevisionSample(
        requests=total.requests,
        errors=total.errors,
        ttft_p90_s=quantile_s(total.first_bytes, _TTFT_PART),
        tokens_per_s=total.output_tokens * 1000 / total.busy_ms if total.output_tokens and total.busy_ms else None,
    )
