from __future__ import annotations

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from ai.backend.common.wire.appproxy import ProxyProtocol, RouteInfo
from ai.backend.core.proxy.breaker import FIRST_BACKOFF_S, MAX_BACKOFF_S, Breaker
from ai.backend.core.proxy.routing import RouteChooser, SmoothWeights, key_of

weights = st.dictionaries(st.integers(0, 9).map(float), st.integers(1, 7).map(float), min_size=1, max_size=6)
ratios = st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0]), min_size=1, max_size=8)


def route(number: int, ratio: float = 1.0) -> RouteInfo:
    return RouteInfo(
        session_id=UUID(int=number),
        kernel_host="192.0.2.1",
        kernel_port=8000 + number,
        protocol=ProxyProtocol.HTTP,
        traffic_ratio=ratio,
    )


def routes_of(ratios: list[float]) -> list[RouteInfo]:
    return [route(number, ratio) for number, ratio in enumerate(ratios)]


@given(weights, st.integers(0, 40))
def test_every_window_of_the_sum_of_weights_is_exact(weights: dict[float, float], start: int) -> None:
    smooth: SmoothWeights[float] = SmoothWeights()
    total = int(sum(weights.values()))
    choices = [smooth.choose(weights) for _ in range(start + total)]
    assert Counter(choices[start:]) == Counter({key: int(weight) for key, weight in weights.items()})


@given(ratios)
def test_groups_of_routes_get_exactly_their_weight(ratios: list[float]) -> None:
    chooser, total = RouteChooser(routes_of(ratios)), int(sum(ratios))
    choices = [chooser.choose({}) for _ in range(2 * total)]
    assert None not in choices
    by_ratio = Counter(choice.route.traffic_ratio for choice in choices if choice)
    assert by_ratio == {ratio: 2 * int(ratio) * ratios.count(ratio) for ratio in set(ratios) if ratio}
    assert (chooser.choose({}) is None) == (total == 0)


@given(ratios, st.lists(st.integers(0, 9), min_size=8, max_size=8))
def test_inside_a_group_the_least_outstanding_is_chosen(ratios: list[float], loads: list[int]) -> None:
    routes = routes_of(ratios)
    in_flight = {key_of(each): load for each, load in zip(routes, loads, strict=False)}
    chosen = RouteChooser(routes).choose(in_flight)
    if chosen is not None:
        group = [each for each in routes if each.traffic_ratio == chosen.route.traffic_ratio]
        assert in_flight[chosen.key] == min(in_flight[key_of(each)] for each in group)


@given(ratios, st.sets(st.integers(0, 7)))
def test_excluded_routes_are_not_chosen(ratios: list[float], numbers: set[int]) -> None:
    routes = routes_of(ratios)
    excluded = frozenset(key_of(each) for number, each in enumerate(routes) if number in numbers)
    chooser = RouteChooser(routes)
    for _ in range(20):
        chosen = chooser.choose({}, excluded)
        expected = any(each.traffic_ratio and key_of(each) not in excluded for each in routes)
        assert (chosen is not None) == expected
        assert chosen is None or chosen.key not in excluded


def test_idle_routes_of_a_group_take_turns() -> None:
    chooser = RouteChooser([route(1), route(2), route(3)])
    ports = [chosen.route.kernel_port for _ in range(6) if (chosen := chooser.choose({}))]
    assert ports == [8001, 8002, 8003] * 2


def test_a_changed_ratio_leaves_it_the_same_route() -> None:
    assert key_of(route(1, 1.0)) == key_of(route(1, 3.0))


failures = st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1000)), max_size=60)


@given(failures, st.integers(1, 6), st.floats(0, 2000))
def test_never_more_than_half_of_the_routes_are_ejected(
    failures: list[tuple[int, float]], count: int, now: float
) -> None:
    breaker = Breaker()
    for number, at in sorted(failures, key=lambda failure: failure[1]):
        breaker.record_failure(key_of(route(number)), at)
    assert len(breaker.ejected_keys(count, now)) <= count // 2
    assert not breaker.ejected_keys(count, 1000 + MAX_BACKOFF_S + 1)


def test_an_ejected_route_returns_and_is_ejected_for_longer() -> None:
    breaker, key = Breaker(), key_of(route(1))
    for _ in range(3):
        breaker.record_failure(key, 0.0)
    assert breaker.ejected_keys(2, FIRST_BACKOFF_S / 2) == {key}
    assert not breaker.ejected_keys(2, FIRST_BACKOFF_S)
    breaker.record_failure(key, FIRST_BACKOFF_S)
    assert breaker.ejected_keys(2, 2.5 * FIRST_BACKOFF_S) == {key}
    breaker.record_success(key)
    assert not breaker.ejected_keys(2, 2.5 * FIRST_BACKOFF_S)
