"""Scaling: bounds, monotony, stability on constant load, bursts, zero, missing data."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ai.backend.common.serving import ServingReason
from ai.backend.common.structs import replace
from ai.backend.core.serving.autoscale import (
    Comparator,
    MetricName,
    MetricSource,
    Sample,
    ScalingDecision,
    ScalingInput,
    ScalingPolicy,
    ScalingRule,
    TargetPolicy,
    decide_scale,
)

LOAD = (MetricSource.PROXY, MetricName.LOAD)
KERNEL_UTIL = (MetricSource.KERNEL, "cpu_util")
TARGET = TargetPolicy(target=4.0)


def series(load: float, now: float, replicas: int = 1, length_s: int = 120) -> list[Sample]:
    return [Sample(now - back, load, replicas) for back in range(length_s, -1, -2)]


def rule(**other: Any) -> ScalingRule:
    base = ScalingRule(
        id=UUID(int=7),
        source=MetricSource.KERNEL,
        metric="cpu_util",
        threshold=Decimal("70"),
        comparator=Comparator.GREATER_THAN,
        step_size=1,
        cooldown_s=300.0,
    )
    return replace(base, **other)


def decide(policy: ScalingPolicy, now: float = 1000.0, **given: Any) -> ScalingDecision:
    values = {"desired": 1, "ready": given.get("desired", 1), "last_request_at": now, **given}
    return decide_scale(policy, ScalingInput(now=now, **values))


loads = st.floats(0.0, 500.0, allow_nan=False)
policies = st.builds(
    lambda low, extra, target, has_rule: ScalingPolicy(
        min_replicas=low,
        max_replicas=low + extra,
        target=TargetPolicy(target=target),
        rules=(rule(),) if has_rule else (),
        down_delay_s=0.0,
    ),
    st.integers(0, 4),
    st.integers(0, 30),
    st.floats(0.5, 20.0),
    st.booleans(),
)


@given(policies, st.integers(0, 40), loads, loads, st.integers(0, 3))
def test_more_load_never_gives_fewer_replicas_and_bounds_hold(
    policy: ScalingPolicy, desired: int, one: float, more: float, queued: int
) -> None:
    low, high = sorted((one, more))
    numbers = []
    for load in (low, high):
        metrics = {LOAD: series(load, 1000.0), KERNEL_UTIL: series(load, 1000.0)}
        decision = decide(policy, desired=desired, ready=desired, metrics=metrics, queued=queued)
        assert policy.min_replicas <= decision.desired <= policy.max_replicas
        assert (decision.reason is None) == (decision.desired == desired)
        assert decision.explanation
        numbers.append(decision.desired)
    assert numbers[0] <= numbers[1]


@given(policies, st.integers(1, 40), loads)
@settings(max_examples=50, deadline=None)
def test_constant_load_settles_and_stays(policy: ScalingPolicy, desired: int, load: float) -> None:
    policy = replace(policy, rules=(), min_replicas=max(1, policy.min_replicas), down_delay_s=10.0)
    now, state, history = 1000.0, ScalingInput(now=0, desired=0, ready=0).state, []
    for _ in range(60):
        decision = decide(
            policy, now, desired=desired, ready=desired, metrics={LOAD: series(load, now)}, in_flight=1, state=state
        )
        desired, state, now = decision.desired, decision.state, now + 5.0
        history.append(desired)
    assert len(set(history[20:])) == 1
    assert policy.target is not None
    assert policy.min_replicas <= desired <= max(policy.min_replicas, policy.max_replicas)
    if policy.min_replicas < desired < policy.max_replicas:
        assert load / desired <= policy.target.target * (1 + policy.target.tolerance) + 1e-9


def test_a_burst_counts_at_once_and_nothing_is_removed_while_it_lasts() -> None:
    policy = ScalingPolicy(min_replicas=1, max_replicas=50, target=TARGET, down_delay_s=0.0)
    quiet = series(4.0, 994.0)
    burst = [Sample(996.0 + n, 40.0) for n in range(5)]
    first = decide(policy, desired=1, ready=1, metrics={LOAD: [*quiet, *burst]})
    assert first.desired == 9
    assert first.state.panic_until == 1060.0
    later = decide(policy, 1030.0, desired=9, ready=9, metrics={LOAD: series(4.0, 1030.0)}, state=first.state)
    assert later.desired == 9
    after = decide(policy, 1061.0, desired=9, ready=9, metrics={LOAD: series(4.0, 1061.0)}, state=later.state)
    assert after.desired == 4, "one decision halves at most"


def test_zero_only_after_a_whole_idle_time() -> None:
    policy = ScalingPolicy(min_replicas=0, max_replicas=3, target=TARGET, idle_s=300.0, down_delay_s=0.0)
    metrics = {LOAD: series(0.0, 1000.0)}
    assert decide(policy, metrics=metrics, last_request_at=700.1).desired == 1
    idle = decide(policy, metrics=metrics, last_request_at=700.0)
    assert (idle.desired, idle.reason) == (0, ServingReason.SCALED_TO_ZERO)
    assert decide(policy, metrics=metrics, last_request_at=700.0, since=800.0).desired == 1
    assert decide(policy, metrics=metrics, last_request_at=None, in_flight=1).desired == 1
    assert decide(policy, metrics=metrics, last_request_at=None, is_rolling_out=True).desired == 1
    assert decide(policy, metrics={}, last_request_at=None).desired == 0, "the idle time needs no metric"
    assert decide(replace(policy, min_replicas=1), metrics=metrics, last_request_at=None).desired == 1


@pytest.mark.parametrize(("queued", "expected"), [(0, 0), (1, 1), (500, 1)])
def test_what_waits_wakes_one_replica(queued: int, expected: int) -> None:
    decision = decide(ScalingPolicy(min_replicas=0, max_replicas=3), desired=0, ready=0, queued=queued)
    assert decision.desired == expected
    assert decision.reason is (ServingReason.REQUEST_ARRIVED if queued else None)


@pytest.mark.parametrize("samples", [[], series(100.0, 900.0), [Sample(1000.0, float("nan"))]])
def test_without_data_nothing_changes(samples: Sequence[Sample]) -> None:
    policy = ScalingPolicy(min_replicas=1, max_replicas=9, target=TARGET, down_delay_s=60.0)
    decision = decide(policy, desired=3, ready=3, metrics={LOAD: samples})
    assert decision.desired == 3


def test_nothing_is_removed_during_a_roll_out_or_after_a_recent_larger_advice() -> None:
    policy = ScalingPolicy(min_replicas=1, max_replicas=9, target=TARGET, down_delay_s=60.0)
    few = {LOAD: series(1.0, 1000.0)}
    assert decide(replace(policy, down_delay_s=0.0), desired=3, metrics=few, is_rolling_out=True).desired == 3
    first = decide(policy, desired=4, metrics={LOAD: series(16.0, 1000.0)})
    second = decide(policy, 1050.0, desired=4, metrics={LOAD: series(1.0, 1050.0)}, state=first.state)
    assert second.desired == 4
    third = decide(policy, 1061.0, desired=4, metrics={LOAD: series(1.0, 1061.0)}, state=second.state)
    assert third.desired == 2, "one decision halves at most"


def test_rules_add_their_step_once_in_their_cooldown() -> None:
    policy = ScalingPolicy(min_replicas=1, max_replicas=9, rules=(rule(),))
    busy = {KERNEL_UTIL: [Sample(999.0, 240.0, 3)]}
    decision = decide(policy, desired=3, metrics=busy)
    assert (decision.desired, decision.triggered) == (4, (UUID(int=7),))
    assert decision.explanation == "cpu_util 80 is greater-than 70: +1"
    assert decision.inputs["kernel:cpu_util"] == 240.0
    cooling = replace(policy, rules=(rule(last_triggered_at=701.0),))
    assert decide(cooling, desired=3, metrics=busy).desired == 3
    bounded = replace(policy, rules=(rule(max_replicas=3),))
    assert decide(bounded, desired=3, metrics=busy).desired == 3
    assert decide(bounded, desired=3, metrics=busy).triggered == ()


@pytest.mark.parametrize(
    ("comparator", "value", "is_triggered"),
    [
        (Comparator.LESS_THAN, 69.9, True),
        (Comparator.LESS_THAN, 70.0, False),
        (Comparator.LESS_THAN_OR_EQUAL, 70.0, True),
        (Comparator.GREATER_THAN, 70.0, False),
        (Comparator.GREATER_THAN, 70.1, True),
        (Comparator.GREATER_THAN_OR_EQUAL, 70.0, True),
    ],
)
def test_comparators(comparator: Comparator, value: float, is_triggered: bool) -> None:
    policy = ScalingPolicy(min_replicas=1, max_replicas=9, rules=(rule(comparator=comparator),))
    assert bool(decide(policy, metrics={KERNEL_UTIL: [Sample(999.0, value)]}).triggered) == is_triggered


def test_a_rule_removes_after_the_delay_and_never_below_its_minimum() -> None:
    down = rule(comparator=Comparator.LESS_THAN, step_size=-2, min_replicas=2)
    policy = ScalingPolicy(min_replicas=0, max_replicas=9, rules=(down,), down_delay_s=0.0)
    few = {KERNEL_UTIL: [Sample(999.0, 5.0)]}
    assert decide(policy, desired=5, metrics=few).desired == 3
    assert decide(policy, desired=3, metrics=few).desired == 2
    assert decide(policy, desired=2, metrics=few).desired == 2
