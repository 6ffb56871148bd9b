"""Reads the network cards of the node from sysfs, and states at each device the nearest one (decision 0492)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ai.backend.common.devices import (
    CARD,
    DISTANCE,
    NETWORK,
    RATE,
    RDMA,
    ComputeDevice,
    LinkKind,
    VariantProperty,
)
from ai.backend.common.structs import replace
from ai.backend.plugin.sysfs.pci import PciDevice, link_kind, pci_at, pci_device
from ai.backend.plugin.sysfs.tree import Tree

_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec")
_ACTIVE = "ACTIVE"
_LINK_KINDS = list(LinkKind)
MAX_CARDS = 64


class NetworkCard(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a network card that has a link: its name, its PCI address and its rate in Gbit/s.

    ``is_rdma``: it does RDMA, by InfiniBand or over Ethernet.
    """

    name: str
    pci: PciDevice
    rate: float
    is_rdma: bool


def read_network_cards(tree: Tree) -> list[NetworkCard]:
    """Returns the PCI network cards with a link, one for each function; virtual functions are left out."""
    cards: dict[str, NetworkCard] = {}
    for path in tree.glob("/sys/class/infiniband/*")[:MAX_CARDS]:
        rates = [
            float(match[1])
            for port in tree.glob(f"{path}/ports/*")
            if (tree.text(f"{port}/state") or "").endswith(_ACTIVE)
            and (match := _RATE.match(tree.text(f"{port}/rate") or ""))
        ]
        _add_card(cards, tree, path, max(rates, default=0.0), is_rdma=True)
    for path in tree.glob("/sys/class/net/*")[:MAX_CARDS]:
        if tree.text(f"{path}/operstate") == "up":
            _add_card(cards, tree, path, (tree.value(f"{path}/speed") or 0.0) / 1000, is_rdma=False)
    return list(cards.values())


def _add_card(cards: dict[str, NetworkCard], tree: Tree, path: str, rate: float, *, is_rdma: bool) -> None:
    pci = pci_device(tree, f"{path}/device")
    if pci is None or rate <= 0 or tree.exists(f"{pci.path}/physfn"):
        return
    existing = cards.get(pci.address)
    if existing is None or existing.rate < rate:
        name = existing.name if existing is not None else path.rpartition("/")[2]
        cards[pci.address] = NetworkCard(
            name=name, pci=pci, rate=rate, is_rdma=is_rdma or (existing is not None and existing.is_rdma)
        )


def needs_cards(devices: Sequence[ComputeDevice]) -> bool:
    """Returns True if at least one device has a PCI address and does not state its network card itself."""
    return any(_address_of(device) is not None and not _has_network_property(device) for device in devices)


def with_network_cards(devices: Sequence[ComputeDevice], tree: Tree) -> tuple[ComputeDevice, ...]:
    """Returns the devices, each with features that describe its nearest network card. The features are
    ``network::distance``, ``card``, ``rate`` (Gbit/s) and ``rdma``. Of equally near cards one with RDMA is preferred,
    then the fastest. Reads sysfs.
    """
    cards = read_network_cards(tree)
    return tuple(_with_nearest_card(device, cards, tree) for device in devices) if cards else tuple(devices)


def _with_nearest_card(device: ComputeDevice, cards: Sequence[NetworkCard], tree: Tree) -> ComputeDevice:
    address = _address_of(device)
    own_pci = pci_at(tree, address) if address is not None and not _has_network_property(device) else None
    if own_pci is None:
        return device
    link_kind_of_card = {card.pci.address: link_kind(own_pci, card.pci) for card in cards}
    nearest_card = min(
        cards,
        key=lambda card: (
            _LINK_KINDS.index(link_kind_of_card[card.pci.address]),
            not card.is_rdma,
            -card.rate,
            card.pci.address,
        ),
    )
    value_of_feature = {
        DISTANCE: link_kind_of_card[nearest_card.pci.address].value,
        CARD: nearest_card.name[:128],
        RATE: f"{nearest_card.rate:g}",
        RDMA: "yes" if nearest_card.is_rdma else "no",
    }
    properties = (
        VariantProperty(namespace=NETWORK, feature=name, value=value) for name, value in value_of_feature.items()
    )
    return replace(device, variant_properties=(*device.variant_properties, *properties))


def _address_of(device: ComputeDevice) -> str | None:
    """Returns the PCI address in a device's location, or None if the location names none. A partition has the address
    of its device.
    """
    address = device.hw_location.partition("/")[0]
    return address if address.count(":") == 2 and "." in address else None


def _has_network_property(device: ComputeDevice) -> bool:
    return any(variant_property.namespace == NETWORK for variant_property in device.variant_properties)
