from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from ai.backend.appproxy.worker.link.usage import UsageReports
from ai.backend.appproxy.worker.planes.plane import CircuitObservation
from ai.backend.common.wire.appproxy import InferenceUsage
from ai.backend.core.proxy.routing import RouteKey

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
        report = reports.next_report(observation(total), 1.0)
        if report is not None and is_counted:
            counted.setdefault(report.sequence, report.circuits[0].requests)
            reports.confirm_report(report.sequence)
    assert sum(counted.values()) == total
    assert sorted(counted) == list(range(1, len(counted) + 1))


def test_nothing_is_reported_of_what_is_not_used() -> None:
    reports = UsageReports()
    assert reports.next_report(observation(0), 1.0) is None
    assert reports.next_report(observation(0, is_open=1), 1.0) is not None


def test_a_circuit_that_was_made_again_counts_from_zero() -> None:
    reports = UsageReports()
    for requests in (7, 2):
        report = reports.next_report(observation(requests), 1.0)
        assert report is not None
        assert report.circuits[0].requests == requests
        reports.confirm_report(report.sequence)


def endpoint_at(*, queued: int = 0, is_open: int = 0, waits: int = 0) -> CircuitObservation:
    in_flight = {RouteKey(f"{UUID(int=9)} 10.0.0.1 80 "): is_open} if is_open else {}
    return CircuitObservation(
        requests=0, last_used=1.0, open=is_open, received=0, sent=0, in_flight=in_flight, queued=queued, waits=waits
    )


def test_what_waited_or_was_open_is_reported_once_more_when_it_is_over() -> None:
    reports, circuit = UsageReports(), UUID(int=1)

    def report(now: CircuitObservation) -> list[tuple[int, dict[UUID, int]]] | None:
        usage = reports.next_report({circuit: now}, 1.0)
        if usage is None:
            return None
        reports.confirm_report(usage.sequence)
        return [(each.queued, each.in_flight) for each in usage.circuits]

    assert report(endpoint_at(queued=3)) == [(3, {})]
    assert report(endpoint_at(is_open=2)) == [(0, {UUID(int=9): 2})]
    assert report(endpoint_at()) == [(0, {})]
    assert report(endpoint_at()) is None
    assert reports.has_new_waits({circuit: endpoint_at(waits=2)})
    again = reports.next_report({circuit: endpoint_at(waits=2)}, 1.0)
    assert again is not None
    assert [each.waits for each in again.circuits] == [2], "also if nobody waits any more"
    assert not reports.has_new_waits({circuit: endpoint_at(waits=2)})


def test_the_use_of_endpoints_is_taken_once_for_a_report_that_is_repeated() -> None:
    reports, taken = UsageReports(), 0

    def take() -> list[InferenceUsage]:
        nonlocal taken
        taken += 1
        return [InferenceUsage(minute=taken, circuit=UUID(int=1))]

    first = reports.next_report({}, 1.0, take)
    assert first is not None
    assert reports.next_report({}, 2.0, take) is first
    reports.confirm_report(first.sequence)
    second = reports.next_report({}, 3.0, take)
    assert second is not None
    assert [row.minute for row in (*first.inference, *second.inference)] == [1, 2]
