"""Builds the body of the engine's create call from a workload's specification.

Reads only device nodes and CDI specifications.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ai.backend.common.errors import CreationDenied
from ai.backend.node.cdi.registry import CdiRegistry
from ai.backend.node.linux import seccomp
from ai.backend.node.linux.open_beneath import BENEATH
from ai.backend.node.network.overlay import mac_of
from ai.backend.node.workload.file_trees import RUNNER, SU_EXEC, check_ipc, check_mount
from ai.backend.plugin.accelerator import DeviceMapping, Mount
from ai.backend.plugin.runtime import HOME, WorkloadSpec
from ai.backend.runtime import workload
from ai.backend.runtime.docker import interpreter
from ai.backend.runtime.docker.images import ImageFacts
from ai.backend.runtime.docker.records import INSTANCE_LABEL, KEY_LABEL
from ai.backend.runtime.docker.settings import DockerRuntimeSettings

CHANNEL_FOLDER = "/opt/backend.ai/channel"
_TMPFS_OPTIONS = "rw,exec,nosuid,nodev,mode=1777,size={}"


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the version, the limits and the features that a container engine supports.

    ``cgroups`` is 1 or 2. The engine injects devices by their CDI names from the specifications in ``cdi_directories``,
    which may hold none; lowest priority first, empty without CDI.
    """

    version: str
    cgroups: int
    cdi_directories: tuple[str, ...]
    network: str
    limits: frozenset[str]
    has_seccomp: bool
    runtimes: tuple[str, ...] = ()


class HostPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the paths on the host that a container uses, and the uid and gid of the session's user.

    ``files``: paths to mount read-only, by target; ``staged``: paths of mounts from beneath a folder, by source.
    """

    home: Path
    channel: Path
    files: Mapping[str, Path]
    staged: Mapping[str, Path]
    interpreter: Path | None
    uid: int
    gid: int
    instance: str


def compose(
    spec: WorkloadSpec,
    image: ImageFacts,
    settings: DockerRuntimeSettings,
    engine_facts: EngineFacts,
    host_paths: HostPaths,
) -> dict[str, Any]:
    """Returns the body of ``POST /containers/create``. Raises CreationDenied."""
    networks = networks_of(spec, settings, engine_facts)
    entrypoint = [image.python, "-I", "-S", f"{RUNNER}/relay/main.py", "--directory", CHANNEL_FOLDER]
    entrypoint += ["--replay-bytes", str(settings.replay_bytes), "--runtime", image.runtime, "--home", HOME]
    endpoint: dict[str, Any] = {} if networks[0] in ("none", "host", "bridge") else {"Aliases": [spec.hostname]}
    extra_hosts: list[str] = []
    if spec.network is not None:
        address = spec.network.addresses[spec.hostname]
        extra_hosts = [
            f"{host_name}:{host_address}"
            for host_name, host_address in spec.network.addresses.items()
            if host_name != spec.hostname
        ]
        endpoint |= {"IPAMConfig": {"IPv4Address": address}, "MacAddress": mac_of(address)}
    return {
        "Image": image.id,
        "Entrypoint": entrypoint,
        "Cmd": [],
        "User": f"{host_paths.uid}:{host_paths.gid}",
        "WorkingDir": HOME,
        "Env": [f"{variable}={value}" for variable, value in environment(spec, image).items()],
        "Labels": {**spec.labels, INSTANCE_LABEL: host_paths.instance, KEY_LABEL: str(spec.key)},
        **({} if networks[0] == "host" else {"Hostname": spec.hostname}),
        "StopSignal": "SIGTERM",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            **limits(spec, settings),
            **devices(spec.config.devices, engine_facts),
            "NetworkMode": networks[0],
            **({"Runtime": spec.runtime_class} if spec.runtime_class else {}),
            "ExtraHosts": extra_hosts,  # for /etc/hosts; the engine adds the own name itself
            "Mounts": [
                *_volume_mounts(image, spec, settings),
                *_platform_mounts(image, host_paths),
                *(_bind_mount(mount, host_paths) for mount in spec.config.mounts),
                *_shared_memory(spec),
            ],
            "Tmpfs": {tmpfs_target: _TMPFS_OPTIONS.format(settings.tmp_bytes) for tmpfs_target in ("/tmp", "/var/tmp")},
            "ShmSize": spec.shmem_bytes or settings.shmem_bytes,
            "ReadonlyRootfs": settings.root_filesystem == "read-only",
            "GroupAdd": [str(gid) for gid in spec.config.extra_gids],
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", *_seccomp_options(spec, settings, engine_facts)],
            "IpcMode": "private",
            "OomScoreAdj": workload.OOM_SCORE_ADJ,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file", "Config": {"max-size": str(settings.log_bytes), "max-file": "1"}},
            **({"CgroupParent": settings.cgroup_parent} if settings.cgroup_parent else {}),
        },
        "NetworkingConfig": {"EndpointsConfig": {networks[0]: endpoint} if endpoint else {}},
    }


def networks_of(spec: WorkloadSpec, settings: DockerRuntimeSettings, engine_facts: EngineFacts) -> tuple[str, ...]:
    """Returns the networks of a container: the session's own or the default one, and those that plugins attach.

    The first is the session's own network or the default one. Without a network (``none``) a container has those of
    plugins alone, as engines join nothing to it. Raises CreationDenied where it has the host's, to which nothing can
    be attached.
    """
    default_network = settings.network if settings.network != "auto" else engine_facts.network
    session_network = spec.network.network_id if spec.network is not None else default_network
    plugin_networks = tuple(
        network_name
        for network_name in dict.fromkeys(spec.config.networks)
        if network_name not in ("none", "host", session_network)
    )
    if plugin_networks and session_network == "host":
        message = f"the network {plugin_networks[0]!r} cannot be attached: sessions have the network of the host here"
        raise CreationDenied(message, data={"field": "networks", "key": plugin_networks[0]})
    return plugin_networks if plugin_networks and session_network == "none" else (session_network, *plugin_networks)


def environment(spec: WorkloadSpec, image: ImageFacts) -> dict[str, str]:
    """Returns the environment variables of the runner. Variables of the image override the defaults."""
    defaults = {"LANG": "C.UTF-8", "TERM": "xterm-256color", "SHELL": image.shell, "TMPDIR": "/tmp"}
    defaults = {variable: value for variable, value in defaults.items() if variable not in image.environ}
    return workload.environment(spec, defaults, {"HOME": HOME})


def limits(spec: WorkloadSpec, settings: DockerRuntimeSettings) -> dict[str, Any]:
    """Returns the limits of the container and of each process as fields of HostConfig."""
    config = spec.config
    process_limits = {
        "core": 0,
        "nofile": settings.open_files,
        "memlock": settings.locked_memory_bytes,
        "fsize": spec.home_bytes or settings.home_bytes,
    }
    host_config: dict[str, Any] = {
        "PidsLimit": spec.pids or settings.default_pids,
        "Ulimits": [
            {"Name": limit_name, "Soft": limit, "Hard": limit}
            for limit_name, limit in process_limits.items()
            if limit is not None
        ],
    }
    if config.cpu_limit is not None:
        host_config["NanoCpus"] = round(config.cpu_limit * 1e9)
    if config.memory_limit_bytes is not None:
        host_config |= {"Memory": config.memory_limit_bytes, "MemorySwap": config.memory_limit_bytes}
    if config.cpuset:
        host_config["CpusetCpus"] = ",".join(map(str, config.cpuset))
    if config.memory_nodes:
        host_config["CpusetMems"] = ",".join(map(str, config.memory_nodes))
    return host_config


def devices(requested_devices: Sequence[DeviceMapping], engine_facts: EngineFacts) -> dict[str, Any]:
    """Returns the device nodes and device requests of a container, as fields of HostConfig.

    A device with a CDI name is given by the first way that there is (decision 0350): by that name, where a
    specification of the engine's describes it; of NVIDIA's, by a request to NVIDIA's own runtime, which brings the
    driver's libraries; by its device node.

    Raises CreationDenied for what is no device, is not there, or cannot be had by this engine.
    """
    cdi_devices = (
        CdiRegistry(engine_facts.cdi_directories).devices()
        if any(requested_device.cdi_name for requested_device in requested_devices)
        else {}
    )
    device_nodes: list[dict[str, str]] = []
    cdi_names: list[str] = []
    nvidia_ids: list[str] = []
    for device in requested_devices:
        cdi_name = device.cdi_name or ""
        is_nvidia = cdi_name.startswith("nvidia.com/gpu=")
        if cdi_name in cdi_devices:
            cdi_names.append(cdi_name)
        elif is_nvidia and (not device.source or "nvidia" in engine_facts.runtimes):
            nvidia_ids.append(cdi_name.partition("=")[2])
        elif device.source:
            target, permissions = device.target or device.source, workload.device_node(device)[1]
            device_nodes.append(
                {"PathOnHost": device.source, "PathInContainer": target, "CgroupPermissions": permissions}
            )
        else:
            error_data = {"field": "devices", "key": cdi_name}
            cdi_folders = ", ".join(engine_facts.cdi_directories)
            refusal_reason = (
                f"no CDI specification in {cdi_folders} describes it"
                if cdi_folders
                else "this node's engine has no CDI"
            )
            raise CreationDenied(
                f"{cdi_name!r} cannot be had: {refusal_reason}, and it names no device node", data=error_data
            )
    device_requests: list[dict[str, Any]] = []
    if cdi_names:
        device_requests.append({"Driver": "cdi", "DeviceIDs": cdi_names})
    if nvidia_ids:
        capabilities = [["gpu", "compute", "utility", "video", "graphics", "display"]]
        device_requests.append({"Driver": "nvidia", "DeviceIDs": nvidia_ids, "Capabilities": capabilities})
    return {"Devices": device_nodes, "DeviceRequests": device_requests}


def _volume_mounts(image: ImageFacts, spec: WorkloadSpec, settings: DockerRuntimeSettings) -> list[dict[str, Any]]:
    """Returns tmpfs mounts of limited size for the image's volumes, which would else be directories without a limit."""
    tmpfs_options = {"SizeBytes": settings.tmp_bytes, "Mode": 0o1777}
    taken_targets = {HOME, *(mount.target for mount in spec.config.mounts)}
    free_targets = [volume for volume in image.volumes if volume not in taken_targets]
    return [{"Type": "tmpfs", "Target": volume, "TmpfsOptions": tmpfs_options} for volume in free_targets]


