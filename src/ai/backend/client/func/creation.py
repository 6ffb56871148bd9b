"""Builds the request for a new session, before there is a connection to send it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from ai.backend.client.config import APIConfig
from ai.backend.client.wire import Call, new_token


class CreateOptions(TypedDict, total=False):
    """Parameters of a new session beyond its image (client wire contract 2.1.1).

    ``resources`` maps slots to quantities, such as ``{"cpu": 1, "mem": "256m"}``. ``variant_requirements`` say what the
    devices must be, such as ``["nvidia::compute_capability::8.0"]``; ``device_requests`` say it as expressions, which
    are alternatives in order, such as ``['model == "H100"', 'memory >= 40g && amount("cuda.device", 2)']``; an amount
    takes the place of the one in ``resources``. ``plugin_options`` are what it says to accelerator plugins, such as
    ``{"fpga": {"image": "fft.bit"}}``. ``claim`` is the name of a device claim, whose devices the session gets in place
    of accelerators in ``resources``. ``diagnosed_devices``, for superadmins, are devices of the one agent in
    ``assign_agent`` that it sees without holding them, such as ``{"cuda": ["GPU-5a7c"]}``. ``mounts`` are names or ids
    of virtual folders, ``mount_map`` says where one is seen, ``mount_options`` maps one to ``{"permission": "ro"}``.
    ``max_wait`` is in seconds, zero waits without limit. ``client_token`` is the older word for ``name``.
    ``bootstrap_script`` is the script itself.
    """

    name: str | None
    client_token: str | None
    type_: str
    tag: str | None
    batch_timeout: str | float | None
    starts_at: str | None
    enqueue_only: bool
    max_wait: int
    no_reuse: bool
    dependencies: Sequence[str] | None
    priority: int | None
    callback_url: str | None
    mounts: Sequence[str] | None
    mount_map: Mapping[str, str] | None
    mount_options: Mapping[str, Mapping[str, str | None]] | None
    envs: Mapping[str, str] | None
    startup_command: str | None
    resources: Mapping[str, str | int | float] | None
    variant_requirements: Sequence[str] | None
    device_requests: Sequence[str] | None
    plugin_options: Mapping[str, Mapping[str, Any]] | None
    claim: str | None
    diagnosed_devices: Mapping[str, Sequence[str]] | None
    resource_opts: Mapping[str, str | int | bool] | None
    cluster_size: int
    cluster_mode: str
    runtime_class: str
    domain_name: str | None
    group_name: str | None
    bootstrap_script: str | None
    architecture: str | None
    scaling_group: str | None
    owner_access_key: str | None
    preopen_ports: Sequence[int] | None
    assign_agent: Sequence[str] | None


def creation_call(config: APIConfig, image: str, **options: Unpack[CreateOptions]) -> Call:
    """Returns the call that creates a session. Its token makes repeated calls create only one session."""
    creation_config: dict[str, Any] = {
        "mounts": [*config.vfolder_mounts, *(options.get("mounts") or ())],
        "mount_map": dict(options.get("mount_map") or {}),
        "environ": dict(options.get("envs") or {}),
        "resources": {slot: str(amount) for slot, amount in (options.get("resources") or {}).items()},
        "resource_opts": dict(options.get("resource_opts") or {}),
        "scalingGroup": options.get("scaling_group"),
        "preopen_ports": [str(port) for port in options.get("preopen_ports") or ()],
    }
    # Older servers do not know these: they are sent only if they say something.
    mount_options = {name: dict(mount_values) for name, mount_values in (options.get("mount_options") or {}).items()}
    optional_config = {
        "mount_options": mount_options,
        "variant_requirements": list(options.get("variant_requirements") or ()),
        "device_requests": list(options.get("device_requests") or ()),
        "plugin_options": {
            name: dict(plugin_values) for name, plugin_values in (options.get("plugin_options") or {}).items()
        },
        "claim": options.get("claim"),
        "diagnosed_devices": {
            name: list(device_ids) for name, device_ids in (options.get("diagnosed_devices") or {}).items()
        },
        "agentList": list(options.get("assign_agent") or ()),
    }
    creation_config |= {name: value for name, value in optional_config.items() if value}
    body = {
        "name": options.get("name") or options.get("client_token") or f"pysdk-{uuid.uuid4().hex[:12]}",
        "image": image,
        "type": options.get("type_", "interactive"),
        "tag": options.get("tag"),
        "domain": options.get("domain_name") or config.domain,
        "group": options.get("group_name") or config.group,
        "architecture": options.get("architecture"),
        "clusterSize": options.get("cluster_size", 1),
        "clusterMode": options.get("cluster_mode", "single-node"),
        "enqueueOnly": options.get("enqueue_only", False),
        "maxWaitSeconds": options.get("max_wait", 0),
        "reuseIfExists": not options.get("no_reuse", False),
        "startupCommand": options.get("startup_command"),
        "bootstrap_script": options.get("bootstrap_script"),
        "starts_at": options.get("starts_at"),
        "dependencies": list(options.get("dependencies") or ()),
        "callback_url": options.get("callback_url"),
        "owner_access_key": options.get("owner_access_key"),
        "config": creation_config,
    }
    optional_fields: dict[str, Any] = {
        "batchTimeout": options.get("batch_timeout"),
        "runtimeClass": options.get("runtime_class") or None,
        "priority": options.get("priority"),
    }
    body |= {name: value for name, value in optional_fields.items() if value is not None}
    return Call(method="POST", path="/session", json=body, repeatable=True, token=new_token())
