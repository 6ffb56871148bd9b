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

VERSION = "1"
CDI_API = (1, 44)
_ALIASES = frozenset({"io.containerd.runc.v2", "io.containerd.runtime.v1.linux"})
"""Names under which the engine lists ``runc`` again."""
_LIMITS = {"cpu": "CpuCfsQuota", "memory": "MemoryLimit", "pids": "PidsLimit", "cpuset": "CPUSet"}


def engine_facts(info: Mapping[str, Any], networks: Sequence[Mapping[str, Any]]) -> EngineFacts:
    """Reads the facts from the engine's information (``/info``, ``/networks``)."""
    api = tuple(int(part) for part in str(info["ApiVersion"]).split("."))
    names = {network["Name"] for network in networks}
    return EngineFacts(
        version=str(info.get("ServerVersion", "")),
        cgroups=2 if str(info.get("CgroupVersion")) == "2" else 1,
        cdi=api >= CDI_API and bool(info.get("CDISpecDirs")),
        network="bridge" if "bridge" in names else "none",
        limits=frozenset(name for name, field in _LIMITS.items() if info.get(field)),
        runtimes=tuple(sorted(name for name in info.get("Runtimes") or () if name not in _ALIASES)),
        has_seccomp=any("name=seccomp" in option for option in info.get("SecurityOptions") or ()),
    )


def why_unfit(host: str, info: Mapping[str, Any]) -> str:
    """Returns why sessions cannot run on this engine; empty if they can. Homes and channels are local directories."""
    options = info.get("SecurityOptions") or ()
    if not host.startswith("unix://"):
        return f"the engine at {host} is not on this machine: only unix:// addresses are supported"
    if any("name=userns" in option or "name=rootless" in option for option in options):
        return "the engine gives containers other user ids (userns-remap or rootless), which is not supported"
    if info.get("OSType", "linux") != "linux":
        return f"the engine runs {info['OSType']} containers, and sessions need Linux"
    return ""


def describe(facts: EngineFacts, settings: DockerRuntimeSettings, *, no_overlays: str = "") -> RuntimeInfo:
    """See docs/reference/docker-runtime. ``no_overlays`` says why networks cannot reach over several nodes."""
    enforced, watched, none = Enforcement.ENFORCED, Enforcement.WATCHED, Enforcement.NONE
    is_root = os.geteuid() == 0
    network = settings.network if settings.network != "auto" else facts.network
    filtered = facts.has_seccomp and (settings.seccomp == "engine" or seccomp.is_supported())
    return RuntimeInfo(
        name="docker",
        version=VERSION,
        workload_type="container",
        runtime_classes=facts.runtimes,
        tier="contained" if is_root else "contained-as-agent",
        enforcement={
            **{name: enforced if name in facts.limits else none for name in _LIMITS},
            "devices": enforced,
            "filesystem": enforced,
            "pid-namespace": enforced,
            "network": none if network == "host" else enforced,
            "seccomp": enforced if filtered else none,
            "session-networks": enforced,
            "multi-node-networks": none if no_overlays else enforced,
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
    )  # fmt: skip
