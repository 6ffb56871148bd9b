"""Nonsense among measurements is left out with a reason."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from ai.backend.plugin.accelerator import Measurement
from ai.backend.plugin.accelerator.responses import MAX_MEASUREMENTS, MAX_METRIC_KEYS, MeasurementFilter


def _m(**kw: Any) -> Measurement:
    return Measurement(**{"key": "x_util", "value": 1.0, "unit_hint": "percent", **kw})


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"value": float("nan")}, "x_util is nan, not a finite number from 0 on"),
        ({"value": float("inf")}, "x_util is inf, not a finite number from 0 on"),
        ({"value": -1.0}, "x_util is -1.0, not a finite number from 0 on"),
        ({"value": True}, "x_util is True, not a finite number from 0 on"),
        ({"value": "1"}, "x_util is '1', not a finite number from 0 on"),
        ({"value": Decimal(1)}, "x_util is Decimal('1'), not a finite number from 0 on"),
        ({"value": 10**400}, "x_util is 1000"),
        ({"capacity": float("nan")}, "the capacity of x_util is nan, not a finite number from 0 on"),
        ({"unit_hint": "furlongs"}, "x_util has the unknown unit 'furlongs'"),
        ({"unit_hint": None}, "'x_util' has a malformed unit or malformed stats"),
        ({"stats": ["max"]}, "'x_util' has a malformed unit or malformed stats"),
        ({"stats": frozenset({"median"})}, "x_util wants unknown stats: 'median'"),
        ({"kind": "sometimes"}, "x_util is of the unknown kind 'sometimes'"),
        ({"key": "has blanks"}, "'has blanks' is no name for a metric"),
        ({"key": ["x"]}, "['x'] is no name for a metric"),
        ({"key": "k" * 65}, "is no name for a metric"),
        ({"device_id": "gone"}, "x_util is of the unknown device 'gone'"),
    ],
)
def test_what_is_no_measurement_is_left_out(bad: dict[str, Any], reason: str) -> None:
    sieve = MeasurementFilter()
    good = _m(key="good")
    assert sieve.filter_measurements([_m(**bad), good], {"0"}) == [good]
    assert sieve.reason is not None
    assert reason in sieve.reason


def test_what_is_not_even_a_measurement_is_left_out() -> None:
    sieve = MeasurementFilter()
    assert sieve.filter_measurements([{"key": "x"}]) == []  # type: ignore[list-item]  # nonsense on purpose
    assert sieve.reason == "dict is no measurement"


def test_the_names_of_a_source_are_bounded_over_its_life() -> None:
    sieve = MeasurementFilter()
    for number in range(MAX_METRIC_KEYS):
        assert len(sieve.filter_measurements([_m(key=f"k{number}")])) == 1
    assert sieve.filter_measurements([_m(key="one-more"), _m(key="k0")]) == [_m(key="k0")]
    assert sieve.reason == f"more than {MAX_METRIC_KEYS} different metrics; one-more and later ones are left out"
    sieve.begin()
    assert sieve.filter_measurements([_m(key="k1")]) == [_m(key="k1")]
    assert sieve.reason is None


def test_an_answer_is_bounded() -> None:
    sieve = MeasurementFilter()
    assert len(sieve.filter_measurements(_m() for _ in range(MAX_MEASUREMENTS + 5))) == MAX_MEASUREMENTS
    assert sieve.reason == f"more than {MAX_MEASUREMENTS} measurements in one answer"