def _platform_mounts(image: ImageFacts, host_paths: HostPaths) -> list[dict[str, Any]]:
    mounts = [
        _describe_bind(str(host_paths.home), HOME, read_only=False),
        _describe_bind(image.runner, RUNNER, read_only=True),
        _describe_bind(f"{image.runner}/su-exec", SU_EXEC, read_only=True),
        _describe_bind(str(host_paths.channel), CHANNEL_FOLDER, read_only=False),
    ]
    if image.injected:
        if host_paths.interpreter is None:
            raise CreationDenied("the agent's interpreter for images without Python is not installed any more")
        mounts.append(_describe_bind(str(host_paths.interpreter), interpreter.CONTAINER_PATH, read_only=True))
    return mounts + [_describe_bind(str(path), target, read_only=True) for target, path in host_paths.files.items()]


def _bind_mount(mount: Mount, host_paths: HostPaths) -> dict[str, Any]:
    check_mount(mount, is_staged=True)
    source = str(host_paths.staged[mount.source]) if BENEATH in mount.source else mount.source
    return _describe_bind(source, mount.target, read_only=mount.read_only)


def _shared_memory(spec: WorkloadSpec) -> list[dict[str, Any]]:
    """Returns the bind mount for ``/dev/shm`` if a plugin shares memory with the workload; else an empty list.

    The mount replaces the engine's own ``/dev/shm``.
    """
    if spec.config.ipc is None:
        return []
    check_ipc(spec.config.ipc)
    return [_describe_bind(spec.config.ipc, "/dev/shm", read_only=False)]


def _describe_bind(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    bind_options = {"Propagation": "rprivate"}
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only, "BindOptions": bind_options}


def _seccomp_options(spec: WorkloadSpec, settings: DockerRuntimeSettings, engine_facts: EngineFacts) -> list[str]:
    """Returns the engine's security options for this platform's filter of system calls.

    Empty if the engine's own filter applies.
    """
    if not engine_facts.has_seccomp:
        return []
    if settings.seccomp == "auto" and seccomp.is_supported():
        return ["seccomp=" + json.dumps(seccomp.profile(spec.config.extra_syscalls))]
    if spec.config.extra_syscalls:
        first_syscall = spec.config.extra_syscalls[0]
        error_data = {"field": "extra_syscalls", "key": first_syscall}
        raise CreationDenied(f"the engine's own filter cannot be opened for {first_syscall!r}", data=error_data)
    return []
