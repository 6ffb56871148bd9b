"""Reads GPUs, their MIG instances and the links between them from NVML and the node into plain values."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import msgspec

from ai.backend.accelerator.cuda import tables
from ai.backend.accelerator.cuda.host import Host
from ai.backend.accelerator.cuda.nvml import (
    DEVICE_FAILURES,
    LIBRARY_FAILURES,
    Code,
    Nvml,
    NvmlFailure,
    ask_optional,
    ask_unless_lost,
)
from ai.backend.common.devices import DeviceLink, LinkKind
from ai.backend.common.ids import DeviceId

MAX_MIG_INSTANCES = 7
MAX_PROFILES = 32
MAX_LINKS = 36
_MIG_NAME = re.compile(r"\bMIG ((?:\d+c\.)?\d+g\.\d+gb\S*)$")
_MIG_MEMORY = re.compile(r"\d+g\.(\d+)gb")
_MIG_ENABLED = 1
_MEMORY_CLOCK, _SM_CLOCK = 2, 1


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a size of MIG instance that a GPU can be cut into; ``number`` is NVML's id of it."""

    number: int
    name: str
    memory_size: int
    processors: int
    instances: int


FABRIC_COMPLETED = 3
"""``NVML_GPU_FABRIC_STATE_COMPLETED``: the GPU has joined its NVLink domain."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the constant properties of a GPU. Sizes in bytes, bandwidth in GiB/s, clocks in Hz."""

    uuid: str
    name: str
    minor: int | None
    pci_address: str
    numa_node: int | None
    memory_size: int
    processors: int
    cores: int | None
    capability: tuple[int, int] | None
    bandwidth: float | None
    max_sm_clock: float | None
    max_instances: int
    """The largest number of MIG instances; 0 for a GPU that cannot be cut."""
    fabric: str | None = None
    """The NVLink domain over several nodes that the GPU has joined, if any."""

    @property
    def generation(self) -> tables.Generation | None:
        return tables.generation(self.capability) if self.capability else None

    @property
    def memory_type(self) -> str | None:
        return next(
            (
                memory_type_name
                for name_pattern, memory_type_name in tables.MEMORY_TYPES
                if re.search(rf"\b(?:{name_pattern})\b", self.name)
            ),
            None,
        )


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a compute instance of a GPU instance, which CUDA sees as a device."""

    uuid: str
    parent: Gpu
    profile: str
    gpu_instance: int
    compute_instance: int
    memory_size: int
    processors: int


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the GPUs and MIG instances of the node after a reading of NVML, also those that only answered before.

    ``faults`` maps the UUIDs of GPUs that answered before, or answer in part, to reasons; ``lost_gpus`` are those of
    them that are lost. ``unreadable`` describes GPUs that have not told their UUID.
    """

    gpus: tuple[Gpu, ...] = ()
    mig_gpus: frozenset[str] = frozenset()
    """The UUIDs of the GPUs in MIG mode, of which only instances are offered."""
    instances: tuple[MigInstance, ...] = ()
    faults: dict[str, str] = msgspec.field(default_factory=dict)
    lost_gpus: frozenset[str] = frozenset()
    unreadable: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[Gpu | MigInstance, ...]:
        return (*self.gpus, *self.instances)


def pci_address(info: dict[str, object]) -> str:
    """Formats a PCI address as sysfs does: ``0000:3b:00.0``."""
    return f"{info['domain']:04x}:{info['bus']:02x}:{info['device']:02x}.0"


