"""Decides how many replicas an endpoint should have, and states from which inputs (serving anchors 7).

Two ways, which may be used together: the rules of the published client, each of which adds its step size when its
metric passes its threshold, and a target load of one replica with a stable and a panic window, as Knative's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from uuid import UUID

import msgspec

from ai.backend.common.serving import ServingReason
from ai.backend.common.structs import replace


class MetricSource(StrEnum):
    """Lists the sources of metrics. The first two are those of the published client.

    ``proxy``: the counts of app proxy workers (``in_flight``, ``queued``, ``load``, which is their sum,
    ``requests_per_s``, ``tokens_per_s``); ``prometheus``: a query.
    """

    KERNEL = "kernel"
    INFERENCE_FRAMEWORK = "inference-framework"
    PROXY = "proxy"
    PROMETHEUS = "prometheus"


class Comparator(StrEnum):
    LESS_THAN = "less-than"
    LESS_THAN_OR_EQUAL = "less-than-or-equal"
    GREATER_THAN = "greater-than"
    GREATER_THAN_OR_EQUAL = "greater-than-or-equal"

    def holds(self, value: float, threshold: float) -> bool:
        """Returns True if ``value`` stands in this relation to ``threshold``."""
        match self:
            case Comparator.LESS_THAN:
                return value < threshold
            case Comparator.LESS_THAN_OR_EQUAL:
                return value <= threshold
            case Comparator.GREATER_THAN:
                return value > threshold
            case Comparator.GREATER_THAN_OR_EQUAL:
                return value >= threshold


class MetricName(StrEnum):
    """Names the metrics of :attr:`MetricSource.PROXY`."""

    IN_FLIGHT = "in_flight"
    QUEUED = "queued"
    LOAD = "load"
    REQUESTS_PER_S = "requests_per_s"
    TOKENS_PER_S = "tokens_per_s"


MetricKey = tuple[MetricSource, str]


class Sample(msgspec.Struct, frozen=True):
    """Holds a metric of the whole endpoint at one moment, summed over ``replicas`` replicas."""

    at: float
    total: float
    replicas: int = 1

    @property
    def mean(self) -> float:
        return self.total / max(1, self.replicas)


class ScalingRule(msgspec.Struct, frozen=True, kw_only=True):
    """Adds or removes replicas of an endpoint while a metric is above or below a threshold.

    A rule of the published client. While the mean of ``metric`` over replicas stands in the relation ``comparator`` to
    the threshold, ``step_size`` replicas are added (removed, if it is negative), at most once in ``cooldown_s``.
    """

    id: UUID
    source: MetricSource
    metric: str
    threshold: Decimal
    comparator: Comparator
    step_size: int
    cooldown_s: float
    min_replicas: int | None = None
    max_replicas: int | None = None
    last_triggered_at: float | None = None

    @property
    def key(self) -> MetricKey:
        return self.source, self.metric


class TargetPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Defines the load that each replica should have. ``target`` is in the unit of the metric.

    Attributes:
        stable_s, panic_s: windows over which the load is averaged.
        panic_ratio: load of the panic window, as a part of what ready replicas take, at which it begins to count.
        max_up, max_down: factors that one decision may change the number of ready replicas by.
        tolerance: part of the target by which the load may differ without a change.
    """

    source: MetricSource = MetricSource.PROXY
    metric: str = MetricName.LOAD
    target: float
    stable_s: float = 60.0
    panic_s: float = 6.0
    panic_ratio: float = 2.0
    max_up: float = 1000.0
    max_down: float = 2.0
    tolerance: float = 0.1

    @property
    def key(self) -> MetricKey:
        return self.source, self.metric


class ScalingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Defines how the number of an endpoint's replicas is scaled.

    With ``min_replicas`` 0 it is scaled to zero after ``idle_s`` without any request.

    ``down_delay_s``: for so long the largest number that was advised counts, so that a dip removes nothing.
    ``max_age_s``: an older newest sample counts as missing, and nothing is changed by it.
    """

    min_replicas: int = 1
    max_replicas: int = 1
    rules: tuple[ScalingRule, ...] = ()
    target: TargetPolicy | None = None
    idle_s: float = 300.0
    down_delay_s: float = 60.0
    max_age_s: float = 30.0


class ScalingState(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what later decisions need: the end and the peak of a burst, and recent advice."""

    panic_until: float | None = None
    panic_peak: int = 0
    advice: tuple[tuple[float, int], ...] = ()


