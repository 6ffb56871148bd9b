"""Converts requests and replies of sessions from and to the form of the REST API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec

from ai.backend.infra.http.fields import duration_s, iso, port_number
from ai.backend.infra.http.routes import Call
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.sessions.model import CreateReply, CreateSession, DependencyNode, Session
from ai.backend.manager.sessions.schemas import (
    CreatedSession,
    CreateSessionBody,
    DependencyTree,
    ServicePort,
    SessionInfo,
)

_MIB = 1_048_576


_COPIED_FIELDS = set(CreateSession.__struct_fields__) & {*CreateSessionBody.__struct_fields__} - {"dependencies"}


class SessionArguments(TypedDict):
    """The arguments that select a session in the methods of services."""

    caller: Caller
    ref: str
    owner_access_key: str | None


def session_of(call: Call[Any, Any]) -> SessionArguments:
    """Returns the caller, session reference and owner that the path and query of a call name."""
    return {"caller": caller_of(call), "ref": call.params["s"], "owner_access_key": call.owner_access_key}


def creation_of(body: CreateSessionBody) -> CreateSession:
    """Returns the creation request in the form that the service takes."""
    config = body.config
    copied_fields: dict[str, Any] = {name: getattr(body, name) for name in _COPIED_FIELDS}
    return CreateSession(
        **copied_fields,
        batch_timeout_s=duration_s(body.batch_timeout),
        exec_timeout_s=body.exec_timeout,
        dependencies=tuple(body.dependencies),
        environ=config.environ,
        resources=_requested_slots(body),
        variant_requirements=tuple(config.variant_requirements),
        device_requests=tuple(config.device_requests),
        plugin_options=config.plugin_options,
        diagnosed_devices=config.diagnosed_devices,
        resource_opts={name: str(value) for name, value in config.resource_opts.items()},
        mounts=tuple(config.mounts),
        mount_map=config.mount_map,
        mount_options={
            name: msgspec.structs.asdict(mount_option) for name, mount_option in config.mount_options.items()
        },
        claim=config.claim,
        scaling_group=config.scaling_group,
        preopen_ports=tuple(port_number(port) for port in config.preopen_ports),
        agent_list=tuple(config.agent_list),
    )


def audited_fields(request: CreateSession) -> dict[str, Any]:
    """Returns the part of a creation request for the audit trail: the devices that an administrator diagnoses."""
    if not request.diagnosed_devices:
        return {}
    devices = {name: list(device_ids) for name, device_ids in request.diagnosed_devices.items()}
    return {"agents": list(request.agent_list), "diagnosed_devices": devices}


def _requested_slots(body: CreateSessionBody) -> Mapping[str, str | int | float] | None:
    """Returns the requested slots; a deprecated field counts only if the request does not name its slot."""
    config = body.config
    legacy_slots: dict[str, str | int | float] = {}
    if config.instanceCores is not None:
        legacy_slots["cpu"] = config.instanceCores
    if config.instanceMemory is not None:
        legacy_slots["mem"] = config.instanceMemory * _MIB
    if config.instanceGPUs:
        gpu_count = config.instanceGPUs.is_integer()
        legacy_slots["cuda.device" if gpu_count else "cuda.shares"] = (
            int(config.instanceGPUs) if gpu_count else config.instanceGPUs
        )
    return config.resources if not legacy_slots else {**legacy_slots, **(config.resources or {})}


def service_ports(ports: Iterable[Mapping[str, Any]]) -> list[ServicePort]:
    """Returns the Service Port Objects (spec 03-07)."""
    return [
        ServicePort(
            name=str(port["name"]),
            protocol=str(port.get("protocol", "tcp")),
            ports=[int(port) for port in port.get("container_ports") or port.get("ports") or ()],
        )
        for port in ports
    ]


def created_session(reply: CreateReply, *, enqueue_only: bool) -> CreatedSession:
    """Returns the reply to a creation; a request that is only queued is PENDING whatever happens meanwhile (spec
    03-08)."""
    session = reply.session
    is_queued = enqueue_only and reply.created
    return CreatedSession(
        sessionId=str(session.id),
        sessId=session.name,
        name=session.name,
        status="PENDING" if is_queued else reply.status,
        status_info=session.status_info,
        servicePorts=[] if is_queued else service_ports(session.service_ports),
        created=reply.created,
    )


_INFO_TEXTS = (
    *("name", "type", "image", "architecture", "status", "result", "domain_name", "group_id", "group_name", "user_id"),
    *("access_key", "scaling_group", "cluster_mode"),
)


def session_info(session: Session, *, now: datetime | None = None) -> SessionInfo:
    """Returns the reply of ``GET /session/{s}``; statistics are as fresh as the agent's last report."""
    end_time = session.terminated_at or now or datetime.now(UTC)
    stat = session.main.live_stat or session.main.last_stat or {}
    text_fields: dict[str, Any] = {name: str(getattr(session, name)) for name in _INFO_TEXTS}
    return SessionInfo(
        **text_fields,
        lang=session.image.rpartition("/")[2].partition(":")[0],
        age=max(0, int((end_time - (session.started_at or session.created_at)).total_seconds() * 1000)),
        memory_limit=int(session.requested_slots["mem"]) // 1024,
        num_queries_executed=session.num_queries,
        cpu_credit_used=_metric(stat, "cpu_used"),
        session_id=str(session.id),
        tag=session.tag,
        status_info=session.status_info,
        cluster_size=session.cluster_size,
        occupying_slots=session.occupying_slots.to_json(),
        requested_slots=session.requested_slots.to_json(),
        variant_requirements=list(session.variant_requirements),
        device_requests=list(session.device_requests),
        plugin_options={name: dict(options) for name, options in session.plugin_options.items()},
        claim=session.claim_name,
        diagnosed_devices={name: list(device_ids) for name, device_ids in session.diagnosed_devices.items()},
        environ=dict(session.environ),
        resource_opts=dict(session.resource_opts),
        service_ports=service_ports(session.service_ports),
        startup_command=session.startup_command,
        created_at=session.created_at.isoformat(),
        started_at=iso(session.started_at),
        terminated_at=iso(session.terminated_at),
    )