def read_gpu(nvml: Nvml, host: Host, uuid: str) -> Gpu:
    """Reads the constant properties of a GPU. Raises NvmlFailure."""
    address = pci_address(nvml.ask("nvmlDeviceGetPciInfo", uuid))
    capability = ask_optional(nvml, "nvmlDeviceGetCudaComputeCapability", uuid)
    compute_capability = (int(capability[0]), int(capability[1])) if capability else None
    cores = ask_optional(nvml, "nvmlDeviceGetNumGpuCores", uuid)
    generation = tables.generation(compute_capability) if compute_capability else None
    bus_width_bits = ask_optional(nvml, "nvmlDeviceGetMemoryBusWidth", uuid)
    memory_clock_mhz = ask_optional(nvml, "nvmlDeviceGetMaxClockInfo", uuid, _MEMORY_CLOCK)
    sm_clock = ask_optional(nvml, "nvmlDeviceGetMaxClockInfo", uuid, _SM_CLOCK)
    numa_text = (host.read(f"/sys/bus/pci/devices/{address}/numa_node") or "").strip()
    return Gpu(
        uuid=uuid,
        name=str(nvml.ask("nvmlDeviceGetName", uuid)),
        minor=ask_optional(nvml, "nvmlDeviceGetMinorNumber", uuid),
        pci_address=address,
        # The kernel says -1 for unknown. nvmlDeviceGetNumaNodeId is no substitute: it names the GPU's own memory.
        numa_node=int(numa_text) if numa_text.isdigit() else None,
        memory_size=int(nvml.ask("nvmlDeviceGetMemoryInfo", uuid)["total"]),
        processors=int(cores) // generation.cores_per_sm if cores and generation else 0,
        cores=cores,
        capability=compute_capability,
        # Two transfers a clock, of GDDR and HBM alike in the way that NVML counts clocks.
        bandwidth=int(bus_width_bits) / 8 * int(memory_clock_mhz) * 1e6 * 2 / 2**30
        if bus_width_bits and memory_clock_mhz
        else None,
        max_sm_clock=sm_clock * 1e6 if sm_clock else None,
        max_instances=_max_instances(nvml, uuid),
        fabric=_fabric(nvml, uuid),
    )


def _fabric(nvml: Nvml, uuid: str) -> str | None:
    """Returns the NVLink domain that a GPU has joined, as ``CLUSTER.CLIQUE``, or None if the GPU has joined none.

    Such a domain spans several nodes.
    """
    info = ask_optional(nvml, "nvmlDeviceGetGpuFabricInfoV", uuid)
    if not isinstance(info, dict) or info.get("state") != FABRIC_COMPLETED or info.get("status") != 0:
        return None
    cluster = str(info.get("clusterUuid", ""))
    return f"{cluster}.{info.get('cliqueId', 0)}" if cluster.strip("0") else None


def _max_instances(nvml: Nvml, uuid: str) -> int:
    """Returns the number of MIG instances that fit into a GPU, or 0 if the GPU cannot be cut.

    If the GPU is not in MIG mode, NVML gives no number, and the largest number of any GPU is returned.
    """
    count = int(ask_optional(nvml, "nvmlDeviceGetMaxMigDeviceCount", uuid) or 0)
    return count or (MAX_MIG_INSTANCES if ask_optional(nvml, "nvmlDeviceGetMigMode", uuid) is not None else 0)


def is_in_mig_mode(nvml: Nvml, uuid: str) -> bool:
    mode = ask_optional(nvml, "nvmlDeviceGetMigMode", uuid)
    return bool(mode) and mode[0] == _MIG_ENABLED


