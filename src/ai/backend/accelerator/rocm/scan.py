"""Converts the KFD's topology (``/sys/class/kfd/kfd/topology``) and amdgpu's attributes to devices.

Every file of the topology is lines of ``name number``; a node whose ``gpu_id`` is not zero is a GPU or a partition of
one. Sources: Linux kfd_topology.c, ROCr libhsakmt topology.c; AMD's data sheets and ROCm's documentation of
accelerators for what sysfs lacks, not checked on the hardware.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ai.backend.common.devices import (
    ComputeDevice,
    ComputePrecisionSupport,
    ComputeUnit,
    DeviceHealth,
    DeviceLink,
    LinkKind,
    MemorySpec,
    PartitioningCapability,
    PrecisionSupport,
    VariantProperty,
)
from ai.backend.common.ids import DeviceId, DeviceName
from ai.backend.plugin.accelerator import DeviceMapping
from ai.backend.plugin.sysfs.base import ScannedDevice, whole
from ai.backend.plugin.sysfs.pci import PciDevice, links_of, pci_at
from ai.backend.plugin.sysfs.tree import Missing, Tree, Unreadable

MEMORY_TYPES: Mapping[str, str] = {
    "gfx906": "HBM2",
    "gfx908": "HBM2",
    "gfx90a": "HBM2E",
    "gfx942": "HBM3",
    "gfx950": "HBM3E",
    "gfx1030": "GDDR6",
    "gfx1100": "GDDR6",
    "gfx1101": "GDDR6",
    "gfx1200": "GDDR6",
    "gfx1201": "GDDR6",
}
MEMORY_TYPES_OF_DEVICES: Mapping[int, str] = {0x74A5: "HBM3E"}
"""The memory type by PCI device id, for devices that differ from others of their instruction set: MI325X."""

NAMES: Mapping[int, str] = {
    0x738C: "AMD Instinct MI100",
    0x7408: "AMD Instinct MI250X",
    0x740C: "AMD Instinct MI250X/MI250",
    0x740F: "AMD Instinct MI210",
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A2: "AMD Instinct MI308X",
    0x74A5: "AMD Instinct MI325X",
    0x75A0: "AMD Instinct MI350X",
    0x75A3: "AMD Instinct MI355X",
}
"""The model names that are used where the driver has no ``product_name``."""

_MATRIX_FORMATS = ("FP64", "FP32", "BF16", "FP16", "INT8")
PRECISIONS: Mapping[str, tuple[str, ...]] = {
    "gfx906": ("FP64", "FP32", "FP16", "INT8"),
    "gfx908": _MATRIX_FORMATS,
    "gfx90a": _MATRIX_FORMATS,
    "gfx942": (*_MATRIX_FORMATS, "TF32", "FP8"),
    "gfx950": (*_MATRIX_FORMATS, "FP8", "FP6", "FP4"),
    "gfx1030": ("FP32", "FP16", "INT8"),
    "gfx1100": ("FP32", "BF16", "FP16", "INT8", "INT4"),
    "gfx1101": ("FP32", "BF16", "FP16", "INT8", "INT4"),
    "gfx1200": ("FP32", "BF16", "FP16", "FP8", "INT8", "INT4"),
    "gfx1201": ("FP32", "BF16", "FP16", "FP8", "INT8", "INT4"),
}


def memory_type(gfx: str, device: int) -> str | None:
    return MEMORY_TYPES_OF_DEVICES.get(device) or MEMORY_TYPES.get(gfx)


TOPOLOGY = "/sys/class/kfd/kfd/topology"
PROCESSES = "/sys/class/kfd/kfd/proc"
XGMI = 11
"""IO link type ``HSA_IOLINKTYPE_XGMI``; PCI express is 2."""
_LOCAL_HEAP_TYPES = (1, 2)
"""Heap types of memory banks: public and private frame buffer."""


class IoLink(msgspec.Struct, frozen=True):
    """Describes a link of a GPU. ``bandwidth`` is in MB/s, 0 where the driver does not know."""

    to: int
    type: int
    bandwidth: int


class KfdGpu(msgspec.Struct, frozen=True):
    """Describes a GPU, a node of the KFD's topology.

    Attributes:
        rank: position among the GPU nodes; the number that ROCr gives it.
        address: of its PCI function; partitions of one GPU share it.
        unique_id: 0 where the GPU has none.
        memory: bytes of its own memory.
    """

    node: int
    rank: int
    gpu_id: int
    address: str
    unique_id: int
    minor: int
    gfx: str
    units: int
    xcc: int
    memory: int
    device: int
    links: tuple[IoLink, ...]


def properties(tree: Tree, path: str) -> dict[str, int]:
    """Reads the lines ``NAME NUMBER`` of a properties file of the KFD, and skips all other lines.

    Raises Missing or Unreadable.
    """
    result = {}
    for line in tree.read(path).splitlines():
        name, _, value = line.strip().partition(" ")
        if value.isdecimal() and len(value) <= 20:
            result[name] = int(value)
    return result


def gfx_name(version: int) -> str:
    """Returns the name of an instruction set: ``90402`` is gfx942, ``90010`` is gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def gpus(tree: Tree) -> Iterator[KfdGpu]:
    """Yields the GPUs of the KFD's topology in the order of ROCr, without GPUs that cannot be read.

    A skipped GPU keeps its number.
    """
    rank = 0
    for name in tree.names(f"{TOPOLOGY}/nodes"):
        path = f"{TOPOLOGY}/nodes/{name}"
        if not name.isdecimal():
            continue
        gpu_id = tree.value(f"{path}/gpu_id")
        properties = _properties_or_nothing(tree, f"{path}/properties")
        if gpu_id or (gpu_id is None and properties.get("simd_count")):
            if properties:
                yield _parse_gpu(tree, path, properties, rank, int(gpu_id or 0))
            rank += 1


