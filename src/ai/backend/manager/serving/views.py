"""Converts model services from and to the form of the REST API."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common.serving import ReplicaStatus
from ai.backend.infra.http.fields import iso
from ai.backend.manager.serving import schemas
from ai.backend.manager.serving.model import (
    AutoscalingRule,
    Replica,
    Revision,
    Service,
    ServingEvent,
    UseGrouping,
    UseQuery,
    UseReport,
    UseSums,
)
from ai.backend.manager.serving.requests import CreateService, ModifyService, RevisionRequest

_HOUR_S = 3_600
_REVISION_FIELDS = (
    *("image", "architecture", "model", "model_version", "model_definition_path", "model_name"),
    *(
        "model_mount_destination",
        "runtime_variant",
        "environ",
        "resources",
        "resource_opts",
        "tag",
        "startup_command",
        "bootstrap_script",
        "port",
        *("claim", "variant_requirements", "device_requests"),
    ),
)
_PLAIN_REVISION = RevisionRequest(image="", model="")
"""A revision in which each optional field has its default."""


def creation_of(body: schemas.CreateServiceBody, owner_access_key: str | None) -> CreateService:
    """Returns the creation request that a request body describes."""
    config = body.config
    revision = RevisionRequest(
        image=body.image,
        architecture=body.arch,
        model=config.model,
        model_version=str(config.model_version) if config.model_version is not None else None,
        model_definition_path=config.model_definition_path,
        model_name=config.model_name,
        model_mount_destination=config.model_mount_destination,
        runtime_variant=body.runtime_variant,
        environ=config.environ or {},
        resources=config.resources,
        resource_opts={name: str(value) for name, value in (config.resource_opts or {}).items()},
        cluster_size=body.cluster_size,
        cluster_mode=body.cluster_mode,
        tag=body.tag,
        startup_command=body.startup_command,
        bootstrap_script=body.bootstrap_script,
        callback_url=body.callback_url,
        port=body.port,
        claim=config.claim,
        variant_requirements=config.variant_requirements or (),
        device_requests=config.device_requests or (),
    )
    return CreateService(
        name=body.name,
        replicas=body.desired_session_count,
        revision=revision,
        group=body.group,
        domain=body.domain,
        scaling_group=config.scaling_group,
        owner_access_key=owner_access_key or body.owner_access_key,
        open_to_public=body.open_to_public,
        policy=body.policy or {},
    )


def sent_fields(body: msgspec.Struct) -> dict[str, Any]:
    """Returns the fields that a request body has: those that were sent, and those that have a default."""
    values = {name: getattr(body, name) for name in body.__struct_fields__}
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}


def modification_of(body: schemas.ModifyServiceBody) -> ModifyService:
    """Returns the change request of a body; a field that is null gets its default."""
    sent_values = sent_fields(body)
    revision = {name: sent_values[name] for name in _REVISION_FIELDS if name in sent_values}
    cleared_names = [name for name, value in revision.items() if value is None]
    revision |= {name: getattr(_PLAIN_REVISION, name) for name in cleared_names}
    if "environ" in cleared_names:
        revision["sealed_environ"] = {}
    return ModifyService(
        replicas=sent_values.get("desired_session_count"),
        name=sent_values.get("name"),
        open_to_public=sent_values.get("open_to_public"),
        policy=sent_values.get("policy"),
        revision=revision,
    )


def service_item(service: Service) -> schemas.ServiceItem:
    """Converts a service to an item of a list."""
    endpoint = service.endpoint
    return {
        "id": endpoint.id,
        "name": endpoint.name,
        "status": endpoint.status.value,
        "desired_session_count": endpoint.desired,
        "replicas": endpoint.desired,
        "active_route_count": sum(each.status is ReplicaStatus.READY for each in service.replicas),
        "service_endpoint": endpoint.url,
        "is_public": endpoint.open_to_public,
    }


def route_item(service: Service, replica: Replica) -> schemas.RouteItem:
    """Converts a replica to a route of the API."""
    return {
        "route_id": replica.id,
        "session_id": replica.id,
        "traffic_ratio": replica.traffic_ratio,
        "status": replica.status.value,
        "reason": replica.reason.value,
        "detail": replica.detail,
        "revision": service.revision(replica.revision_id).number,
    }


def service_reply(service: Service, tokens_per_s: float | None = None) -> schemas.ServiceReply:
    """Returns a service with its replicas and revisions, and the number of tokens that it used recently."""
    endpoint, spec = service.endpoint, service.current.spec
    policy: dict[str, Any] = msgspec.to_builtins(endpoint.policy)
    return schemas.ServiceReply(
        endpoint_id=endpoint.id,
        name=endpoint.name,
        status=endpoint.status.value,
        reason=endpoint.reason.value,
        model_id=spec.model,
        model_name=spec.served.name,
        model_version=spec.model_version,
        model_definition_path=spec.model_definition_path,
        model_mount_destination=spec.model_mount_destination,
        image=spec.image,
        architecture=spec.architecture,
        runtime_variant=spec.runtime_variant,
        served_model=spec.model_name,
        startup_command=spec.startup_command,
        bootstrap_script=spec.bootstrap_script,
        port=spec.served.port,
        environ=spec.environ,
        secret_names=sorted(spec.sealed_environ),
        resources=spec.resources,
        resource_opts=spec.resource_opts,
        cluster_size=spec.cluster_size,
        cluster_mode=spec.cluster_mode,
        tag=spec.tag,
        desired_session_count=endpoint.desired,
        replicas=endpoint.desired,
        active_routes=[route_item(service, each) for each in service.live_replicas],
        revisions=[
            {
                "id": each.id,
                "number": each.number,
                "status": each.status.value,
                "reason": each.reason.value,
                "image": each.spec.image,
                "model_name": each.spec.served.name,
                "weight": each.weight,
                "step": each.step,
                "step_since": each.step_since.isoformat() if each.step_since is not None else None,
                "created_at": each.created_at.isoformat(),
            }
            for each in service.revisions
        ],
        service_endpoint=endpoint.url,
        is_public=endpoint.open_to_public,
        domain=endpoint.domain_name,
        project=endpoint.group_name,
        resource_group=endpoint.resource_group,
        created_at=endpoint.created_at.isoformat(),
        claim=spec.claim,
        variant_requirements=[*spec.variant_requirements],
        device_requests=[*spec.device_requests],
        policy=policy,
        tokens_per_s=tokens_per_s,
    )


def why_reply(service: Service, obstacles: dict[str, str]) -> schemas.WhyReply:
    """Returns the explanation of a service's state; ``obstacles`` maps ids of replicas to what they wait for."""
    endpoint = service.endpoint
    return schemas.WhyReply(
        name=endpoint.name,
        status=endpoint.status.value,
        reason=endpoint.reason.value,
        explanation=endpoint.explanation,
        problem=endpoint.problem,
        replicas=[route_item(service, each) for each in service.replicas[-32:]],
        obstacles=obstacles,
        autoscaling=scaling_reply(service),
    )


