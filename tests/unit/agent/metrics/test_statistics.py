"""Raw values made into metrics."""

from __future__ import annotations

from ai.backend.agent.metrics.series import Series, SeriesOfWorkload
from ai.backend.plugin.accelerator import Measurement, MetricKind

ALL = frozenset({"min", "max", "sum", "avg", "diff", "rate"})


def _m(value: float, **kw: object) -> Measurement:
    return Measurement(key="x", value=value, unit_hint="bytes", **kw)  # type: ignore[arg-type]  # fields of a Measurement


def test_all_numbers_are_text() -> None:
    series = Series()
    series.add(_m(10, capacity=40.0, stats=ALL), 100.0)
    metric = series.add(_m(30, capacity=40.0, stats=ALL), 102.0)
    assert metric == {
        "current": "30",
        "capacity": "40",
        "pct": "75.00",
        "unit_hint": "bytes",
        "stats.min": "10",
        "stats.max": "30",
        "stats.sum": "40",
        "stats.avg": "20",
        "stats.diff": "20",
        "stats.rate": "10",
    }


def test_without_a_capacity_there_is_no_percentage() -> None:
    metric = Series().add(Measurement(key="x", value=1.5, unit_hint="watt"), 0.0)
    assert metric == {"current": "1.5", "capacity": None, "pct": "0.00", "unit_hint": "watt"}


def test_bytes_are_whole() -> None:
    assert Series().add(_m(1.7), 0.0)["current"] == "2"


def test_what_accumulates_has_a_rate() -> None:
    series = Series()
    series.add(_m(100, kind=MetricKind.ACCUMULATED), 0.0)
    assert series.add(_m(400, kind=MetricKind.ACCUMULATED), 2.0)["stats.rate"] == "150"


def test_a_clock_that_stands_still_gives_no_rate() -> None:
    series = Series()
    series.add(_m(1, stats=ALL), 5.0)
    assert series.add(_m(2, stats=ALL), 5.0)["stats.rate"] == "0"


def test_series_of_workloads_with_different_keys_do_not_mix() -> None:
    places: dict[str, int] = {}
    one, other = SeriesOfWorkload(places), SeriesOfWorkload(places)
    assert "mem" not in one
    one["mem"].add(_m(5), 1.0)
    other["cpu_used"].add(_m(7), 1.0)
    one["cpu_used"].add(_m(1), 2.0)
    assert [("mem" in s, "cpu_used" in s) for s in (one, other)] == [(True, True), (False, True)]
    other["cpu_used"].add(_m(10), 2.0)
    assert (other["cpu_used"].diff, other["cpu_used"].rate, other["cpu_used"].last_at) == (3.0, 3.0, 2.0)
    assert (one["cpu_used"].diff, one["mem"].diff) == (0.0, 0.0)
