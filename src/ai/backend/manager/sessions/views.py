"""Sessions as the REST API tells them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from ai.backend.infra.http.fields import duration_s, iso, port_number
from ai.backend.manager.sessions.model import CreateReply, CreateSession, DependencyNode, Session
from ai.backend.manager.sessions.schemas import (
    CreatedSession,
    CreateSessionBody,
    ServicePort,
    SessionInfo,
)

_MIB = 1_048_576


def creation_of(body: CreateSessionBody) -> CreateSession:
    """A request as the service takes it."""
    config = body.config
    return CreateSession(
        image=body.image,
        name=body.name,
        type=body.type,
        architecture=body.architecture,
        tag=body.tag,
        domain=body.domain,
        group=body.group,
        cluster_size=body.cluster_size,
        cluster_mode=body.cluster_mode,
        runtime_class=body.runtime_class,
        enqueue_only=body.enqueue_only,
        max_wait_s=body.max_wait_s,
        reuse_if_exists=body.reuse_if_exists,
        startup_command=body.startup_command,
        bootstrap_script=body.bootstrap_script,
        starts_at=body.starts_at,
        batch_timeout_s=duration_s(body.batch_timeout),
        exec_timeout_s=body.exec_timeout,
        dependencies=tuple(body.dependencies),
        priority=body.priority,
        callback_url=body.callback_url,
        owner_access_key=body.owner_access_key,
        environ=config.environ,
        resources=_resources(body),
        variant_requirements=tuple(config.variant_requirements),
        resource_opts={name: str(value) for name, value in config.resource_opts.items()},
        mounts=tuple(config.mounts),
        mount_map=config.mount_map,
        mount_options={
            name: {"type": option.type, "permission": option.permission}
            for name, option in config.mount_options.items()
        },
        scaling_group=config.scaling_group,
        preopen_ports=tuple(port_number(port) for port in config.preopen_ports),
        agent_list=tuple(config.agent_list),
    )


def _resources(body: CreateSessionBody) -> Mapping[str, str | int | float] | None:
    """Slots, completed by the deprecated fields where the slot is not given."""
    config = body.config
    legacy: dict[str, str | int | float] = {}
    if config.instanceCores is not None:
        legacy["cpu"] = config.instanceCores
    if config.instanceMemory is not None:
        legacy["mem"] = config.instanceMemory * _MIB
    if config.instanceGPUs:
        total = config.instanceGPUs.is_integer()
        legacy["cuda.device" if total else "cuda.shares"] = int(config.instanceGPUs) if total else config.instanceGPUs
    return config.resources if not legacy else {**legacy, **(config.resources or {})}


def service_ports(ports: Iterable[Mapping[str, Any]]) -> list[ServicePort]:
    """Service Port Objects (spec 03-07)."""
    return [
        ServicePort(
            name=str(port["name"]),
            protocol=str(port.get("protocol", "tcp")),
            ports=[int(p) for p in port.get("container_ports") or port.get("ports") or ()],
        )
        for port in ports
    ]


def created_session(reply: CreateReply, *, enqueue_only: bool) -> CreatedSession:
    """The reply to a creation; a request that is only queued is PENDING whatever happens meanwhile (spec 03-08)."""
    session = reply.session
    queued = enqueue_only and reply.created
    return CreatedSession(
        sessionId=str(session.id),
        sessId=session.name,
        name=session.name,
        status="PENDING" if queued else reply.status,
        status_info=session.status_info,
        servicePorts=[] if queued else service_ports(session.service_ports),
        created=reply.created,
    )


def session_info(session: Session, *, now: datetime | None = None) -> SessionInfo:
    """``GET /session/{s}``; statistics are as fresh as the agent's last report."""
    end = session.terminated_at or now or datetime.now(UTC)
    stat = session.main.live_stat or session.main.last_stat or {}
    return SessionInfo(
        lang=session.image,
        age=max(0, int((end - (session.started_at or session.created_at)).total_seconds() * 1000)),
        memory_limit=int(session.requested_slots["mem"]) // 1024,
        num_queries_executed=session.num_queries,
        cpu_credit_used=_metric(stat, "cpu_used"),
        session_id=str(session.id),
        name=session.name,
        type=session.type.value,
        image=session.image,
        architecture=session.architecture,
        tag=session.tag,
        status=session.status.value,
        status_info=session.status_info,
        result=session.result.value,
        domain_name=session.domain_name,
        group_id=str(session.group_id),
        group_name=session.group_name,
        user_id=str(session.user_id),
        access_key=session.access_key,
        scaling_group=session.scaling_group,
        cluster_mode=session.cluster_mode.value,
        cluster_size=session.cluster_size,
        occupying_slots=session.occupying_slots.to_json(),
        requested_slots=session.requested_slots.to_json(),
        variant_requirements=list(session.variant_requirements),
        environ=dict(session.environ),
        resource_opts=dict(session.resource_opts),
        service_ports=service_ports(session.service_ports),
        startup_command=session.startup_command,
        created_at=session.created_at.isoformat(),
        started_at=iso(session.started_at),
        terminated_at=iso(session.terminated_at),
    )


def _metric(stat: Mapping[str, Any], name: str) -> int:
    metric = stat.get(name)
    current = metric.get("current") if isinstance(metric, Mapping) else None
    try:
        return int(float(current)) if current is not None else 0
    except (TypeError, ValueError):
        return 0


def dependency_tree(node: DependencyNode) -> dict[str, Any]:
    """``status`` as ``KernelStatus.X`` and the time without ``T``: so the published tree printer needs them."""
    session = node.session
    return {
        "session_id": str(session.id),
        "session_name": session.name,
        "status": f"KernelStatus.{session.status.value}",
        "status_changed": session.status_changed.astimezone(UTC).replace(tzinfo=None).isoformat(" "),
        "depends_on": [dependency_tree(child) for child in node.depends_on],
    }
