"""Prices of parts of devices, against what can be packed."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ai.backend.core.scheduling.index.part_values import PartValueCache, demand_of, part_values, price_sizes


def most_filled(sizes: tuple[int, ...], devices: int, room: int) -> int:
    """Returns the most cells that these parts fill of devices, by trying everything."""

    @cache
    def fill(place: int, free: tuple[int, ...]) -> int:
        if place == len(sizes):
            return 0
        best = fill(place + 1, free)
        for index in {free.index(space) for space in free if space >= sizes[place]}:
            left = tuple(sorted((*free[:index], free[index] - sizes[place], *free[index + 1 :])))
            best = max(best, sizes[place] + fill(place + 1, left))
        return best

    return fill(0, (room,) * devices)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 10), min_size=1, max_size=8), st.integers(1, 3))
def test_no_packing_beats_the_dual_value(parts: list[int], devices: int) -> None:
    sizes = sorted(set(parts))
    value, prices = price_sizes(sizes, [parts.count(size) / devices for size in sizes], 10, 200)
    assert most_filled(tuple(sorted(parts, reverse=True)), devices, 10) <= value * devices + 1e-6
    assert all(price >= 0 for price in prices)


def test_the_value_is_tight_where_parts_match() -> None:
    value, _ = price_sizes([3, 7], [1.0, 1.0], 10, 400)
    assert value == pytest.approx(10, abs=0.05)
    value, _ = price_sizes([7], [2.0], 10, 400)
    assert value == pytest.approx(7, abs=0.05), "of parts of 0.7 alone a device holds one"


def test_a_part_costs_more_where_it_leaves_nothing_useful() -> None:
    values = part_values(1, 10, ((3, 512), (7, 512)))
    assert values.lost_worth(10, 5) == pytest.approx(0.7), "of the half that is left 0.2 serve nobody"
    assert values.lost_worth(3, 3) < values.lost_worth(7, 3), "a rest of 0.7 is for those who ask for 0.7"
    assert values.worth[0] == 0
    assert list(values.worth) == sorted(values.worth)


def test_larger_requests_count_as_their_equal_shares() -> None:
    assert demand_of({150: 1.0, 20: 0.5}, 100) == (5, ((4, 256), (15, 1024)))


def test_fine_quanta_are_rounded_up_to_cells() -> None:
    unit, demand = demand_of({333_333: 1.0}, 1_000_000)
    assert 1_000_000 // unit <= 128
    assert demand[0][0] * unit >= 333_333


def test_a_mix_that_hardly_changes_is_priced_once() -> None:
    values = PartValueCache()
    first = values.get({30: 0.5, 70: 0.5}, 100)
    assert values.get({30: 0.5001, 70: 0.4999}, 100) is first
    assert values.get({30: 0.6, 70: 0.4}, 100) is not first