def _parse_gpu(tree: Tree, path: str, values: Mapping[str, int], rank: int, gpu_id: int) -> KfdGpu:
    location = values.get("location_id", 0)
    memory_banks = [
        _properties_or_nothing(tree, memory_bank) for memory_bank in tree.glob(f"{path}/mem_banks/*/properties")
    ]
    links = [_properties_or_nothing(tree, link) for link in tree.glob(f"{path}/io_links/*/properties")]
    return KfdGpu(
        node=int(path.rpartition("/")[2]),
        rank=rank,
        gpu_id=gpu_id,
        address=f"{values.get('domain', 0):04x}:{location >> 8 & 255:02x}:{location >> 3 & 31:02x}.{location & 7}",
        unique_id=values.get("unique_id", 0),
        minor=values.get("drm_render_minor", 0),
        gfx=gfx_name(values.get("gfx_target_version", 0)),
        units=values.get("simd_count", 0) // max(1, values.get("simd_per_cu", 1)),
        xcc=values.get("num_xcc", 1),
        memory=sum(
            memory_bank.get("size_in_bytes", 0)
            for memory_bank in memory_banks
            if memory_bank.get("heap_type") in _LOCAL_HEAP_TYPES
        ),
        device=values.get("device_id", 0),
        links=tuple(
            IoLink(link["node_to"], link.get("type", 0), link.get("max_bandwidth", 0))
            for link in links
            if "node_to" in link
        ),
    )


def _properties_or_nothing(tree: Tree, path: str) -> dict[str, int]:
    try:
        return properties(tree, path)
    except (Missing, Unreadable):
        return {}


def process_memory(tree: Tree, pid: int) -> Mapping[int, int]:
    """Returns by gpu_id the bytes of GPU memory that a process uses. It is empty for a process that uses no GPU."""
    process_folder = f"{PROCESSES}/{pid}"
    by_gpu = {}
    for name in tree.names(process_folder):
        gpu_id = name.removeprefix("vram_")
        if (
            gpu_id != name
            and gpu_id.isdecimal()
            and (used_bytes := tree.value(f"{process_folder}/{name}")) is not None
            and used_bytes >= 0
        ):
            by_gpu[int(gpu_id)] = int(used_bytes)
    return by_gpu