class ScalingInput(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an endpoint at one moment, as input of a scaling decision.

    Attributes:
        desired: the replicas that are wanted now.
        ready: those that are ready.
        metrics: the samples of each metric, oldest first, at least of the stable window.
        queued: requests that are held for want of a replica.
        in_flight: requests that are open.
        last_request_at: when one arrived last; None: never.
        since: when the endpoint was created or woken last: an earlier idle time does not count.
        is_rolling_out: nothing is removed during a roll-out.
    """

    now: float
    desired: int
    ready: int
    metrics: Mapping[MetricKey, Sequence[Sample]] = msgspec.field(default_factory=dict)
    queued: int = 0
    in_flight: int = 0
    last_request_at: float | None = None
    since: float = 0.0
    is_rolling_out: bool = False
    state: ScalingState = msgspec.field(default_factory=ScalingState)


class ScalingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the number of replicas, the reason and the inputs of the decision.

    ``triggered`` are the rules that took part.
    """

    desired: int
    reason: ServingReason | None
    explanation: str
    inputs: Mapping[str, float | int | str | None]
    triggered: tuple[UUID, ...]
    state: ScalingState


def decide_scale(policy: ScalingPolicy, scaling: ScalingInput) -> ScalingDecision:
    """Decides the number of replicas of an endpoint. Deterministic; for the same input more load never gives fewer
    replicas.

    Bounds hold first, then: what waits for a replica gets one; an endpoint that was not used for its whole idle time
    has none; rules and target advise a number; a smaller number waits until nothing larger was advised for the delay.
    """
    min_count, max_count = policy.min_replicas, max(policy.min_replicas, policy.max_replicas)
    inputs = _decision_inputs(policy, scaling)
    current_count = min(max(scaling.desired, min_count), max_count)
    if current_count == 0:
        if max_count and (scaling.queued or scaling.in_flight):
            explanation = f"{scaling.queued} requests wait for a replica"
            return _make_decision(1, ServingReason.REQUEST_ARRIVED, explanation, inputs, ScalingState())
        reason = ServingReason.SCALED_DOWN if scaling.desired else None
        return _make_decision(0, reason, "no request waits", inputs, ScalingState())
    if min_count == 0 and _is_idle(policy, scaling):
        if scaling.is_rolling_out:
            return _make_decision(current_count, None, "it is idle, but is being rolled out", inputs, scaling.state)
        explanation = f"no request for {policy.idle_s:g} s"
        return _make_decision(0, ServingReason.SCALED_TO_ZERO, explanation, inputs, ScalingState())
    advice, triggered, state = _advise(policy, scaling, current_count)
    texts = [explanation for _, explanation in advice]
    desired_count = max((advised_count for advised_count, _ in advice), default=current_count)
    if current_count != scaling.desired:
        texts.append(f"the bounds are {min_count} to {max_count}")
    desired_count = min(max(desired_count, min_count, 1), max_count)
    desired_count, state, delay_texts = _stabilize(policy, scaling, current_count, desired_count, state)
    texts += delay_texts
    reason = None
    if desired_count != scaling.desired:
        reason = ServingReason.SCALED_UP if desired_count > scaling.desired else ServingReason.SCALED_DOWN
    used_rules = triggered if desired_count != current_count else ()
    return _make_decision(
        desired_count, reason, "; ".join(texts) or "nothing asks for a change", inputs, state, used_rules
    )


def _make_decision(
    desired: int,
    reason: ServingReason | None,
    explanation: str,
    inputs: Mapping[str, float | int | str | None],
    state: ScalingState,
    triggered: tuple[UUID, ...] = (),
) -> ScalingDecision:
    return ScalingDecision(
        desired=desired, reason=reason, explanation=explanation, inputs=inputs, triggered=triggered, state=state
    )


def _is_idle(policy: ScalingPolicy, scaling: ScalingInput) -> bool:
    if scaling.queued or scaling.in_flight:
        return False
    return scaling.now - max(scaling.since, scaling.last_request_at or 0.0) >= policy.idle_s


def _advise(
    policy: ScalingPolicy, scaling: ScalingInput, current_count: int
) -> tuple[list[tuple[int, str]], tuple[UUID, ...], ScalingState]:
    """Returns the advised numbers with their reasons, the rules that triggered, and the state of the panic window."""
    advice: list[tuple[int, str]] = []
    triggered: list[UUID] = []
    for rule in policy.rules:
        advised_count, explanation = _advice_of_rule(rule, policy, scaling, current_count)
        if advised_count is not None:
            advice.append((advised_count, explanation))
            triggered.append(rule.id)
    state = scaling.state
    if policy.target is not None:
        samples = _recent_samples(policy.target.key, policy, scaling)
        if samples:
            advised_count, explanation, state = _advice_of_target(policy.target, samples, scaling, current_count)
            advice.append((advised_count, explanation))
        else:
            advice.append((current_count, f"{policy.target.metric} is missing or old, so that nothing changes"))
    return advice, tuple(triggered), state


def _recent_samples(key: MetricKey, policy: ScalingPolicy, scaling: ScalingInput) -> Sequence[Sample]:
    samples = scaling.metrics.get(key, ())
    return samples if samples and scaling.now - samples[-1].at <= policy.max_age_s else ()


def _advice_of_rule(
    rule: ScalingRule, policy: ScalingPolicy, scaling: ScalingInput, current_count: int
) -> tuple[int | None, str]:
    samples = _recent_samples(rule.key, policy, scaling)
    if not samples or not math.isfinite(samples[-1].mean):
        return None, ""
    value, threshold = samples[-1].mean, float(rule.threshold)
    if not rule.comparator.holds(value, threshold):
        return None, ""
    if rule.last_triggered_at is not None and scaling.now < rule.last_triggered_at + rule.cooldown_s:
        return None, ""
    advised_count = current_count + rule.step_size
    if rule.min_replicas is not None:
        advised_count = max(
            advised_count, min(current_count, rule.min_replicas) if rule.step_size < 0 else rule.min_replicas
        )
    if rule.max_replicas is not None:
        advised_count = min(
            advised_count, max(current_count, rule.max_replicas) if rule.step_size > 0 else rule.max_replicas
        )
    if advised_count == current_count:
        return None, ""
    return max(advised_count, 0), f"{rule.metric} {value:g} is {rule.comparator} {threshold:g}: {rule.step_size:+d}"


def _advice_of_target(
    target: TargetPolicy, samples: Sequence[Sample], scaling: ScalingInput, current_count: int
) -> tuple[int, str, ScalingState]:
    now, state, ready = scaling.now, scaling.state, max(1, scaling.ready)
    stable_load, burst_load = _mean_load(samples, now - target.stable_s), _mean_load(samples, now - target.panic_s)
    desired_count, panic_count = (
        _needed_replicas(stable_load, target, current_count),
        _needed_replicas(burst_load, target, current_count),
    )
    panic_until = state.panic_until
    if panic_count >= target.panic_ratio * ready and burst_load > stable_load:
        panic_until = now + target.stable_s
    if panic_until is not None and panic_until <= now:
        panic_until = None
    peak_count, explanation = (
        0,
        f"{target.metric} {stable_load:.4g} in {target.stable_s:g} s, {target.target:g} for each replica",
    )
    if panic_until is not None:
        peak_count = max(state.panic_peak, panic_count, current_count)
        desired_count, explanation = (
            max(desired_count, peak_count),
            f"{target.metric} {burst_load:.4g} in {target.panic_s:g} s, a burst",
        )
    desired_count = min(desired_count, math.ceil(target.max_up * ready))
    desired_count = max(desired_count, min(current_count, math.floor(ready / target.max_down)))
    return desired_count, explanation, replace(state, panic_until=panic_until, panic_peak=peak_count)


def _mean_load(samples: Sequence[Sample], since_s: float) -> float:
    """Returns the mean of the samples of a window. If the window has no sample, the newest sample is returned."""
    totals = [sample.total for sample in samples if sample.at >= since_s] or [samples[-1].total]
    mean = sum(totals) / len(totals)
    return mean if math.isfinite(mean) and mean > 0 else 0.0


def _needed_replicas(load: float, target: TargetPolicy, current_count: int) -> int:
    """Returns the number of replicas that a load needs.

    Returns ``current_count`` if the difference is within the tolerance.
    """
    if current_count and abs(load / (current_count * target.target) - 1.0) <= target.tolerance:
        return current_count
    return math.ceil(load / target.target)


def _stabilize(
    policy: ScalingPolicy, scaling: ScalingInput, current_count: int, desired_count: int, state: ScalingState
) -> tuple[int, ScalingState, list[str]]:
    """Delays a reduction of replicas until no larger number was advised for ``down_delay_s``."""
    recent_advice = tuple(advice for advice in state.advice if advice[0] > scaling.now - policy.down_delay_s)
    state = replace(state, advice=(*recent_advice, (scaling.now, desired_count)))
    if desired_count >= current_count:
        return desired_count, state, []
    if scaling.is_rolling_out:
        return current_count, state, ["nothing is removed during a roll-out"]
    has_waited = any(advised_at <= scaling.now - policy.down_delay_s for advised_at, _ in scaling.state.advice)
    if policy.down_delay_s > 0 and not has_waited:
        return current_count, state, [f"a smaller number waits {policy.down_delay_s:g} s"]
    largest_count = max([desired_count, *(advised_count for _, advised_count in recent_advice)])
    if largest_count > desired_count:
        return (
            min(current_count, largest_count),
            state,
            [f"{largest_count} were advised within {policy.down_delay_s:g} s"],
        )
    return desired_count, state, []


def _decision_inputs(policy: ScalingPolicy, scaling: ScalingInput) -> Mapping[str, float | int | str | None]:
    input_values: dict[str, float | int | str | None] = {
        "desired": scaling.desired,
        "ready": scaling.ready,
        "min_replicas": policy.min_replicas,
        "max_replicas": policy.max_replicas,
        "queued": scaling.queued,
        "in_flight": scaling.in_flight,
        "last_request_at": scaling.last_request_at,
    }
    keys = [rule.key for rule in policy.rules] + ([policy.target.key] if policy.target else [])
    for source, metric_name in keys:
        samples = scaling.metrics.get((source, metric_name), ())
        input_values[f"{source}:{metric_name}"] = samples[-1].total if samples else None
        input_values[f"{source}:{metric_name}:age_s"] = round(scaling.now - samples[-1].at, 3) if samples else None
    return input_values
