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
    """The first two are those of the published client; ``proxy``: the counts of app proxy workers (``in_flight``,
    ``queued``, ``load``, which is their sum, ``requests_per_s``, ``tokens_per_s``); ``prometheus``: a query."""

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
    """A rule of the published client: while the mean of its metric over replicas compares so with the threshold,
    ``step_size`` replicas are added (removed, if it is negative), at most once in ``cooldown_s``."""

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
    """Defines how an endpoint is scaled. With ``min_replicas`` 0 it is scaled to zero after ``idle_s`` without any
    request.

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
    low, high = policy.min_replicas, max(policy.min_replicas, policy.max_replicas)
    inputs = _inputs(policy, scaling)
    current = min(max(scaling.desired, low), high)
    if current == 0:
        if high and (scaling.queued or scaling.in_flight):
            text = f"{scaling.queued} requests wait for a replica"
            return _decision(1, ServingReason.REQUEST_ARRIVED, text, inputs, ScalingState())
        reason = ServingReason.SCALED_DOWN if scaling.desired else None
        return _decision(0, reason, "no request waits", inputs, ScalingState())
    if low == 0 and _is_idle(policy, scaling):
        if scaling.is_rolling_out:
            return _decision(current, None, "it is idle, but is being rolled out", inputs, scaling.state)
        text = f"no request for {policy.idle_s:g} s"
        return _decision(0, ServingReason.SCALED_TO_ZERO, text, inputs, ScalingState())
    advice, triggered, state = _advise(policy, scaling, current)
    texts = [text for _, text in advice]
    desired = max((number for number, _ in advice), default=current)
    if current != scaling.desired:
        texts.append(f"the bounds are {low} to {high}")
    desired = min(max(desired, low, 1), high)
    desired, state, held = _stabilize(policy, scaling, current, desired, state)
    texts += held
    reason = None
    if desired != scaling.desired:
        reason = ServingReason.SCALED_UP if desired > scaling.desired else ServingReason.SCALED_DOWN
    used = triggered if desired != current else ()
    return _decision(desired, reason, "; ".join(texts) or "nothing asks for a change", inputs, state, used)


def _decision(
    desired: int,
    reason: ServingReason | None,
    text: str,
    inputs: Mapping[str, float | int | str | None],
    state: ScalingState,
    triggered: tuple[UUID, ...] = (),
) -> ScalingDecision:
    return ScalingDecision(
        desired=desired, reason=reason, explanation=text, inputs=inputs, triggered=triggered, state=state
    )


def _is_idle(policy: ScalingPolicy, scaling: ScalingInput) -> bool:
    if scaling.queued or scaling.in_flight:
        return False
    return scaling.now - max(scaling.since, scaling.last_request_at or 0.0) >= policy.idle_s


def _advise(
    policy: ScalingPolicy, scaling: ScalingInput, current: int
) -> tuple[list[tuple[int, str]], tuple[UUID, ...], ScalingState]:
    """Returns the advised numbers with their reasons, the rules that triggered, and the state of the panic window."""
    advice: list[tuple[int, str]] = []
    triggered: list[UUID] = []
    for rule in policy.rules:
        number, text = _advice_of_rule(rule, policy, scaling, current)
        if number is not None:
            advice.append((number, text))
            triggered.append(rule.id)
    state = scaling.state
    if policy.target is not None:
        samples = _fresh(policy.target.key, policy, scaling)
        if samples:
            number, text, state = _advice_of_target(policy.target, samples, scaling, current)
            advice.append((number, text))
        else:
            advice.append((current, f"{policy.target.metric} is missing or old, so that nothing changes"))
    return advice, tuple(triggered), state


def _fresh(key: MetricKey, policy: ScalingPolicy, scaling: ScalingInput) -> Sequence[Sample]:
    samples = scaling.metrics.get(key, ())
    return samples if samples and scaling.now - samples[-1].at <= policy.max_age_s else ()


def _advice_of_rule(
    rule: ScalingRule, policy: ScalingPolicy, scaling: ScalingInput, current: int
) -> tuple[int | None, str]:
    samples = _fresh(rule.key, policy, scaling)
    if not samples or not math.isfinite(samples[-1].mean):
        return None, ""
    value, threshold = samples[-1].mean, float(rule.threshold)
    if not rule.comparator.holds(value, threshold):
        return None, ""
    if rule.last_triggered_at is not None and scaling.now < rule.last_triggered_at + rule.cooldown_s:
        return None, ""
    number = current + rule.step_size
    if rule.min_replicas is not None:
        number = max(number, min(current, rule.min_replicas) if rule.step_size < 0 else rule.min_replicas)
    if rule.max_replicas is not None:
        number = min(number, max(current, rule.max_replicas) if rule.step_size > 0 else rule.max_replicas)
    if number == current:
        return None, ""
    return max(number, 0), f"{rule.metric} {value:g} is {rule.comparator} {threshold:g}: {rule.step_size:+d}"


def _advice_of_target(
    target: TargetPolicy, samples: Sequence[Sample], scaling: ScalingInput, current: int
) -> tuple[int, str, ScalingState]:
    now, state, ready = scaling.now, scaling.state, max(1, scaling.ready)
    stable, burst = _mean(samples, now - target.stable_s), _mean(samples, now - target.panic_s)
    desired, panic = _needed(stable, target, current), _needed(burst, target, current)
    until = state.panic_until
    if panic >= target.panic_ratio * ready and burst > stable:
        until = now + target.stable_s
    if until is not None and until <= now:
        until = None
    peak, text = 0, f"{target.metric} {stable:.4g} in {target.stable_s:g} s, {target.target:g} for each replica"
    if until is not None:
        peak = max(state.panic_peak, panic, current)
        desired, text = max(desired, peak), f"{target.metric} {burst:.4g} in {target.panic_s:g} s, a burst"
    desired = min(desired, math.ceil(target.max_up * ready))
    desired = max(desired, min(current, math.floor(ready / target.max_down)))
    return desired, text, replace(state, panic_until=until, panic_peak=peak)


def _mean(samples: Sequence[Sample], since: float) -> float:
    """Returns the mean of the samples of a window. If the window has no sample, the newest sample is returned."""
    values = [sample.total for sample in samples if sample.at >= since] or [samples[-1].total]
    mean = sum(values) / len(values)
    return mean if math.isfinite(mean) and mean > 0 else 0.0


def _needed(load: float, target: TargetPolicy, current: int) -> int:
    """Returns the number of replicas that a load needs.

    Returns ``current`` if the difference is within the tolerance.
    """
    if current and abs(load / (current * target.target) - 1.0) <= target.tolerance:
        return current
    return math.ceil(load / target.target)


def _stabilize(
    policy: ScalingPolicy, scaling: ScalingInput, current: int, desired: int, state: ScalingState
) -> tuple[int, ScalingState, list[str]]:
    """Delays a reduction of replicas until no larger number was advised for ``down_delay_s``."""
    kept = tuple(each for each in state.advice if each[0] > scaling.now - policy.down_delay_s)
    state = replace(state, advice=(*kept, (scaling.now, desired)))
    if desired >= current:
        return desired, state, []
    if scaling.is_rolling_out:
        return current, state, ["nothing is removed during a roll-out"]
    has_waited = any(at <= scaling.now - policy.down_delay_s for at, _ in scaling.state.advice)
    if policy.down_delay_s > 0 and not has_waited:
        return current, state, [f"a smaller number waits {policy.down_delay_s:g} s"]
    largest = max([desired, *(number for _, number in kept)])
    if largest > desired:
        return min(current, largest), state, [f"{largest} were advised within {policy.down_delay_s:g} s"]
    return desired, state, []


def _inputs(policy: ScalingPolicy, scaling: ScalingInput) -> Mapping[str, float | int | str | None]:
    values: dict[str, float | int | str | None] = {
        "desired": scaling.desired,
        "ready": scaling.ready,
        "min_replicas": policy.min_replicas,
        "max_replicas": policy.max_replicas,
        "queued": scaling.queued,
        "in_flight": scaling.in_flight,
        "last_request_at": scaling.last_request_at,
    }
    keys = [rule.key for rule in policy.rules] + ([policy.target.key] if policy.target else [])
    for source, name in keys:
        samples = scaling.metrics.get((source, name), ())
        values[f"{source}:{name}"] = samples[-1].total if samples else None
        values[f"{source}:{name}:age_s"] = round(scaling.now - samples[-1].at, 3) if samples else None
    return values
