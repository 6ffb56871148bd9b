"""What guards judge: the answers of revisions in one window, by when reports of them came."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ai.backend.common.wire.appproxy import FIRST_BYTE_BOUNDS_S, InferenceUsage
from ai.backend.core.serving.model import RevisionSample
from ai.backend.manager.serving.samples import WINDOW_S, RevisionSamples

OLD, NEW, NOW = UUID(int=11), UUID(int=12), 1_000_000.0


def report(revision: UUID | None, *, at: float = NOW, **values: Any) -> InferenceUsage:
    return InferenceUsage(minute=int(at) // 60, circuit=UUID(int=1), revision=revision, **values)


def test_reports_of_tokens_and_replicas_are_summed_up_by_revision() -> None:
    samples = RevisionSamples()
    quick, slow = [0] * 17, [0] * 17
    quick[0], slow[11] = 9, 1
    samples.record([report(NEW, requests=9, output_tokens=60, busy_ms=2_000, first_bytes=quick)], NOW)
    samples.record([report(NEW, requests=1, errors=1, output_tokens=40, busy_ms=2_000, first_bytes=slow)], NOW + 1)
    samples.record([report(None, requests=5)], NOW + 1)
    seen = samples.sum_since([OLD, NEW], NOW - 1, NOW + 2)
    assert seen[OLD] == RevisionSample()
    assert seen[NEW] == RevisionSample(requests=10, errors=1, ttft_p90_s=FIRST_BYTE_BOUNDS_S[0], tokens_per_s=25.0)


def test_the_window_begins_with_the_roll_out_and_is_of_some_minutes() -> None:
    samples = RevisionSamples()
    for second in (0, 10, 20):
        samples.record([report(NEW, requests=1)], NOW + second)
    assert samples.sum_since([NEW], NOW + 5, NOW + 30)[NEW].requests == 2
    assert samples.sum_since([NEW], NOW - 5, NOW + WINDOW_S + 15)[NEW].requests == 1
    samples.record([report(NEW, at=NOW + 2 * WINDOW_S, requests=7)], NOW + 2 * WINDOW_S)
    assert samples.sum_since([NEW], 0.0, NOW + 2 * WINDOW_S)[NEW].requests == 7


def test_reports_that_a_manager_missed_are_not_of_this_window() -> None:
    samples = RevisionSamples()
    samples.record([report(NEW, at=NOW - 3_600, requests=100, errors=100)], NOW)
    assert samples.sum_since([NEW], 0.0, NOW)[NEW] == RevisionSample()