PLUGIN_KEY = DeviceName("rocm")
NAMESPACE_NAME = "amd"
_UNCORRECTABLE_COUNT = re.compile(r"^ue:\s*(\d{1,18})$", re.MULTILINE)
_PARTITION_COUNTS: Mapping[str, int] = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}
"""Compute partitions of one GPU by mode; CPX has one for each XCC."""
_MB_IN_GIB = 1_000_000 / 2**30


def device_ids(listed_gpus: Sequence[KfdGpu]) -> dict[int, DeviceId]:
    """Returns the device id of each KFD node: ``GPU-<unique id>`` as ROCr names the GPU, or its PCI address.

    Further partitions of a GPU have a number, ``GPU-<unique id>.1``. The PCI address names a GPU without a unique id,
    or with that of another one.
    """
    addresses_of_id: dict[int, set[str]] = {}
    for gpu in listed_gpus:
        addresses_of_id.setdefault(gpu.unique_id, set()).add(gpu.address)
    ids_by_node: dict[int, DeviceId] = {}
    last_index_of_gpu: dict[str, int] = {}
    for gpu in listed_gpus:
        is_only = gpu.unique_id and len(addresses_of_id[gpu.unique_id]) == 1
        gpu_name = f"GPU-{gpu.unique_id:016x}" if is_only else gpu.address
        partition_index = last_index_of_gpu[gpu_name] = last_index_of_gpu.get(gpu_name, -1) + 1
        ids_by_node[gpu.node] = DeviceId(f"{gpu_name}.{partition_index}" if partition_index else gpu_name)
    return ids_by_node


def scan(tree: Tree, *, max_uncorrectable: int, rocm_version: str | None) -> list[ScannedDevice]:
    """Returns the GPUs of the node, or the partitions instead of a GPU that is cut.

    ``max_uncorrectable``: uncorrectable memory errors that a healthy GPU may have; ``rocm_version``: for the variant
    properties.
    """
    listed_gpus = list(gpus(tree))
    id_of_node = device_ids(listed_gpus)
    pci_functions = {gpu.address: pci_at(tree, gpu.address) for gpu in listed_gpus}
    pci_of_device = {
        id_of_node[gpu.node]: pci for gpu in listed_gpus if (pci := pci_functions[gpu.address]) is not None
    }
    partition_counts = {address: sum(1 for gpu in listed_gpus if gpu.address == address) for address in pci_functions}
    devices = []
    for gpu in listed_gpus:
        pci = pci_functions[gpu.address]
        nodes = [DeviceMapping(source="/dev/kfd"), DeviceMapping(source=f"/dev/dri/renderD{gpu.minor}")]
        faults = list(_faults(tree, pci, nodes, max_uncorrectable))
        devices.append(
            ScannedDevice(
                device=_device(tree, gpu, pci, id_of_node, pci_of_device, faults, rocm_version),
                nodes=tuple(nodes),
                fields={
                    "rank": str(gpu.rank),
                    "gpu_id": str(gpu.gpu_id),
                    "pci": gpu.address,
                    "partitions": str(partition_counts[gpu.address]),
                },
            )
        )
    return devices


def _faults(tree: Tree, pci: PciDevice | None, nodes: Sequence[DeviceMapping], limit: int) -> Iterator[str]:
    if pci is None:
        yield "the GPU fell off the PCI bus"
        return
    for node in nodes:
        if not tree.exists(node.source):
            yield f"there is no device node {node.source}"
    counter_paths = tree.glob(f"{pci.path}/ras/*_err_count")
    for path in counter_paths:
        try:
            match = _UNCORRECTABLE_COUNT.search(tree.read(path))
        except Missing:
            continue
        except Unreadable as e:
            yield str(e)
            continue
        if match is not None and int(match[1]) > limit:
            yield f"{path.rpartition('/')[2].removesuffix('_err_count')}: {match[1]} uncorrectable errors"
    try:
        tree.read(f"{pci.path}/mem_info_vram_total")
    except Unreadable as e:
        yield str(e)
    except Missing:
        pass