def rule_item(stored_rule: AutoscalingRule) -> schemas.ScalingRuleItem:
    """Converts a scaling rule to an item of a list."""
    rule = stored_rule.rule
    triggered_at = rule.last_triggered_at
    return {
        "id": stored_rule.id,
        "metric_source": rule.source.value,
        "metric_name": rule.metric,
        "threshold": format(rule.threshold, "f"),
        "comparator": rule.comparator.value,
        "step_size": rule.step_size,
        "cooldown_seconds": rule.cooldown_s,
        "min_replicas": rule.min_replicas,
        "max_replicas": rule.max_replicas,
        "created_at": stored_rule.created_at.isoformat(),
        "last_triggered_at": iso(datetime.fromtimestamp(triggered_at, UTC)) if triggered_at is not None else None,
    }


def scaling_reply(service: Service) -> schemas.ScalingReply:
    """Returns the autoscaling settings of an endpoint, and the last decision."""
    endpoint = service.endpoint
    policy, scaling_note = endpoint.scaling, endpoint.scaled
    target_policy: schemas.TargetItem | None = None
    if policy is not None and policy.target is not None:
        target_policy = {
            "metric": policy.target.metric,
            "metric_source": policy.target.source.value,
            "target": policy.target.target,
            "stable_s": policy.target.stable_s,
            "panic_s": policy.target.panic_s,
            "panic_ratio": policy.target.panic_ratio,
            "max_up": policy.target.max_up,
            "max_down": policy.target.max_down,
            "tolerance": policy.target.tolerance,
        }
    decision: schemas.ScalingNoteItem | None = None
    if scaling_note is not None:
        decision = {
            "at": scaling_note.at.isoformat(),
            "before": scaling_note.before,
            "desired": scaling_note.desired,
            "reason": scaling_note.reason.value,
            "explanation": scaling_note.explanation,
            "inputs": dict(scaling_note.inputs),
        }
    return schemas.ScalingReply(
        desired_session_count=endpoint.desired,
        is_enabled=policy is not None,
        min_replicas=policy.min_replicas if policy is not None else None,
        max_replicas=policy.max_replicas if policy is not None else None,
        idle_s=policy.idle_s if policy is not None else None,
        down_delay_s=policy.down_delay_s if policy is not None else None,
        target=target_policy,
        rules=[rule_item(each) for each in service.rules],
        last_decision=decision,
    )


