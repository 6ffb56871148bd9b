"""The topology of the KFD, the compute driver of amdgpu: ``/sys/class/kfd/kfd/topology``.

Source: Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c; ROCr libhsakmt topology.c. Every file is lines of
``name number``. A node whose ``gpu_id`` is not zero is a GPU, or a compute partition of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ai.backend.plugin.sysfs.tree import Missing, Tree, Unreadable

TOPOLOGY = "/sys/class/kfd/kfd/topology"
PROCESSES = "/sys/class/kfd/kfd/proc"
XGMI = 11
"""IO link type ``HSA_IOLINKTYPE_XGMI``; PCI express is 2."""
_LOCAL_MEMORY = (1, 2)
"""Heap types of memory banks: public and private frame buffer."""


@dataclass(frozen=True, slots=True)
class IoLink:
    """``bandwidth`` is in MB/s, 0 where the driver does not know."""

    to: int
    type: int
    bandwidth: int


@dataclass(frozen=True, slots=True)
class KfdGpu:
    """Describes a GPU node.

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
    """Raises Missing or Unreadable; a line that is not ``name number`` is skipped."""
    result = {}
    for line in tree.read(path).splitlines():
        name, _, value = line.strip().partition(" ")
        if value.isdecimal() and len(value) <= 20:
            result[name] = int(value)
    return result


def gfx_name(version: int) -> str:
    """``90402`` is gfx942, ``90010`` gfx90a: two decimal digits each for minor and stepping, shown as one."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def gpus(tree: Tree) -> Iterator[KfdGpu]:
    """The GPU nodes in the order of ROCr. A node that cannot be read is passed over, its number is not."""
    rank = 0
    for name in tree.names(f"{TOPOLOGY}/nodes"):
        path = f"{TOPOLOGY}/nodes/{name}"
        if not name.isdecimal():
            continue
        gpu_id = tree.value(f"{path}/gpu_id")
        values = _properties_or_nothing(tree, f"{path}/properties")
        if gpu_id or (gpu_id is None and values.get("simd_count")):
            if values:
                yield _gpu(tree, path, values, rank, int(gpu_id or 0))
            rank += 1


def _gpu(tree: Tree, path: str, values: Mapping[str, int], rank: int, gpu_id: int) -> KfdGpu:
    location = values.get("location_id", 0)
    banks = [_properties_or_nothing(tree, bank) for bank in tree.glob(f"{path}/mem_banks/*/properties")]
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
        memory=sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _LOCAL_MEMORY),
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
    """gpu_id -> bytes of its memory that a process uses; empty where it uses no GPU."""
    base = f"{PROCESSES}/{pid}"
    by_gpu = {}
    for name in tree.names(base):
        gpu_id = name.removeprefix("vram_")
        if gpu_id != name and gpu_id.isdecimal() and (used := tree.value(f"{base}/{name}")) is not None and used >= 0:
            by_gpu[int(gpu_id)] = int(used)
    return by_gpu