def memory_gb(memory_size: int, total_memory: int) -> int:
    """Returns the size in a profile's name: eighths of the GPU's memory ``total``, rounded up, in whole GB."""
    size_in_eighths = -(-memory_size * 8 // total_memory)
    total_gb = -(-total_memory // 2**30)
    return max(1, round(total_gb * size_in_eighths / 8))


def read_instances(nvml: Nvml, gpu: Gpu) -> list[MigInstance]:
    """Lists the MIG instances of a GPU by their places. Raises NvmlFailure if the GPU is lost."""
    instances: list[MigInstance] = []
    for place in range(gpu.max_instances):
        uuid = ask_optional(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", gpu.uuid, place)
        if uuid is None:
            continue
        try:
            attributes = nvml.ask("nvmlDeviceGetAttributes", uuid)
            gpu_instance = int(nvml.ask("nvmlDeviceGetGpuInstanceId", uuid))
            compute_instance = int(nvml.ask("nvmlDeviceGetComputeInstanceId", uuid))
        except NvmlFailure as e:
            if e.code in (Code.NOT_FOUND, Code.INVALID_ARGUMENT):
                continue  # it went away between the questions
            raise
        memory = int(attributes["memorySizeMB"]) * 2**20
        name = _MIG_NAME.search(str(ask_optional(nvml, "nvmlDeviceGetName", uuid) or ""))
        computed = f"{attributes['gpuInstanceSliceCount']}g.{memory_gb(memory, gpu.memory_size)}gb"
        instances.append(
            MigInstance(
                uuid=str(uuid),
                parent=gpu,
                profile=name[1] if name else computed,
                gpu_instance=gpu_instance,
                compute_instance=compute_instance,
                memory_size=memory,
                processors=int(attributes["multiprocessorCount"]),
            )
        )
    return instances


def read_profiles(nvml: Nvml, gpu: Gpu) -> list[Profile]:
    """Lists the MIG profiles of a GPU; empty if it has none, or is not in MIG mode and does not list them."""
    by_name: dict[str, Profile] = {}
    for kind in range(MAX_PROFILES):
        info = ask_optional(nvml, "nvmlDeviceGetGpuInstanceProfileInfo", gpu.uuid, kind)
        if info is None:
            continue
        memory = int(info["memorySizeMB"]) * 2**20
        reported_name = str(info.get("name") or "").removeprefix("MIG ")
        name = reported_name or f"{info['sliceCount']}g.{memory_gb(memory, gpu.memory_size)}gb"
        profile = Profile(
            number=int(info["id"]),
            name=name,
            memory_size=memory,
            processors=int(info["multiprocessorCount"]),
            instances=int(info["instanceCount"]),
        )
        by_name.setdefault(name, profile)
    return list(by_name.values())


def slice_name(profile: str) -> str:
    """Returns the size in a slot's name (spec 03-06): ``1g.10gb`` -> ``10g``."""
    match = _MIG_MEMORY.search(profile)
    return f"{match[1]}g" if match else re.sub(r"[^a-z0-9_-]", "-", profile.lower())


def read_node(nvml: Nvml, host: Host, previous: Node, mask: Collection[str] = ()) -> Node:
    """Reads all GPUs in the order of their PCI addresses, without those whose UUID is in ``mask``. Constant values, and
    all values of a lost GPU, are taken from ``previous``. Raises NvmlFailure if the library is not usable."""
    gpu_by_uuid = {gpu.uuid: gpu for gpu in previous.gpus}
    faults = dict.fromkeys(gpu_by_uuid, "")
    lost_uuids: set[str] = set()
    read_failures: list[str] = []
    mig_uuids: set[str] = set()
    instances: list[MigInstance] = []
    for index in range(int(nvml.ask("nvmlDeviceGetCount"))):
        uuid = ""
        try:
            uuid = str(nvml.ask("nvmlDeviceGetHandleByIndex", index))
            if uuid in mask:
                continue
            gpu = gpu_by_uuid[uuid] = gpu_by_uuid.get(uuid) or read_gpu(nvml, host, uuid)
            if is_in_mig_mode(nvml, uuid):
                instances += (instance for instance in read_instances(nvml, gpu) if instance.uuid not in mask)
                mig_uuids.add(uuid)
            faults.pop(uuid, None)
        except NvmlFailure as e:
            if e.code in LIBRARY_FAILURES:
                raise
            if uuid in gpu_by_uuid:
                faults[uuid] = str(e)
                lost_uuids |= {uuid} if e.code in DEVICE_FAILURES else set()
            else:
                read_failures.append(f"GPU {index}: {e}")
    missing_uuids = [uuid for uuid, reason in faults.items() if not reason]
    for uuid in missing_uuids:
        faults[uuid] = _absence_reason(nvml, uuid)
    return Node(
        gpus=tuple(sorted(gpu_by_uuid.values(), key=lambda gpu: gpu.pci_address)),
        mig_gpus=frozenset(mig_uuids | (previous.mig_gpus & faults.keys())),
        instances=tuple(
            sorted(
                (*instances, *(instance for instance in previous.instances if instance.parent.uuid in faults)),
                key=lambda instance: (instance.parent.pci_address, instance.gpu_instance, instance.compute_instance),
            )
        ),
        faults=faults,
        lost_gpus=frozenset(lost_uuids.union(missing_uuids)),
        # An index that fails is most likely a known GPU that is away.
        unreadable=tuple(read_failures[len(missing_uuids) :]),
    )


def _absence_reason(nvml: Nvml, uuid: str) -> str:
    """Returns the reason why a GPU does not answer. Asks for it by the GPU's UUID, since its index may have changed."""
    try:
        nvml.ask("nvmlDeviceGetMemoryInfo", uuid)
    except NvmlFailure as e:
        if e.code in LIBRARY_FAILURES:
            raise
        if e.code in DEVICE_FAILURES:
            return str(e)
    return "the GPU is not on the bus any more"


_NVLINK_SWITCH = 2
_NVLINK_ACTIVE = 1
ANCESTORS: Mapping[int, LinkKind] = {
    0: LinkKind.PCIE_SWITCH,  # the same board
    10: LinkKind.PCIE_SWITCH,  # one switch
    20: LinkKind.PCIE_SWITCH,  # several switches, without the host bridge
    30: LinkKind.PCIE_ROOT,
    40: LinkKind.NUMA,
    50: LinkKind.SYSTEM,
}
"""Maps NVML's ``nvmlGpuTopologyLevel_t`` to the kind of link here."""


@dataclass(slots=True)
class _NvLinks:
    """Holds the bandwidth in GiB/s of one GPU's active NVLinks, in one direction, to a switch and to each GPU by PCI
    address.
    """

    to_switch: float = 0.0
    to_gpu: dict[str, float] = field(default_factory=dict)


def read_links(nvml: Nvml, gpus: Sequence[Gpu]) -> dict[str, tuple[DeviceLink, ...]]:
    """Returns by UUID each GPU's links to every other GPU. Bandwidth is of one direction, only known for NVLink.
    Through a switch any two GPUs have the bandwidth of all links of the one that has fewer.
    """
    addresses = {gpu.pci_address for gpu in gpus}
    nvlinks_by_gpu = {gpu.uuid: _active_nvlinks(nvml, gpu, addresses) for gpu in gpus}
    links: dict[str, list[DeviceLink]] = {gpu.uuid: [] for gpu in gpus}
    for gpu_index, gpu in enumerate(gpus):
        for peer in gpus[gpu_index + 1 :]:
            own_links, peer_links = nvlinks_by_gpu[gpu.uuid], nvlinks_by_gpu[peer.uuid]
            bandwidth = own_links.to_gpu.get(peer.pci_address, 0.0) or min(own_links.to_switch, peer_links.to_switch)
            kind: LinkKind | None = LinkKind.DIRECT
            if not bandwidth:
                ancestor_level = ask_unless_lost(nvml, "nvmlDeviceGetTopologyCommonAncestor", gpu.uuid, peer.uuid)
                kind = ANCESTORS.get(ancestor_level) if isinstance(ancestor_level, int) else None
            if kind is not None:
                links[gpu.uuid].append(_device_link(peer, kind, bandwidth))
                links[peer.uuid].append(_device_link(gpu, kind, bandwidth))
    return {uuid: tuple(gpu_links) for uuid, gpu_links in links.items()}


def _device_link(peer: Gpu, kind: LinkKind, bandwidth: float) -> DeviceLink:
    return DeviceLink(peer=DeviceId(peer.uuid), kind=kind, bandwidth_gib_s=round(bandwidth, 1) if bandwidth else None)


def _active_nvlinks(nvml: Nvml, gpu: Gpu, gpu_addresses: AbstractSet[str]) -> _NvLinks:
    links = _NvLinks()
    for link_number in range(MAX_LINKS):
        try:
            state = nvml.ask("nvmlDeviceGetNvLinkState", gpu.uuid, link_number)
        except NvmlFailure as e:
            if e.code in (Code.INVALID_ARGUMENT, Code.NOT_SUPPORTED) and link_number == 0:
                break  # no NVLink at all
            continue
        if state != _NVLINK_ACTIVE:
            continue
        version = ask_unless_lost(nvml, "nvmlDeviceGetNvLinkVersion", gpu.uuid, link_number)
        nominal_gb_s = tables.NVLINK_GB_S.get(version, tables.NVLINK_GB_S[5]) if isinstance(version, int) else 0.0
        bandwidth = nominal_gb_s * 1e9 / 2**30
        remote_type = ask_unless_lost(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", gpu.uuid, link_number)
        info = ask_unless_lost(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", gpu.uuid, link_number)
        address = pci_address(info) if isinstance(info, dict) else ""
        if address in gpu_addresses:
            links.to_gpu[address] = links.to_gpu.get(address, 0.0) + bandwidth
        elif remote_type == _NVLINK_SWITCH or (remote_type is None and address):
            # A driver that cannot tell the type of the other end still says where it is: no GPU, hence a switch.
            links.to_switch += bandwidth
    return links
