"""Determines what the engine and this runtime provide: tier, enforcement, capabilities."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ai.backend.common.states import Enforcement
from ai.backend.node.linux import seccomp
from ai.backend.plugin.runtime import RuntimeInfo
from ai.backend.runtime.docker.container_config import EngineFacts
from ai.backend.runtime.docker.settings import DockerRuntimeSettings

RUNTIME_VERSION = "1"
MIN_CDI_API_VERSION = (1, 44)
_RUNC_ALIASES = frozenset({"io.containerd.runc.v2", "io.containerd.runtime.v1.linux"})
"""Names under which the engine lists ``runc`` again."""
_INFO_FIELDS = {"cpu": "CpuCfsQuota", "memory": "MemoryLimit", "pids": "PidsLimit", "cpuset": "CPUSet"}


def engine_facts(engine_info: Mapping[str, Any], networks: Sequence[Mapping[str, Any]]) -> EngineFacts:
    """Returns what the engine supports, read from its own information (``/info``, ``/networks``)."""
    api_version = tuple(int(part) for part in str(engine_info["ApiVersion"]).split("."))
    network_names = {network["Name"] for network in networks}
    return EngineFacts(
        version=str(engine_info.get("ServerVersion", "")),
        cgroups=2 if str(engine_info.get("CgroupVersion")) == "2" else 1,
        cdi_directories=tuple(engine_info.get("CDISpecDirs") or ()) if api_version >= MIN_CDI_API_VERSION else (),
        network="bridge" if "bridge" in network_names else "none",
        limits=frozenset(
            limit_or_class for limit_or_class, info_field in _INFO_FIELDS.items() if engine_info.get(info_field)
        ),
        runtimes=tuple(
            sorted(
                limit_or_class
                for limit_or_class in engine_info.get("Runtimes") or ()
                if limit_or_class not in _RUNC_ALIASES
            )
        ),
        has_seccomp=any("name=seccomp" in option for option in engine_info.get("SecurityOptions") or ()),
    )


def why_unfit(engine_url: str, engine_info: Mapping[str, Any]) -> str:
    """Returns the reason that sessions cannot run on this engine, such as a remote host; empty if they can run."""
    security_options = engine_info.get("SecurityOptions") or ()
    if not engine_url.startswith("unix://"):
        return f"the engine at {engine_url} is not on this machine: only unix:// addresses are supported"
    if any("name=userns" in option or "name=rootless" in option for option in security_options):
        return "the engine gives containers other user ids (userns-remap or rootless), which is not supported"
    if engine_info.get("OSType", "linux") != "linux":
        return f"the engine runs {engine_info['OSType']} containers, and sessions need Linux"
    return ""


def describe(engine_facts: EngineFacts, settings: DockerRuntimeSettings, *, no_overlays: str = "") -> RuntimeInfo:
    """Returns the description (``RuntimeInfo``) of the Docker runtime on this node: its tier, limits and capabilities.

    See docs/reference/docker-runtime. ``no_overlays``: why networks cannot span nodes.
    """
    enforced, watched, not_enforced = Enforcement.ENFORCED, Enforcement.WATCHED, Enforcement.NONE
    is_root = os.geteuid() == 0
    network_mode = settings.network if settings.network != "auto" else engine_facts.network
    has_seccomp_filter = engine_facts.has_seccomp and (settings.seccomp == "engine" or seccomp.is_supported())
    return RuntimeInfo(
        name="docker",
        version=RUNTIME_VERSION,
        workload_type="container",
        runtime_classes=engine_facts.runtimes,
        tier="contained" if is_root else "contained-as-agent",
        enforcement={
            **{limit: enforced if limit in engine_facts.limits else not_enforced for limit in _INFO_FIELDS},
            "devices": enforced,
            "filesystem": enforced,
            "pid-namespace": enforced,
            "network": not_enforced if network_mode == "host" else enforced,
            "seccomp": enforced if has_seccomp_filter else not_enforced,
            "session-networks": enforced,
            "multi-node-networks": not_enforced if no_overlays else enforced,
            "home-size": watched,
        },
        capabilities=frozenset(
            {
                "exec", "files", "pty", "logs", "keep-home", "host-pids", "survives-agent", "mounts",
                "isolated-filesystem", "extra-gids", "networks", "session-networks", "ports",
                *(() if no_overlays else ("multi-node-networks",)),
            }
        ),
        no_multi_node_networks=no_overlays,
        cdi_directories=engine_facts.cdi_directories,
    )  # fmt: skip
