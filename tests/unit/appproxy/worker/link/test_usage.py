from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from ai.backend.appproxy.worker.link.usage import UsageReports
from ai.backend.appproxy.worker.planes.plane import CircuitObservation

CIRCUIT = UUID(int=1)


def observation(requests: int, *, is_open: int = 0) -> dict[UUID, CircuitObservation]:
    seen = CircuitObservation(requests=requests, last_used=5.0, open=is_open, received=0, sent=0, in_flight={})
    return {CIRCUIT: seen}


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40))
def test_every_request_is_reported_once_whatever_is_lost(steps: list[tuple[int, bool]]) -> None:
    """A report that was not counted comes again unchanged; the coordinator counts each number once."""
    reports, total, counted = UsageReports(), 0, dict[int, int]()
    for more, is_counted in [*steps, (0, True), (0, True)]:
        total += more
        report = reports.next(observation(total), 1.0)
        if report is not None and is_counted:
            counted.setdefault(report.sequence, report.circuits[0].requests)
            reports.counted(report.sequence)
    assert sum(counted.values()) == total
    assert sorted(counted) == list(range(1, len(counted) + 1))


def test_nothing_is_reported_of_what_is_not_used() -> None:
    reports = UsageReports()
    assert reports.next(observation(0), 1.0) is None
    assert reports.next(observation(0, is_open=1), 1.0) is not None


def test_a_circuit_that_was_made_again_counts_from_zero() -> None:
    reports = UsageReports()
    for requests in (7, 2):
        report = reports.next(observation(requests), 1.0)
        assert report is not None
        assert report.circuits[0].requests == requests
        reports.counted(report.sequence)
