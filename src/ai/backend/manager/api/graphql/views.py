"""Objects of the manager as GraphQL tells them.

The rules are the published client's (wire contract 3.3): a ``JSONString`` that may not be null is ``"{}"`` when empty,
a list is never null, ``shmem`` is plain bytes, and what only superadmins may see is null for others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from msgspec import to_builtins

from ai.backend.common.errors import InvalidQuantity
from ai.backend.common.slots import BinarySize, ResourceSlot, format_quantity
from ai.backend.manager.model.cluster import Agent, Image, OfferedVariant, ResourcePreset
from ai.backend.manager.model.folder import FolderRow, ScopeUsage
from ai.backend.manager.model.identity import (
    Caller,
    Domain,
    Group,
    Keypair,
    ResourceGroup,
    ResourcePolicy,
    StoragePolicy,
    User,
)
from ai.backend.manager.model.session import Holding, Kernel, Session

View = dict[str, Any]


def slots_json(slots: ResourceSlot) -> str:
    return json.dumps(slots.to_json())


def json_or_null(value: Any) -> str | None:
    return json.dumps(value, default=str) if value else None


def resource_opts(options: Mapping[str, str]) -> str:
    """Sizes as plain bytes, which is what the published client can print."""
    told = dict(options)
    if "shmem" in told:
        try:
            told["shmem"] = str(int(BinarySize.parse(told["shmem"])))
        except InvalidQuantity:
            told.pop("shmem")
    return json.dumps(told)


def split_image(canonical: str) -> tuple[str, str, str]:
    """Registry, name and tag of an image's full name; the registry is empty for the images of a node.

    >>> split_image("cr.example.org:5000/stable/python:3.11")
    ('cr.example.org:5000', 'stable/python', '3.11')
    >>> split_image("python:3.11")
    ('', 'python', '3.11')
    """
    registry, slash, rest = canonical.partition("/")
    if not slash or not ("." in registry or ":" in registry or registry == "localhost"):
        registry, rest = "", canonical
    head, _, last = rest.rpartition("/")
    name, _, tag = last.partition(":")
    return registry, f"{head}/{name}" if head else name, tag


def session_view(session: Session, caller: Caller) -> View:
    registry, _, _ = split_image(session.image)
    agents = list(session.agent_ids) if caller.sees_all else []
    occupying = slots_json(session.occupying_slots)
    return {
        "id": session.id,
        "main_kernel_id": session.main.id,
        "tag": session.tag,
        "name": session.name,
        "type": session.type.value,
        "image": session.image,
        "architecture": session.architecture,
        "registry": registry,
        "cluster_template": None,
        "cluster_mode": session.cluster_mode.value,
        "cluster_size": session.cluster_size,
        "runtime_class": session.runtime_class or None,
        "domain_name": session.domain_name,
        "group_name": session.group_name,
        "group_id": session.group_id,
        "agent_ids": agents,
        "agents": agents,
        "user_email": session.user_email,
        "full_name": None,
        "user_id": session.user_id,
        "access_key": session.access_key,
        "created_user_email": session.user_email if session.created_by == session.access_key else None,
        "created_user_id": session.user_id if session.created_by == session.access_key else None,
        "created_user_uuid": session.user_id if session.created_by == session.access_key else None,
        "status": session.status.value,
        "status_info": session.status_info,
        "status_data": json_or_null(session.status_data),
        "status_history": json.dumps(dict(session.status_history)),
        "status_changed": session.status_changed,
        "created_at": session.created_at,
        "scheduled_at": session.scheduled_at,
        "starts_at": session.starts_at,
        "started_at": session.started_at,
        "terminated_at": session.terminated_at,
        "startup_command": session.startup_command,
        "result": session.result.value,
        "resource_opts": resource_opts(session.resource_opts),
        "scaling_group": session.scaling_group,
        "service_ports": json.dumps([dict(port) for port in session.service_ports]),
        "mounts": list(session.mounts),
        "vfolder_mounts": list(session.mounts),
        "requested_slots": slots_json(session.requested_slots),
        "variant_requirements": list(session.variant_requirements),
        "occupying_slots": occupying,
        "occupied_slots": occupying,
        "num_queries": session.num_queries,
        "containers": [kernel_view(kernel, session, caller) for kernel in session.kernels],
        "dependency_ids": session.dependencies,
        "abusing_reports": [],
    }


def kernel_view(kernel: Kernel, session: Session | None, caller: Caller) -> View:
    registry, _, _ = split_image(kernel.image)
    return {
        "id": kernel.id,
        "role": kernel.cluster_role,
        "cluster_role": kernel.cluster_role,
        "cluster_idx": kernel.cluster_idx,
        "local_rank": kernel.local_rank,
        "hostname": kernel.cluster_hostname,
        "cluster_hostname": kernel.cluster_hostname,
        "session_id": kernel.session_id,
        "image": kernel.image,
        "architecture": kernel.architecture,
        "registry": registry,
        "status": kernel.status.value,
        "status_info": kernel.status_info,
        "status_data": json_or_null(kernel.status_data),
        "status_changed": kernel.status_changed,
        "created_at": kernel.created_at,
        "started_at": kernel.started_at,
        "terminated_at": kernel.terminated_at,
        "agent": kernel.agent if caller.sees_all else None,
        "container_id": kernel.container_id,
        "exit_code": kernel.exit_code,
        "attached_devices": json.dumps(dict(kernel.attached_devices), default=str),
        "resource_opts": resource_opts(session.resource_opts if session is not None else {}),
        "occupied_slots": slots_json(kernel.holds),
        "preopen_ports": list(session.preopen_ports) if session is not None else [],
        "live_stat": json_or_null(kernel.live_stat),
        "last_stat": json_or_null(kernel.last_stat),
    }


def keypair_view(keypair: Keypair) -> View:
    return {
        "user_id": keypair.user_email,
        "user": keypair.user_id,
        "user_info": {"email": keypair.user_email, "full_name": keypair.user_full_name},
        "access_key": keypair.access_key,
        "secret_key": None,
        "is_active": keypair.is_active,
        "is_admin": keypair.is_admin,
        "created_at": keypair.created_at,
        "modified_at": keypair.modified_at,
        "last_used": keypair.last_used,
        "resource_policy": keypair.resource_policy,
        "rate_limit": keypair.rate_limit,
        "num_queries": keypair.num_queries,
        "concurrency_used": keypair.concurrency_used,
        "ssh_public_key": keypair.ssh_public_key,
        "ssh_private_key": None,
    }


def policy_view(policy: ResourcePolicy) -> View:
    return {
        "name": policy.name,
        "created_at": policy.created_at,
        "default_for_unspecified": policy.default_for_unspecified,
        "total_resource_slots": slots_json(policy.total_resource_slots),
        "max_session_lifetime": policy.max_session_lifetime,
        "max_concurrent_sessions": policy.max_concurrent_sessions,
        "max_containers_per_session": policy.max_containers_per_session,
        "max_pending_session_count": policy.max_pending_session_count,
        "max_pending_session_resource_slots": slots_json(policy.max_pending_session_resource_slots),
        "idle_timeout": policy.idle_timeout,
        "max_vfolder_count": policy.max_vfolder_count,
        "max_vfolder_size": policy.max_vfolder_size,
        "allowed_vfolder_hosts": json.dumps(dict(policy.allowed_vfolder_hosts)),
    }


def storage_policy_view(policy: StoragePolicy) -> View:
    return {
        "id": policy.name,
        "name": policy.name,
        "created_at": policy.created_at,
        "max_vfolder_count": policy.max_vfolder_count,
        "max_quota_scope_size": policy.max_quota_scope_size,
    }


def quota_scope_view(host: str, scope: str, usage: ScopeUsage) -> View:
    """``hard_limit_bytes`` null is no limit; ``enforcement`` says whether the volume or the proxy sees to it."""
    return {
        "id": f"{scope}:{host}",
        "quota_scope_id": scope,
        "storage_host_name": host,
        "details": {
            "usage_bytes": usage.used_bytes,
            "usage_count": usage.file_count,
            "hard_limit_bytes": usage.limit_bytes,
            "enforcement": usage.enforcement,
        },
    }


def user_view(user: User) -> View:
    return {
        "uuid": user.uuid,
        "id": user.uuid,
        "username": user.username,
        "email": user.email,
        "need_password_change": user.need_password_change,
        "full_name": user.full_name,
        "description": user.description,
        "is_active": user.is_active,
        "status": user.status,
        "status_info": user.status_info,
        "created_at": user.created_at,
        "modified_at": user.modified_at,
        "domain_name": user.domain_name,
        "role": user.role.value,
        "groups": [{"id": group.id, "name": group.name} for group in user.groups],
        "allowed_client_ip": list(user.allowed_client_ip) or None,
        "totp_activated": False,
        "sudo_session_enabled": False,
        "main_access_key": user.main_access_key,
        "resource_policy": user.resource_policy,
    }


def domain_view(domain: Domain) -> View:
    return {
        "name": domain.name,
        "description": domain.description,
        "is_active": domain.is_active,
        "created_at": domain.created_at,
        "modified_at": domain.created_at,
        "total_resource_slots": slots_json(domain.total_resource_slots),
        "allowed_vfolder_hosts": json.dumps(domain.allowed_vfolder_hosts),
        "allowed_docker_registries": list(domain.allowed_docker_registries or ()),
        "integration_id": domain.integration_id,
    }


def folder_view(row: FolderRow) -> View:
    """What is in a folder its proxy would have to count, so a list says nothing about it."""
    folder = row.folder
    return {
        "id": folder.id,
        "host": folder.host,
        "quota_scope_id": folder.quota_scope,
        "name": folder.name,
        "user": folder.user_id,
        "user_email": row.owner_email,
        "group": folder.group_id,
        "group_name": row.group_name,
        "creator": folder.creator,
        "status": folder.status.value,
        "unmanaged_path": folder.unmanaged_path,
        "usage_mode": folder.usage_mode.value,
        "permission": folder.permission.value,
        "ownership_type": folder.ownership_type.value,
        "max_files": 0,
        "max_size": folder.max_size,
        "created_at": folder.created_at,
        "last_used": folder.last_used,
        "num_files": 0,
        "cur_size": 0,
        "cloneable": folder.cloneable,
    }


def group_view(group: Group) -> View:
    return {
        "id": group.id,
        "name": group.name,
        "description": group.description,
        "is_active": group.is_active,
        "created_at": group.created_at,
        "modified_at": group.created_at,
        "domain_name": group.domain_name,
        "total_resource_slots": slots_json(group.total_resource_slots),
        "allowed_vfolder_hosts": json.dumps(group.allowed_vfolder_hosts),
        "integration_id": group.integration_id,
        "type": group.type.value,
        "resource_policy": group.resource_policy,
    }


def resource_group_view(group: ResourceGroup, caller: Caller) -> View:
    visible = caller.is_any_admin
    return {
        "name": group.name,
        "description": group.description,
        "is_active": group.is_active,
        "is_public": group.is_public,
        "created_at": group.created_at,
        "driver": group.driver,
        "driver_opts": json.dumps(dict(group.driver_opts)) if visible else None,
        "scheduler": group.scheduler,
        "scheduler_opts": json.dumps(dict(group.scheduler_opts)) if visible else None,
        "use_host_network": group.use_host_network,
        "wsproxy_addr": group.wsproxy_addr,
        "wsproxy_api_token": None,
    }


def preset_view(preset: ResourcePreset) -> View:
    return {
        "name": preset.name,
        "resource_slots": slots_json(preset.resource_slots),
        "shared_memory": preset.shared_memory,
    }


_PUBLISHED_UNITS = {"percent": "pct", "celsius": "Celsius", **{u: u for u in ("pct", "Celsius", "bytes", "bps")}}


def published_units(live_stat: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """An agent's statistics in the units that published clients know there (wire contract, Agent).

    They crash on any other, so such a metric is told as a percentage, with its own unit as ``unit``.
    """
    if live_stat is None:
        return None

    def renamed(metric: Mapping[str, Any]) -> dict[str, Any]:
        unit = str(metric.get("unit_hint"))
        known = _PUBLISHED_UNITS.get(unit)
        return {**metric, "unit_hint": known} if known is not None else {**metric, "unit_hint": "pct", "unit": unit}

    return {
        "node": {key: renamed(metric) for key, metric in live_stat.get("node", {}).items()},
        "devices": {
            key: {device: renamed(metric) for device, metric in of.items()}
            for key, of in live_stat.get("devices", {}).items()
        },
    }


def agent_view(agent: Agent) -> View:
    total, used = agent.available_slots, agent.occupied_slots
    node = (agent.live_stat or {}).get("node", {})
    return {
        "id": agent.id,
        "status": agent.status.value,
        "status_changed": agent.status_changed,
        "region": agent.region,
        "architecture": agent.architecture,
        "scaling_group": agent.scaling_group,
        "schedulable": agent.schedulable,
        "available_slots": slots_json(total),
        "occupied_slots": slots_json(used),
        "addr": agent.addr,
        "first_contact": agent.first_contact,
        "lost_at": agent.lost_at,
        "live_stat": json_or_null(published_units(agent.live_stat)),
        "version": agent.version,
        "runtime": agent.runtime,
        "tier": agent.tier,
        "overlay": json.dumps(to_builtins(agent.overlay)) if agent.overlay is not None else None,
        "runtime_classes": json.dumps([to_builtins(one) for one in agent.runtime_classes]),
        "location": agent.location,
        "max_kernels": agent.kernel_limit,
        "enforcement": json.dumps({name: str(word) for name, word in agent.enforcement.items()}),
        "compute_plugins": json.dumps({name: dict(info) for name, info in agent.compute_plugins.items()}, default=str),
        "hardware_metadata": json.dumps(
            {
                p.name: {
                    "status": "healthy" if p.healthy else "unavailable",
                    "status_info": p.reason,
                    "metadata": p.info,
                }
                for p in agent.plugins
            }
        ),
        "local_config": None,
        "devices": agent.devices,
        "cpu_cur_pct": _current(node, "cpu_util"),
        "mem_cur_bytes": _current(node, "mem"),
        "mem_slots": int(total["mem"]),
        "cpu_slots": float(total["cpu"]),
        "gpu_slots": float(total["cuda.device"] or total["cuda.shares"]),
        "tpu_slots": float(total["tpu.device"]),
        "used_mem_slots": int(used["mem"]),
        "used_cpu_slots": float(used["cpu"]),
        "used_gpu_slots": float(used["cuda.device"] or used["cuda.shares"]),
        "used_tpu_slots": float(used["tpu.device"]),
    }


def devices_json(devices: Sequence[Mapping[str, Any]], holdings: Sequence[Holding]) -> str:
    """Devices as their plugins told of them, with ``allocated``: slot -> what kernels hold of it there."""
    allocated: dict[tuple[str, str], Decimal] = {}
    for holding in holdings:
        for slot, per_device in holding.devices.items():
            for device_id, quantity in per_device.items():
                allocated[slot, device_id] = allocated.get((slot, device_id), Decimal(0)) + Decimal(quantity)

    def held(device: Mapping[str, Any]) -> dict[str, str]:
        device_id, names = str(device.get("device_id")), [str(s.get("slot_name")) for s in device.get("slots", ())]
        return {name: format_quantity(allocated[name, device_id]) for name in names if (name, device_id) in allocated}

    return json.dumps([{**device, "allocated": held(device)} for device in devices], default=str)


def variant_view(variant: OfferedVariant) -> View:
    return {**variant.to_json(), "devices": json.dumps(dict(variant.devices))}


def _current(node: Mapping[str, Any], name: str) -> float:
    metric = node.get(name)
    try:
        return float(metric["current"]) if metric else 0.0
    except (KeyError, TypeError, ValueError):
        return 0.0


def image_view(image: Image, caller: Caller) -> View:
    registry, name, tag = split_image(image.name)
    return {
        "id": image.name,
        "name": name,
        "humanized_name": f"{name} {tag}".strip(),
        "tag": tag,
        "registry": registry,
        "architecture": image.architecture,
        "digest": image.digest,
        "labels": [{"key": key, "value": value} for key, value in image.labels.items()],
        "aliases": list(image.aliases),
        "size_bytes": image.size_bytes,
        "resource_limits": _limits(image),
        "supported_accelerators": _words(image.labels.get("ai.backend.accelerators")),
        "installed": bool(image.agents),
        "installed_agents": list(image.agents) if caller.sees_all else None,
    }


def _limits(image: Image) -> list[View]:
    """The least that the image needs of each slot; there is no upper bound (spec 03-09, ResourceLimit)."""
    return [{"key": name, "min": format_quantity(value), "max": "Infinity"} for name, value in image.min_slots.items()]


def _words(text: str | None) -> Sequence[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]
