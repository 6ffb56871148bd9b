"""Implements the use cases of autoscaling, and of the scaling rules of the published client."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common.errors import InvalidInput, LimitExceeded, NotFound
from ai.backend.common.structs import replace
from ai.backend.core.serving.autoscale import MetricSource, ScalingPolicy, ScalingRule, TargetPolicy
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.serving.loads import GATHERED_METRICS
from ai.backend.manager.serving.model import AutoscalingRule, Endpoint, Service, ServingChange
from ai.backend.manager.serving.service import ServingService, event_of, with_requested_change

MAX_RULES = 32
"""The maximum number of scaling rules of one endpoint."""
_MAX_THRESHOLD = 1e15
_MAX_THRESHOLD_LENGTH = 32
_METRIC_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:.-]*")
_EVENT_SUBJECT = "autoscaling"
_RULE_FIELDS = {"metric_source": "source", "metric_name": "metric", "cooldown_seconds": "cooldown_s"}
"""Maps fields of the API to fields of :class:`ScalingRule`, where their names differ."""


class ScalingService(msgspec.Struct, frozen=True):
    """Sets, changes and ends the autoscaling of endpoints. Each method raises as :meth:`ServingService.modify`, and
    InvalidInput.
    """

    services: ServingService

    async def set(self, caller: Caller, ref: str | UUID, changes: Mapping[str, Any]) -> Service:
        """Starts or changes the autoscaling of an endpoint; ``changes`` are fields of the API."""

        def change(service: Service, now: datetime) -> ServingChange:
            endpoint = with_requested_change(service.endpoint, now)
            new_fields = dict(changes)
            if new_fields.get("target") is not None:
                target_fields = msgspec.structs.asdict(new_fields["target"])
                new_fields["target"] = TargetPolicy(source=target_fields.pop("metric_source"), **target_fields)
            policy = replace(endpoint.scaling or self._initial_policy(endpoint), **new_fields)
            self._check(policy)
            # Bounds hold at once: nothing waits for a load.
            desired = min(max(endpoint.desired, policy.min_replicas), policy.max_replicas)
            return self._change_of_endpoint(caller, replace(endpoint, scaling=policy, desired=desired), now, changes)

        return await self.services.apply(caller, ref, change)

    async def end(self, caller: Caller, ref: str | UUID) -> Service:
        """Ends the autoscaling of an endpoint and deletes its rules; the number of replicas stays."""

        def change(service: Service, now: datetime) -> ServingChange | None:
            if service.endpoint.scaling is None and not service.rules:
                return None
            endpoint = replace(with_requested_change(service.endpoint, now), scaling=None, scaled=None)
            change_of_policy = self._change_of_endpoint(caller, endpoint, now, {"enabled": False})
            return replace(change_of_policy, dropped=[each.id for each in service.rules])

        return await self.services.apply(caller, ref, change)

    async def add_rule(self, caller: Caller, ref: str | UUID, values: Mapping[str, Any]) -> AutoscalingRule:
        """Adds a scaling rule to an endpoint; the first rule starts autoscaling.

        Autoscaling then has one replica at least unless the rule says 0. Raises LimitExceeded.
        """
        rule_id = self.services.id_generator.uuid()
        rule = ScalingRule(id=rule_id, **_rule_fields(values))
        self._check_rule(rule)

        def change(service: Service, now: datetime) -> ServingChange:
            if len(service.rules) >= MAX_RULES:
                raise LimitExceeded(f"An endpoint has at most {MAX_RULES} rules.", data={"rules": MAX_RULES})
            endpoint = with_requested_change(service.endpoint, now)
            if endpoint.scaling is None:
                min_replicas = 1 if rule.min_replicas is None else min(1, rule.min_replicas)
                endpoint = replace(endpoint, scaling=replace(self._initial_policy(endpoint), min_replicas=min_replicas))
            stored_rule = AutoscalingRule(id=rule_id, endpoint_id=endpoint.id, rule=rule, created_at=now)
            return self._change_of_rule(caller, endpoint, now, stored_rule)

        return _get_rule(await self.services.apply(caller, ref, change), rule_id)

    async def modify_rule(
        self, caller: Caller, ref: str | UUID, rule_id: UUID, changes: Mapping[str, Any]
    ) -> AutoscalingRule:
        """Changes a scaling rule of an endpoint. Raises NotFound."""

        def change(service: Service, now: datetime) -> ServingChange:
            stored_rule = _get_rule(service, rule_id)
            rule = replace(stored_rule.rule, **_rule_fields(changes))
            self._check_rule(rule)
            return self._change_of_rule(
                caller, with_requested_change(service.endpoint, now), now, replace(stored_rule, rule=rule)
            )

        return _get_rule(await self.services.apply(caller, ref, change), rule_id)

    async def remove_rule(self, caller: Caller, ref: str | UUID, rule_id: UUID) -> None:
        """Removes a scaling rule from its endpoint. Raises NotFound."""

        def change(service: Service, now: datetime) -> ServingChange:
            removed_rule = _get_rule(service, rule_id)
            endpoint = with_requested_change(service.endpoint, now)
            change_of_policy = self._change_of_endpoint(
                caller, endpoint, now, {"rule": str(removed_rule.id), "removed": True}
            )
            return replace(change_of_policy, dropped=[removed_rule.id])

        await self.services.apply(caller, ref, change)

    async def get_by_rule(self, caller: Caller, rule_id: UUID) -> Service:
        """Returns the service to which a scaling rule belongs. Raises NotFound also for an endpoint that the caller
        does not see.
        """
        service = await self.services.store.get_by_rule(rule_id)
        if service is None:
            raise no_rule(rule_id)
        try:
            return await self.services.get(caller, service.endpoint.id)
        except NotFound:
            raise no_rule(rule_id) from None

    # ---- checks ----

    def _initial_policy(self, endpoint: Endpoint) -> ScalingPolicy:
        max_replicas = self.services.settings.max_replicas
        return ScalingPolicy(min_replicas=min(1, endpoint.desired), max_replicas=max_replicas)

    def _check(self, policy: ScalingPolicy) -> None:
        allowed_replicas = self.services.settings.max_replicas
        if not 0 <= policy.min_replicas <= policy.max_replicas <= allowed_replicas:
            message = f"min_replicas is at most max_replicas, which is at most {allowed_replicas}."
            raise InvalidInput(message, data={"max_replicas": "out of range"})
        target_policy = policy.target
        if target_policy is None:
            return
        self._check_metric(target_policy.source, target_policy.metric)
        if target_policy.panic_s > target_policy.stable_s:
            raise InvalidInput("panic_s is at most stable_s.", data={"target.panic_s": "out of range"})

    def _check_rule(self, rule: ScalingRule) -> None:
        allowed_replicas = self.services.settings.max_replicas
        self._check_metric(rule.source, rule.metric)
        if not _is_threshold(rule.threshold):
            message = f"threshold is a number from 0 to {_MAX_THRESHOLD:g}, of at most {_MAX_THRESHOLD_LENGTH} digits."
            raise InvalidInput(message, data={"threshold": "out of range"})
        if rule.step_size == 0 or abs(rule.step_size) > allowed_replicas:
            message = f"step_size adds up to {allowed_replicas} replicas or, below 0, removes some."
            raise InvalidInput(message, data={"step_size": "out of range"})
        min_replicas, max_replicas = (
            rule.min_replicas or 0,
            rule.max_replicas if rule.max_replicas is not None else allowed_replicas,
        )
        if not 0 <= min_replicas <= max_replicas <= allowed_replicas:
            message = f"min_replicas is at most max_replicas, which is at most {allowed_replicas}."
            raise InvalidInput(message, data={"max_replicas": "out of range"})

    def _check_metric(self, source: MetricSource, metric: str) -> None:
        """Raises InvalidInput for a rule whose metric can never be measured, since the rule would have no effect."""
        names: Collection[str] | None = None
        if source is MetricSource.PROXY:
            names = GATHERED_METRICS
        elif source is MetricSource.PROMETHEUS:
            settings = self.services.settings
            if settings.prometheus_url is None:
                message = "This installation has no server of Prometheus (serving.prometheus-url)."
                raise InvalidInput(message, data={"metric_source": "not supported"})
            names = settings.prometheus_queries
        if names is not None and metric not in names:
            message = f"There is no metric {metric[:64]!r}; there are: {', '.join(names) or 'none'}."
            raise InvalidInput(message, data={"metric_name": "unknown"})
        if not _METRIC_NAME.fullmatch(metric):
            raise InvalidInput("A metric is named by letters, digits, _ and :.", data={"metric_name": "malformed"})

    # ---- changes ----

    def _change_of_endpoint(
        self, caller: Caller, endpoint: Endpoint, now: datetime, values: Mapping[str, Any]
    ) -> ServingChange:
        data = {"by": caller.access_key, **msgspec.to_builtins(dict(values))}
        event = event_of(endpoint, now, _EVENT_SUBJECT, data, reason="changed")
        return ServingChange(version=endpoint.version, endpoint=endpoint, events=[event])

    def _change_of_rule(
        self, caller: Caller, endpoint: Endpoint, now: datetime, rule: AutoscalingRule
    ) -> ServingChange:
        endpoint_change = self._change_of_endpoint(caller, endpoint, now, {"rule": msgspec.to_builtins(rule.rule)})
        return replace(endpoint_change, rules=[rule])


def _is_threshold(value: Decimal) -> bool:
    """Returns True for a number of a size and length that a rule takes.

    The exponent first: the text of 1e-9999999999 has ten gigabytes.
    """
    exponent = value.as_tuple().exponent
    return (
        isinstance(exponent, int)  # else it is infinite, or no number
        and abs(exponent) <= _MAX_THRESHOLD_LENGTH
        and 0 <= value <= _MAX_THRESHOLD
        and len(format(value, "f")) <= _MAX_THRESHOLD_LENGTH
    )


def no_rule(rule_id: UUID | str) -> NotFound:
    """Returns the error for a scaling rule that the endpoint does not have."""
    return NotFound(f"There is no rule {str(rule_id)[:64]!r} of autoscaling.", data={"rule": "unknown"})


def _rule_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return {_RULE_FIELDS.get(name, name): value for name, value in values.items()}


def _get_rule(service: Service, rule_id: UUID) -> AutoscalingRule:
    rule = next((each for each in service.rules if each.id == rule_id), None)
    if rule is None:
        raise no_rule(rule_id)
    return rule
