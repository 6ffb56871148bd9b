"""Describes devices, their links and their allocations as plain data.

Fields follow BEP-1000 (peer facts 1.1) with topology added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Self

from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType

NETWORK, DISTANCE, CARD, RATE, RDMA = "network", "distance", "card", "rate", "rdma"
"""The namespace and the features in which a device states its nearest network card; the distance is a LinkKind."""
FABRIC, DOMAIN = "fabric", "domain"
"""The namespace and the feature in which a device states the fabric that links it with devices of other nodes."""


TAINT, KEY = "taint", "key"
"""The namespace and the feature by which a device is kept from requests that do not tolerate it."""


class LinkKind(StrEnum):
    """The kind of path between two devices, best first."""

    DIRECT = "direct"
    """A vendor's own link (NVLink, XGMI, ...)."""
    PCIE_SWITCH = "pcie-switch"
    PCIE_ROOT = "pcie-root"
    NUMA = "numa"
    SYSTEM = "system"


class PrecisionSupport(StrEnum):
    NATIVE = "native"
    EMULATED = "emulated"
    NONE = "none"


class DeviceHealth(StrEnum):
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLink:
    """A path from a device to its ``peer``; list it at both devices. ``bandwidth_gib_s`` is in GiB/s, one direction."""

    peer: DeviceId
    kind: LinkKind
    bandwidth_gib_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySpec:
    """The memory of a device, such as its size, type and caches. Sizes are in bytes, bandwidth in GiB/s."""

    total_memory: int
    memory_type: str | None = None
    bandwidth: float | None = None
    l1_cache_per_core: int | None = None
    l2_cache: int | None = None
    shared_mem_per_core: int | None = None
    memory_channels: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeUnit:
    name: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePrecisionSupport:
    format: str
    support: PrecisionSupport


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitioningCapability:
    max_partitions: int = 1
    technology: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantProperty:
    """A property of a device as ``namespace::feature::value``."""

    namespace: str
    feature: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses ``namespace::feature::value``. Raises InvalidInput if a part is missing, or longer than 128
        characters."""
        parts = [part.strip() for part in text.split("::", 2)]
        if len(parts) != 3 or not all(0 < len(part) <= 128 for part in parts):
            raise InvalidInput(f"{text[:200]!r} is not a variant property; write namespace::feature::value")
        return cls(namespace=parts[0], feature=parts[1], value=parts[2])

    def __str__(self) -> str:
        return f"{self.namespace}::{self.feature}::{self.value}"


class VariantMatchMode(StrEnum):
    """The way in which a device's value of a variant feature is compared with the required value (BEP-1000)."""

    EXACT = "exact"
    MINIMUM = "minimum"
    """As a version: the device's is the same or newer."""
    COMPATIBLE = "compatible"
    """The device's value begins with the required one, at a boundary of its dotted parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFeature:
    """A feature of a namespace. ``ordered_values`` lists its values, the most preferred first."""

    name: str
    match_mode: VariantMatchMode = VariantMatchMode.EXACT
    multi_value: bool = False
    ordered_values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantNamespace:
    """The features that a plugin declares for its devices. A feature that is not declared is compared exactly."""

    namespace: str
    features: tuple[VariantFeature, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSlot:
    """The amount of one slot that a device offers, and the smallest step (``quantum``) of a quantity.

    Slots of one ``exclusive_group`` exclude each other once one of them is taken (whole device, shares, partitions).
    ``counters``: of a partition that is cut when it is given, what each takes of the device's counters; such slots of a
    device exclude each other only as far as its counters do, and are in one exclusive group.
    """

    slot_name: SlotName
    slot_type: SlotType
    amount: Decimal
    quantum: Decimal = Decimal(1)
    exclusive_group: str | None = None
    counters: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeDevice:
    """A device of a node as its plugin describes it.

    ``counters``: of what it can be cut into together, such as bytes of memory; the agent fills it in.
    ``partition_ids``: partitions that exist of a device with ``counters``; what is held of them is held of the device.
    ``parent_id``: the device of which this one is a partition.
    """

    device_name: DeviceName
    device_id: DeviceId
    hw_location: str
    slots: tuple[DeviceSlot, ...]
    numa_node: int | None = None
    memory_size: int = 0
    processing_units: int = 0
    model_name: str | None = None
    health: DeviceHealth = DeviceHealth.HEALTHY
    health_reason: str = ""
    memory_spec: MemorySpec | None = None
    compute_units: tuple[ComputeUnit, ...] = ()
    precision_support: tuple[ComputePrecisionSupport, ...] = ()
    partitioning_support: tuple[PartitioningCapability, ...] = ()
    links: tuple[DeviceLink, ...] = ()
    variant_properties: tuple[VariantProperty, ...] = ()
    counters: tuple[tuple[str, int], ...] = ()
    partition_ids: tuple[DeviceId, ...] = ()
    parent_id: DeviceId | None = None

    @property
    def properties(self) -> tuple[VariantProperty, ...]:
        """The plugin's properties, and ``<device name>::model::<model name>`` if the device has a model."""
        if not self.model_name:
            return self.variant_properties
        model_property = VariantProperty(namespace=self.device_name, feature="model", value=self.model_name)
        return (
            self.variant_properties
            if model_property in self.variant_properties
            else (*self.variant_properties, model_property)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDisplay:
    """Describes how a user interface prints a slot's quantity: name, unit, icon, number format (spec 03-06).

    The specification calls it ``formats``.
    """

    slot_name: SlotName
    slot_type: SlotType
    description: str = ""
    human_readable_name: str = ""
    display_unit: str = ""
    display_icon: str = ""
    number_binary: bool = False
    number_round_length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAllocation:
    """The devices of a kernel: slot -> device -> exact quantity. Quantities are positive; a missing key is zero."""

    slots: Mapping[SlotName, Mapping[DeviceId, Decimal]] = field(default_factory=dict)

    def total(self, slot_name: SlotName) -> Decimal:
        return sum(self.slots.get(slot_name, {}).values(), Decimal(0))

    def device_ids(self) -> frozenset[DeviceId]:
        return frozenset(device_id for device_quantities in self.slots.values() for device_id in device_quantities)


class AllocationStrategy(StrEnum):
    FILL = "fill"
    EVENLY = "evenly"
    LEAST_FRAGMENTATION = "least-fragmentation"


class AffinityPolicy(StrEnum):
    """The rule by which the devices of one request are spread over the NUMA nodes of a computer."""

    PREFER_SINGLE_NODE = "prefer-single-node"
    """All from one node if possible, else from as few as possible."""
    INTERLEAVED = "interleaved"
    """Devices of each node in turn, for programs that need the memory bandwidth of all nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocMapSpec:
    """A standard alloc map (``discrete`` or ``fractional``) as data, so that the manager can plan without the vendor's
    package. ``shareable``: a device that is given whole may serve several workloads of one device claim at once.
    ``anonymous``: the ids only count devices, and others choose which one a workload gets; no claim can keep one."""

    kind: str
    strategy: AllocationStrategy = AllocationStrategy.EVENLY
    affinity_policy: AffinityPolicy = AffinityPolicy.PREFER_SINGLE_NODE
    shareable: bool = False
    anonymous: bool = False