def event_item(event: ServingEvent) -> schemas.EventItem:
    """Converts a change of an endpoint to an item of its history."""
    return {
        "at": iso(event.at) or "",
        "subject": event.subject,
        "status": event.status,
        "reason": event.reason,
        "detail": event.detail,
        "data": dict(event.data),
    }


def usage_reply(
    query: UseQuery, report: UseReport, now: datetime, revisions: Sequence[Revision] = ()
) -> schemas.UsageReply:
    """Returns the use of endpoints, with the numbers of the revisions concerned."""
    number_of_revision = {item.id: str(item.number) for item in revisions}
    return {
        "since": _hour_text(query.since),
        "until": _hour_text(query.until),
        "by": query.by,
        "groups": [
            {
                "key": _key_text(query.by, item.key),
                "name": number_of_revision.get(item.key)
                if isinstance(item.key, UUID) and item.name is None
                else item.name,
                **use_item(item.sums, _elapsed_s(query, now, item.key)),
            }
            for item in report.groups
        ],
        "total": use_item(report.total, _elapsed_s(query, now)),
    }


def total_rate(query: UseQuery, report: UseReport, now: datetime) -> float:
    """Returns the tokens per second over the whole period of a report."""
    return use_item(report.total, _elapsed_s(query, now))["tokens_per_s"]


def _elapsed_s(query: UseQuery, now: datetime, key: str | int | UUID | None = None) -> float:
    """Returns how many seconds of a period have passed until now, or of the hour or day of ``key`` in the period."""
    start_hour, end_hour = query.since, query.until
    if isinstance(key, int):
        hours_per_group = 24 if query.by is UseGrouping.DAY else 1
        start_hour, end_hour = max(start_hour, key * hours_per_group), min(end_hour, (key + 1) * hours_per_group)
    return min(end_hour * _HOUR_S, now.timestamp()) - start_hour * _HOUR_S


def use_item(sums: UseSums, seconds: float) -> schemas.UseItem:
    """Converts sums of use in a period of ``seconds`` to an item of the API."""
    tokens = sums.prompt_tokens + sums.output_tokens
    return {
        "requests": sums.requests,
        "errors": sums.errors,
        "prompt_tokens": sums.prompt_tokens,
        "cached_tokens": sums.cached_tokens,
        "output_tokens": sums.output_tokens,
        "estimated_requests": sums.estimated,
        "busy_s": sums.busy_ms / 1_000,
        "tokens_per_s": round(tokens / seconds, 3) if seconds > 0 else 0.0,
    }


def _key_text(by: UseGrouping, key: str | int | UUID | None) -> str | None:
    if key is None:
        return None
    if isinstance(key, int):
        return _hour_text(key * 24 if by is UseGrouping.DAY else key)
    return str(key)


def _hour_text(hour: int) -> str:
    return datetime.fromtimestamp(hour * _HOUR_S, UTC).isoformat()
