"""From the KFD's topology and amdgpu's attributes to devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ai.backend.accelerator.rocm.kfd import XGMI, KfdGpu, gpus
from ai.backend.accelerator.rocm.models import NAMES, PRECISIONS, memory_type
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

KEY = DeviceName("rocm")
NAMESPACE = "amd"
_UNCORRECTABLE = re.compile(r"^ue:\s*(\d{1,18})$", re.MULTILINE)
_MODES: Mapping[str, int] = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}
"""Compute partitions of one GPU by mode; CPX has one for each XCC."""
_MB = 1_000_000 / 2**30


def device_ids(listed: Sequence[KfdGpu]) -> dict[int, DeviceId]:
    """Node -> ``GPU-<unique id>`` as ROCr names it; the partitions of one GPU count on, ``GPU-<unique id>.1``.

    A GPU without a unique id, or with that of another one, is named by its PCI address.
    """
    owners: dict[int, set[str]] = {}
    for gpu in listed:
        owners.setdefault(gpu.unique_id, set()).add(gpu.address)
    ids: dict[int, DeviceId] = {}
    count: dict[str, int] = {}
    for gpu in listed:
        alone = gpu.unique_id and len(owners[gpu.unique_id]) == 1
        base = f"GPU-{gpu.unique_id:016x}" if alone else gpu.address
        part = count[base] = count.get(base, -1) + 1
        ids[gpu.node] = DeviceId(f"{base}.{part}" if part else base)
    return ids


def scan(tree: Tree, *, max_uncorrectable: int, rocm_version: str | None) -> list[ScannedDevice]:
    """Every GPU, or every partition where a GPU is cut into several.

    Args:
        max_uncorrectable: the highest number of uncorrectable memory errors of a healthy GPU.
        rocm_version: of the node, for the variant properties.
    """
    listed = list(gpus(tree))
    ids = device_ids(listed)
    functions = {gpu.address: pci_at(tree, gpu.address) for gpu in listed}
    places = {ids[gpu.node]: pci for gpu in listed if (pci := functions[gpu.address]) is not None}
    parts = {address: sum(1 for gpu in listed if gpu.address == address) for address in functions}
    devices = []
    for gpu in listed:
        pci = functions[gpu.address]
        nodes = [DeviceMapping(source="/dev/kfd"), DeviceMapping(source=f"/dev/dri/renderD{gpu.minor}")]
        faults = list(_faults(tree, pci, nodes, max_uncorrectable))
        devices.append(
            ScannedDevice(
                device=_device(tree, gpu, pci, ids, places, faults, rocm_version),
                nodes=tuple(nodes),
                fields={
                    "rank": str(gpu.rank),
                    "gpu_id": str(gpu.gpu_id),
                    "pci": gpu.address,
                    "partitions": str(parts[gpu.address]),
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
    counters = tree.glob(f"{pci.path}/ras/*_err_count")
    for path in counters:
        try:
            match = _UNCORRECTABLE.search(tree.read(path))
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
    places: Mapping[DeviceId, PciDevice],
    faults: Sequence[str],
    rocm_version: str | None,
) -> ComputeDevice:
    device_id = ids[gpu.node]
    product = tree.text(f"{pci.path}/product_name") if pci is not None else None
    name = (product or NAMES.get(gpu.device) or f"AMD {gpu.gfx}")[:128]
    memory = gpu.memory or int((pci and tree.value(f"{pci.path}/mem_info_vram_total")) or 0)
    kind = memory_type(gpu.gfx, gpu.device)
    precisions = PRECISIONS.get(gpu.gfx, ())
    return ComputeDevice(
        device_name=KEY,
        device_id=device_id,
        hw_location=gpu.address,
        slots=whole("rocm.device"),
        numa_node=pci.numa_node if pci is not None else None,
        memory_size=memory,
        processing_units=gpu.units,
        model_name=name,
        health=DeviceHealth.UNHEALTHY if faults else DeviceHealth.HEALTHY,
        health_reason="; ".join(faults)[:500],
        memory_spec=MemorySpec(total_memory=memory, memory_type=kind) if memory else None,
        compute_units=(ComputeUnit(name="CU", count=gpu.units),),
        precision_support=tuple(
            ComputePrecisionSupport(format=precision, support=PrecisionSupport.NATIVE) for precision in precisions
        ),
        partitioning_support=tuple(_partitioning(tree, pci, gpu)),
        links=_links(gpu, ids, links_of(device_id, places)),
        variant_properties=tuple(
            VariantProperty(namespace=NAMESPACE, feature=feature, value=value)
            for feature, value in (
                ("model", name),
                ("gfx_arch", gpu.gfx),
                ("memory_type", kind),
                ("memory_gib", str(memory >> 30) if memory else None),
                ("rocm_version", rocm_version),
                *(("precision", precision) for precision in precisions),
            )
            if value
        ),
    )


def _partitioning(tree: Tree, pci: PciDevice | None, gpu: KfdGpu) -> Iterator[PartitioningCapability]:
    """``available_compute_partition`` lists the modes, as ``SPX, DPX, QPX, CPX``; MI300 and later have it."""
    modes = tree.text(f"{pci.path}/available_compute_partition") if pci is not None else None
    for mode in re.findall(r"[A-Z]{3}", modes or ""):
        yield PartitioningCapability(technology=mode, max_partitions=_MODES.get(mode, max(1, gpu.xcc)))


def _links(gpu: KfdGpu, ids: Mapping[int, DeviceId], by_pci: Sequence[DeviceLink]) -> tuple[DeviceLink, ...]:
    """XGMI where the KFD says so, else the way through PCI express. Partitions of one GPU are linked inside of it."""
    xgmi = {ids[link.to]: link.bandwidth for link in gpu.links if link.type == XGMI and link.to in ids}
    direct = {
        peer: DeviceLink(
            peer=peer, kind=LinkKind.DIRECT, bandwidth_gib_s=round(bandwidth * _MB, 1) if bandwidth else None
        )
        for peer, bandwidth in xgmi.items()
        if peer != ids[gpu.node]
    }
    return tuple(({link.peer: link for link in by_pci} | direct).values())
