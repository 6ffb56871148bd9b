"""Builds the body of the engine's create call from a workload's specification; reads only device nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ai.backend.common.errors import CreationDenied
from ai.backend.node.linux import seccomp
from ai.backend.node.linux.open_beneath import BENEATH
from ai.backend.node.network.subnets import mac_of
from ai.backend.node.workload.mounts import RUNNER, check_mount
from ai.backend.plugin.accelerator import DeviceMapping, Mount
from ai.backend.plugin.runtime import HOME, WorkloadSpec
from ai.backend.runtime import workload
from ai.backend.runtime.docker import interpreter
from ai.backend.runtime.docker.images import ImageFacts
from ai.backend.runtime.docker.records import INSTANCE_LABEL, KEY_LABEL
from ai.backend.runtime.docker.settings import DockerRuntimeSettings

CHANNEL = "/opt/backend.ai/channel"
_TMPFS = "rw,exec,nosuid,nodev,mode=1777,size={}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Describes what the engine supports. ``cgroups`` is 1 or 2; ``cdi``: it injects devices by their CDI names."""

    version: str
    cgroups: int
    cdi: bool
    network: str
    limits: frozenset[str]
    has_seccomp: bool
    runtimes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPaths:
    """The paths on the host, and the session's user. ``files`` are mounted read-only by target; ``staged`` holds the
    places of mounts from beneath a folder by source."""

    home: Path
    channel: Path
    files: Mapping[str, Path]
    staged: Mapping[str, Path]
    interpreter: Path | None
    uid: int
    gid: int
    instance: str


def compose(
    spec: WorkloadSpec, image: ImageFacts, settings: DockerRuntimeSettings, engine: EngineFacts, scene: HostPaths
) -> dict[str, Any]:
    """Returns the body of ``POST /containers/create``. Raises CreationDenied."""
    networks = networks_of(spec, settings, engine)
    command = [image.python, "-I", "-S", f"{RUNNER}/relay/main.py", "--directory", CHANNEL]
    command += ["--replay-bytes", str(settings.replay_bytes), "--runtime", image.runtime, "--home", HOME]
    endpoint: dict[str, Any] = {} if networks[0] in ("none", "host", "bridge") else {"Aliases": [spec.hostname]}
    if spec.network is not None:
        address = spec.network.addresses[spec.hostname]
        endpoint |= {"IPAMConfig": {"IPv4Address": address}, "MacAddress": mac_of(address)}
    return {
        "Image": image.id,
        "Entrypoint": command,
        "Cmd": [],
        "User": f"{scene.uid}:{scene.gid}",
        "WorkingDir": HOME,
        "Env": [f"{name}={text}" for name, text in environment(spec, image).items()],
        "Labels": {**spec.labels, INSTANCE_LABEL: scene.instance, KEY_LABEL: str(spec.key)},
        **({} if networks[0] == "host" else {"Hostname": spec.hostname}),
        "StopSignal": "SIGTERM",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            **limits(spec, settings),
            **devices(spec.config.devices, engine),
            "NetworkMode": networks[0],
            **({"Runtime": spec.runtime_class} if spec.runtime_class else {}),
            "ExtraHosts": _peers(spec),
            "Mounts": [
                *_volumes(image, spec, settings),
                *_own_mounts(image, scene),
                *(_bind(mount, scene) for mount in spec.config.mounts),
            ],
            "Tmpfs": {place: _TMPFS.format(settings.tmp_bytes) for place in ("/tmp", "/var/tmp")},
            "ShmSize": spec.shmem_bytes or settings.shmem_bytes,
            "ReadonlyRootfs": settings.root_filesystem == "read-only",
            "GroupAdd": [str(gid) for gid in spec.config.extra_gids],
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", *_filter(spec, settings, engine)],
            "IpcMode": "private",
            "OomScoreAdj": workload.OOM_SCORE_ADJ,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file", "Config": {"max-size": str(settings.log_bytes), "max-file": "1"}},
            **({"CgroupParent": settings.cgroup_parent} if settings.cgroup_parent else {}),
        },
        "NetworkingConfig": {"EndpointsConfig": {networks[0]: endpoint} if endpoint else {}},
    }


def networks_of(spec: WorkloadSpec, settings: DockerRuntimeSettings, engine: EngineFacts) -> tuple[str, ...]:
    """Returns the container's networks: the session's own and those of plugins, or else the default one."""
    if spec.network is not None:
        return spec.network.network_id, *(n for n in spec.config.networks if n not in ("none", "host"))
    return tuple(spec.config.networks) or (settings.network if settings.network != "auto" else engine.network,)


def _peers(spec: WorkloadSpec) -> list[str]:
    """Returns lines for /etc/hosts about the session's other kernels. The engine adds the own name itself."""
    addresses = {} if spec.network is None else spec.network.addresses
    return [f"{host}:{address}" for host, address in addresses.items() if host != spec.hostname]


