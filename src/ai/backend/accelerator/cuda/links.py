"""Determines how GPUs are linked: NVLink, directly or by a switch, else the nearest common place on the PCI tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ai.backend.accelerator.cuda import tables
from ai.backend.accelerator.cuda.gpus import MAX_LINKS, Gpu, pci_address
from ai.backend.accelerator.cuda.nvml import Code, Nvml, NvmlFailure, optional
from ai.backend.common.devices import DeviceLink, LinkKind
from ai.backend.common.ids import DeviceId

_SWITCH = 2
_ACTIVE = 1
ANCESTORS: Mapping[int, LinkKind] = {
    0: LinkKind.PCIE_SWITCH,  # the same board
    10: LinkKind.PCIE_SWITCH,  # one switch
    20: LinkKind.PCIE_SWITCH,  # several switches, without the host bridge
    30: LinkKind.PCIE_ROOT,
    40: LinkKind.NUMA,
    50: LinkKind.SYSTEM,
}
"""``nvmlGpuTopologyLevel_t`` -> our kind."""


@dataclass(slots=True)
class _NvLinks:
    """Active links of one GPU: GiB/s in one direction to a switch, and to each GPU by PCI address."""

    to_switch: float = 0.0
    to_gpu: dict[str, float] = field(default_factory=dict)


def read_links(nvml: Nvml, gpus: Sequence[Gpu]) -> dict[str, tuple[DeviceLink, ...]]:
    """Maps UUIDs to links to every other GPU. Bandwidth is of one direction, only known for NVLink.

    Through a switch any two GPUs have the bandwidth of all links of the one that has fewer.
    """
    addresses = {gpu.pci_address for gpu in gpus}
    by_gpu = {gpu.uuid: _nvlinks(nvml, gpu, addresses) for gpu in gpus}
    found: dict[str, list[DeviceLink]] = {gpu.uuid: [] for gpu in gpus}
    for i, one in enumerate(gpus):
        for other in gpus[i + 1 :]:
            a, b = by_gpu[one.uuid], by_gpu[other.uuid]
            speed = a.to_gpu.get(other.pci_address, 0.0) or min(a.to_switch, b.to_switch)
            kind: LinkKind | None = LinkKind.DIRECT
            if not speed:
                level = _ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", one.uuid, other.uuid)
                kind = ANCESTORS.get(level) if isinstance(level, int) else None
            if kind is not None:
                found[one.uuid].append(_link(other, kind, speed))
                found[other.uuid].append(_link(one, kind, speed))
    return {uuid: tuple(links) for uuid, links in found.items()}


def _link(peer: Gpu, kind: LinkKind, speed: float) -> DeviceLink:
    return DeviceLink(peer=DeviceId(peer.uuid), kind=kind, bandwidth_gib_s=round(speed, 1) if speed else None)


def _ask(nvml: Nvml, function: str, *arguments: str | int) -> object:
    """Calls NVML; None also where the GPU is lost, which is reported as its health."""
    try:
        return optional(nvml, function, *arguments)
    except NvmlFailure:
        return None


def _nvlinks(nvml: Nvml, gpu: Gpu, addresses: AbstractSet[str]) -> _NvLinks:
    links = _NvLinks()
    for number in range(MAX_LINKS):
        try:
            state = nvml.ask("nvmlDeviceGetNvLinkState", gpu.uuid, number)
        except NvmlFailure as e:
            if e.code in (Code.INVALID_ARGUMENT, Code.NOT_SUPPORTED) and number == 0:
                break  # no NVLink at all
            continue
        if state != _ACTIVE:
            continue
        version = _ask(nvml, "nvmlDeviceGetNvLinkVersion", gpu.uuid, number)
        nominal = tables.NVLINK_GB_S.get(version, tables.NVLINK_GB_S[5]) if isinstance(version, int) else 0.0
        speed = nominal * 1e9 / 2**30
        remote = _ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", gpu.uuid, number)
        info = _ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", gpu.uuid, number)
        address = pci_address(info) if isinstance(info, dict) else ""
        if address in addresses:
            links.to_gpu[address] = links.to_gpu.get(address, 0.0) + speed
        elif remote == _SWITCH or (remote is None and address):
            # A driver that cannot tell the type of the other end still says where it is: no GPU, hence a switch.
            links.to_switch += speed
    return links
