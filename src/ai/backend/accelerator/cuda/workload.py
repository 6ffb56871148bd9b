"""Builds the configuration of a workload: device files or CDI names, environment, ``resource.txt``, libraries.

Source: peer facts 2.4 to 2.6; NVIDIA's documentation of CDI, of CUDA's variables and of the Multi-Process Service."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from decimal import Decimal

import msgspec

from ai.backend.accelerator.cuda.gpus import Gpu, MigInstance
from ai.backend.accelerator.cuda.host import Host
from ai.backend.accelerator.cuda.mps import MpsFolders
from ai.backend.accelerator.cuda.options import NO_OPTIONS, CudaOptions
from ai.backend.accelerator.cuda.tables import DRIVER_LIBRARIES, DRIVER_PROGRAMS
from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import CreationDeferred, DeviceMapping, Mount, WorkloadConfig
from ai.backend.plugin.accelerator.plugin import resource_lines

CDI_KIND = "nvidia.com/gpu"
CONTROL_NODE = "/dev/nvidiactl"
OPTIONAL_NODES = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
MPS_FOLDER = "/opt/cuda-mps"
LIBRARY_DIR = "/opt/cuda-driver/lib"


class HeldDevice(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a GPU or MIG instance that a workload holds, whole or in shares.

    ``part`` is 1 unless held in shares; ``memory``: bytes of all its shares.
    """

    device: Gpu | MigInstance
    part: Decimal
    memory: int
    is_shared: bool

    @property
    def uuid(self) -> str:
        return self.device.uuid

    @property
    def memory_limit(self) -> int:
        return int(self.part * self.memory)

    @property
    def processor_limit(self) -> int:
        return max(1, int(self.part * self.device.processors))


def gpu_of(device: Gpu | MigInstance) -> Gpu:
    return device.parent if isinstance(device, MigInstance) else device


def device_nodes(host: Host, device: Gpu | MigInstance) -> list[str]:
    """Returns the paths of the device files of a GPU or MIG instance; the last one is only its own.

    Files that all GPUs share are left out; an instance also has the file of its GPU. The list is empty if the driver
    does not report them all.
    """
    gpu = gpu_of(device)
    if gpu.minor is None:
        return []
    nodes = [f"/dev/nvidia{gpu.minor}"]
    if isinstance(device, MigInstance):
        capability_folder = f"/proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi{device.gpu_instance}"
        for path in (f"{capability_folder}/access", f"{capability_folder}/ci{device.compute_instance}/access"):
            minor = _capability_minor(host.read(path) or "")
            if minor is None:
                return []
            nodes.append(f"/dev/nvidia-caps/nvidia-cap{minor}")
    return nodes


def _capability_minor(text: str) -> int | None:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "DeviceFileMinor" and value.strip().isdigit():
            return int(value)
    return None


def common_nodes(host: Host) -> list[str]:
    return [CONTROL_NODE, *(node for node in OPTIONAL_NODES if host.exists(node))]


def libraries(host: Host) -> dict[str, str]:
    """Maps names of the driver's installed libraries to paths without symbolic links."""
    cache = host.loader_cache()
    return {name: host.resolve(cache[name]) for name in DRIVER_LIBRARIES if name in cache}


def programs(host: Host) -> list[str]:
    return [path for name in DRIVER_PROGRAMS if (path := host.program(name))]


def with_mps(config: WorkloadConfig, folders: MpsFolders, *, isolates: bool) -> WorkloadConfig:
    """Returns the configuration of a workload that is a client of MPS."""
    return replace(
        config,
        mounts=(*config.mounts, Mount(source=folders.pipe, target=MPS_FOLDER)),
        env_vars={**config.env_vars, "CUDA_MPS_PIPE_DIRECTORY": MPS_FOLDER},
        ipc=folders.shared_memory if isolates else None,
    )