_CONTAINER_STATS = {
    "cpu_used": ("cpu_used", "current"),
    "mem_max_bytes": ("mem", "stats.max"),
    "mem_cur_bytes": ("mem", "current"),
    "net_rx_bytes": ("net_rx", "stats.total"),
    "net_tx_bytes": ("net_tx", "stats.total"),
    "io_read_bytes": ("io_read", "current"),
    "io_write_bytes": ("io_write", "current"),
    "io_max_scratch_size": ("io_scratch_size", "stats.max"),
    "io_cur_scratch_size": ("io_scratch_size", "current"),
}


def container_stats(metrics: Mapping[str, Any]) -> dict[str, int]:
    """Returns the Container Stats Object (spec 03-07:581), in which a statistic that was not measured is zero.

    The manual's second ``io_write_bytes``, after ``io_max_scratch_size``, is the present size of the scratch
    directory.
    """
    return {name: _metric(metrics, key, value_name) for name, (key, value_name) in _CONTAINER_STATS.items()}


def _metric(metrics: Mapping[str, Any], key: str, value_name: str = "current") -> int:
    try:
        return int(float(metrics[key][value_name]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0


def dependency_tree(node: DependencyNode) -> DependencyTree:
    """Returns a tree with the status as ``KernelStatus.X`` and times without ``T``, as the published tree printer
    needs."""
    session = node.session
    return {
        "session_id": str(session.id),
        "session_name": session.name,
        "status": f"KernelStatus.{session.status.value}",
        "status_changed": session.status_changed.astimezone(UTC).replace(tzinfo=None).isoformat(" "),
        "depends_on": [dependency_tree(child) for child in node.depends_on],
    }