def _device(
    tree: Tree,
    gpu: KfdGpu,
    pci: PciDevice | None,
    ids: Mapping[int, DeviceId],
    pci_of_device: Mapping[DeviceId, PciDevice],
    faults: Sequence[str],
    rocm_version: str | None,
) -> ComputeDevice:
    device_id = ids[gpu.node]
    product = tree.text(f"{pci.path}/product_name") if pci is not None else None
    name = (product or NAMES.get(gpu.device) or f"AMD {gpu.gfx}")[:128]
    memory = gpu.memory or int((pci and tree.value(f"{pci.path}/mem_info_vram_total")) or 0)
    gpu_memory_type = memory_type(gpu.gfx, gpu.device)
    precisions = PRECISIONS.get(gpu.gfx, ())
    return ComputeDevice(
        device_name=PLUGIN_KEY,
        device_id=device_id,
        hw_location=gpu.address,
        slots=whole("rocm.device"),
        numa_node=pci.numa_node if pci is not None else None,
        memory_size=memory,
        processing_units=gpu.units,
        model_name=name,
        health=DeviceHealth.UNHEALTHY if faults else DeviceHealth.HEALTHY,
        health_reason="; ".join(faults)[:500],
        memory_spec=MemorySpec(total_memory=memory, memory_type=gpu_memory_type) if memory else None,
        compute_units=(ComputeUnit(name="CU", count=gpu.units),),
        precision_support=tuple(
            ComputePrecisionSupport(format=precision, support=PrecisionSupport.NATIVE) for precision in precisions
        ),
        partitioning_support=tuple(_partitioning(tree, pci, gpu)),
        links=_links(gpu, ids, links_of(device_id, pci_of_device)),
        variant_properties=tuple(
            VariantProperty(namespace=NAMESPACE_NAME, feature=feature, value=value)
            for feature, value in (
                ("model", name),
                ("gfx_arch", gpu.gfx),
                ("memory_type", gpu_memory_type),
                ("memory_gib", str(memory >> 30) if memory else None),
                ("rocm_version", rocm_version),
                *(("precision", precision) for precision in precisions),
            )
            if value
        ),
    )


def _partitioning(tree: Tree, pci: PciDevice | None, gpu: KfdGpu) -> Iterator[PartitioningCapability]:
    """Yields the modes into which a GPU can be partitioned, as listed in the file ``available_compute_partition``.

    Modes are ``SPX``, ``DPX``, ``TPX``, ``QPX`` and ``CPX``; MI300 and later GPUs have the file.
    """
    modes = tree.text(f"{pci.path}/available_compute_partition") if pci is not None else None
    for mode in re.findall(r"[A-Z]{3}", modes or ""):
        yield PartitioningCapability(technology=mode, max_partitions=_PARTITION_COUNTS.get(mode, max(1, gpu.xcc)))


def _links(gpu: KfdGpu, ids: Mapping[int, DeviceId], by_pci: Sequence[DeviceLink]) -> tuple[DeviceLink, ...]:
    """Returns the links of a GPU to its peers: XGMI links where the KFD reports them, and PCI Express links otherwise.

    Partitions of one GPU are linked inside of it.
    """
    bandwidth_of_peer = {ids[link.to]: link.bandwidth for link in gpu.links if link.type == XGMI and link.to in ids}
    xgmi_links = {
        peer: DeviceLink(
            peer=peer, kind=LinkKind.DIRECT, bandwidth_gib_s=round(bandwidth * _MB_IN_GIB, 1) if bandwidth else None
        )
        for peer, bandwidth in bandwidth_of_peer.items()
        if peer != ids[gpu.node]
    }
    return tuple(({link.peer: link for link in by_pci} | xgmi_links).values())
