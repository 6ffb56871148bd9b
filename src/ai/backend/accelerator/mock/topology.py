"""Links between pretended devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ai.backend.accelerator.mock.declaration import Declaration, MockDevice
from ai.backend.common.devices import DeviceLink, LinkKind
from ai.backend.common.ids import DeviceId

NVLINK_GIB_S = 50.0


def _nvlink_all(a: int, b: int) -> LinkKind:
    return LinkKind.DIRECT


def _nvlink_pairs(a: int, b: int) -> LinkKind:
    return LinkKind.DIRECT if a // 2 == b // 2 else _pcie_tree(a, b)


def _pcie_tree(a: int, b: int) -> LinkKind:
    """Two devices below a switch, two switches below a root; beyond that nothing is said but the NUMA nodes."""
    if a // 2 == b // 2:
        return LinkKind.PCIE_SWITCH
    return LinkKind.PCIE_ROOT if a // 4 == b // 4 else LinkKind.NUMA


_SHAPES = {"nvlink-all": _nvlink_all, "nvlink-pairs": _nvlink_pairs, "pcie-tree": _pcie_tree}


def links_of(declaration: Declaration, devices: Sequence[MockDevice]) -> Mapping[str, tuple[DeviceLink, ...]]:
    """Device id -> its links, in the order of the devices; peers that are not among ``devices`` are left out."""
    ranks = {device.mother_uuid: n for n, device in enumerate(declaration.expanded())}
    named = {frozenset((link.a, link.b)): link for link in declaration.links}
    shape = _SHAPES.get(declaration.topology or "")

    def between(a: MockDevice, b: MockDevice) -> DeviceLink | None:
        link = named.get(frozenset((a.mother_uuid, b.mother_uuid)))
        peer = DeviceId(b.mother_uuid)
        if link is not None:
            return DeviceLink(peer=peer, kind=link.kind, bandwidth_gib_s=link.bandwidth)
        if shape is None:
            return None
        kind = shape(ranks[a.mother_uuid], ranks[b.mother_uuid])
        if kind is LinkKind.NUMA and a.node != b.node:
            kind = LinkKind.SYSTEM
        return DeviceLink(peer=peer, kind=kind, bandwidth_gib_s=NVLINK_GIB_S if kind is LinkKind.DIRECT else None)

    return {
        a.mother_uuid: tuple(link for b in devices if b is not a and (link := between(a, b)) is not None)
        for a in devices
    }