def config_of(
    host: Host, held: Sequence[HeldDevice], options: CudaOptions = NO_OPTIONS, *, mount_libraries: bool
) -> WorkloadConfig:
    """Returns the configuration of a workload that holds these devices, in this order.

    The device file of a GPU or instance also has the device's name in CDI: a runtime that supports CDI uses the name,
    another the file. Raises CreationDeferred: the driver does not say which device files a device has.
    """
    if not held:
        return WorkloadConfig()
    mappings: dict[str, DeviceMapping] = {}
    for device in held:
        nodes = device_nodes(host, device.device)
        if not nodes:
            raise CreationDeferred(f"the driver names no device file of {device.uuid}", retry_after=5.0)
        *shared_nodes, device_node = nodes
        for node in shared_nodes:
            mappings.setdefault(node, DeviceMapping(source=node))
        mappings[device_node] = DeviceMapping(source=device_node, cdi_name=f"{CDI_KIND}={device.uuid}")
    for node in common_nodes(host):
        mappings[node] = DeviceMapping(source=node)
    mounts: tuple[Mount, ...] = ()
    environ = environment(held, options)
    if mount_libraries and (driver_libraries := libraries(host)):
        mounts = tuple(Mount(source=path, target=f"{LIBRARY_DIR}/{name}") for name, path in driver_libraries.items())
        environ["LD_LIBRARY_PATH"] = LIBRARY_DIR
    groups = {group for node in mappings if (group := host.closed_group(node))}  # root's group is for nobody
    return WorkloadConfig(
        mounts=mounts,
        devices=tuple(mappings.values()),
        env_vars=environ,
        resource_data=resource_data(held),
        extra_gids=tuple(sorted(groups)),
    )


def thread_percentage(held: Sequence[HeldDevice], options: CudaOptions) -> int:
    """Returns the percent of a GPU's threads that a workload may use: its share, or less if its session wants less."""
    own_percent = max(1, int(min(device.part for device in held) * 100))
    return min(own_percent, options.active_thread_percentage or own_percent)


def environment(held: Sequence[HeldDevice], options: CudaOptions = NO_OPTIONS) -> dict[str, str]:
    """Returns the environment variables that name a workload's devices by UUID and limit shared GPUs by CUDA's MPS."""
    uuids = ",".join(device.uuid for device in held)
    environ = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": uuids,
        "NVIDIA_VISIBLE_DEVICES": uuids,
        "NVIDIA_DRIVER_CAPABILITIES": ",".join(options.driver_capabilities),
    }
    if any(device.is_shared for device in held):
        environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(
            f"{position}={device.memory_limit >> 20}M" for position, device in enumerate(held)
        )
        environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(thread_percentage(held, options))
    return environ


def resource_data(held: Sequence[HeldDevice]) -> dict[str, str]:
    uuids = [device.uuid for device in held]
    if not any(device.is_shared for device in held):
        return resource_lines("CUDA", uuids)
    device_shares = [(position, device.memory_limit, device.processor_limit) for position, device in enumerate(held)]
    reserved_bytes = max(gpu_of(device.device).memory_size - device.memory for device in held)
    return {**resource_lines("CUDA", uuids, device_shares), "CUDA_RESERVED_MEMORY": str(reserved_bytes)}


def cdi_spec(host: Host, devices: Sequence[Gpu | MigInstance]) -> Mapping[str, object]:
    """Returns a CDI specification of these devices with the driver's libraries and programs."""
    nodes_by_uuid = [(device.uuid, nodes) for device in devices if (nodes := device_nodes(host, device))]
    mount_options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    driver_libraries = libraries(host)
    folders = sorted({os.path.dirname(path) for path in driver_libraries.values()})  # noqa: PTH120  # text of the specification
    mounts = [
        {"hostPath": path, "containerPath": target, "options": mount_options}
        for path, target in [
            *((path, f"{os.path.dirname(path)}/{name}") for name, path in driver_libraries.items()),  # noqa: PTH120  # as above
            *((path, path) for path in programs(host)),
        ]
    ]
    common_edits: dict[str, object] = {"deviceNodes": [{"path": node} for node in common_nodes(host)], "mounts": mounts}
    hook_path = host.program("nvidia-cdi-hook")
    if hook_path and folders:
        folder_options = [word for folder in folders for word in ("--folder", folder)]
        arguments = ["nvidia-cdi-hook", "update-ldcache", *folder_options]
        common_edits["hooks"] = [{"hookName": "createContainer", "path": hook_path, "args": arguments}]
    return {
        "cdiVersion": "0.6.0",
        "kind": CDI_KIND,
        "devices": [
            {"name": uuid, "containerEdits": {"deviceNodes": [{"path": node} for node in nodes]}}
            for uuid, nodes in nodes_by_uuid
        ],
        "containerEdits": common_edits,
    }