def environment(spec: WorkloadSpec, image: ImageFacts) -> dict[str, str]:
    """Returns the runner's variables besides the image's own, which only its identity overrides."""
    defaults = {"LANG": "C.UTF-8", "TERM": "xterm-256color", "SHELL": image.shell, "TMPDIR": "/tmp"}
    defaults = {name: text for name, text in defaults.items() if name not in image.environ}
    return workload.environment(spec, defaults, {"HOME": HOME})


def limits(spec: WorkloadSpec, settings: DockerRuntimeSettings) -> dict[str, Any]:
    """Returns control groups and limits of one process as fields of HostConfig."""
    config = spec.config
    of_one = {
        "core": 0,
        "nofile": settings.open_files,
        "memlock": settings.locked_memory_bytes,
        "fsize": spec.home_bytes or settings.home_bytes,
    }
    fields: dict[str, Any] = {
        "PidsLimit": spec.pids or settings.default_pids,
        "Ulimits": [{"Name": name, "Soft": n, "Hard": n} for name, n in of_one.items() if n is not None],
    }
    if config.cpu_limit is not None:
        fields["NanoCpus"] = round(config.cpu_limit * 1e9)
    if config.memory_limit_bytes is not None:
        fields |= {"Memory": config.memory_limit_bytes, "MemorySwap": config.memory_limit_bytes}
    if config.cpuset:
        fields["CpusetCpus"] = ",".join(map(str, config.cpuset))
    if config.memory_nodes:
        fields["CpusetMems"] = ",".join(map(str, config.memory_nodes))
    return fields


def devices(requested: Sequence[DeviceMapping], engine: EngineFacts) -> dict[str, Any]:
    """Returns device nodes and requests. CDI names go to an engine that supports CDI; else the device's node is used.

    An NVIDIA device by its CDI name is a request to NVIDIA's own driver where the engine does not know CDI. Raises
    CreationDenied for what is no device, is not there, or cannot be had by this engine.
    """
    nodes: list[dict[str, str]] = []
    cdi: list[str] = []
    nvidia: list[str] = []
    for device in requested:
        name = device.cdi_name or ""
        if name and engine.cdi:
            cdi.append(name)
        elif device.source:
            target, permissions = device.target or device.source, workload.device_node(device)[1]
            nodes.append({"PathOnHost": device.source, "PathInContainer": target, "CgroupPermissions": permissions})
        elif name.startswith("nvidia.com/gpu="):
            nvidia.append(name.partition("=")[2])
        else:
            data = {"field": "devices", "key": name}
            raise CreationDenied(f"this node's engine has no CDI, and {name!r} names no device node", data=data)
    requests: list[dict[str, Any]] = []
    if cdi:
        requests.append({"Driver": "cdi", "DeviceIDs": cdi})
    if nvidia:
        capabilities = [["gpu", "compute", "utility", "video", "graphics", "display"]]
        requests.append({"Driver": "nvidia", "DeviceIDs": nvidia, "Capabilities": capabilities})
    return {"Devices": nodes, "DeviceRequests": requests}


def _volumes(image: ImageFacts, spec: WorkloadSpec, settings: DockerRuntimeSettings) -> list[dict[str, Any]]:
    """Returns memory mounts in place of the image's volumes, which would be directories without a limit."""
    options = {"SizeBytes": settings.tmp_bytes, "Mode": 0o1777}
    taken = {HOME, *(mount.target for mount in spec.config.mounts)}
    free = [place for place in image.volumes if place not in taken]
    return [{"Type": "tmpfs", "Target": place, "TmpfsOptions": options} for place in free]


def _own_mounts(image: ImageFacts, scene: HostPaths) -> list[dict[str, Any]]:
    mounts = [
        _mount(str(scene.home), HOME, read_only=False),
        _mount(image.runner, RUNNER, read_only=True),
        _mount(str(scene.channel), CHANNEL, read_only=False),
    ]
    if image.injected:
        if scene.interpreter is None:
            raise CreationDenied("the agent's interpreter for images without Python is not installed any more")
        mounts.append(_mount(str(scene.interpreter), interpreter.PLACE, read_only=True))
    return mounts + [_mount(str(path), target, read_only=True) for target, path in scene.files.items()]


def _bind(mount: Mount, scene: HostPaths) -> dict[str, Any]:
    check_mount(mount, staged=True)
    source = str(scene.staged[mount.source]) if BENEATH in mount.source else mount.source
    return _mount(source, mount.target, read_only=mount.read_only)


def _mount(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    how = {"Propagation": "rprivate"}
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only, "BindOptions": how}


def _filter(spec: WorkloadSpec, settings: DockerRuntimeSettings, engine: EngineFacts) -> list[str]:
    """Returns our allow-list with the calls of plugins; none if the engine filters nothing."""
    if not engine.has_seccomp:
        return []
    if settings.seccomp == "auto" and seccomp.is_supported():
        return ["seccomp=" + json.dumps(seccomp.profile(spec.config.extra_syscalls))]
    if spec.config.extra_syscalls:
        key = spec.config.extra_syscalls[0]
        data = {"field": "extra_syscalls", "key": key}
        raise CreationDenied(f"the engine's own filter cannot be opened for {key!r}", data=data)
    return []
