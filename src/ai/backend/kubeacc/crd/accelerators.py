"""``Accelerator``: a device of a node, or of a fabric, with its state (BEP-1000; spec 02, goals)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, field

from ai.backend.common.devices import DeviceHealth, LinkKind, PrecisionSupport
from ai.backend.kubeacc.crd.fields import (
    Bytes,
    Conditions,
    Count,
    Decimal,
    Label,
    LongWord,
    ObjectName,
    OptionalWord,
    Properties,
    Resource,
    Rule,
    Sha256,
    Text,
    Time,
    Uid,
    Word,
    immutable,
)
from ai.backend.kubeacc.crd.vocabulary import (
    LIST_ATOMIC,
    AcceleratorType,
    Attachment,
    AttachState,
    ControllerCondition,
    LifecycleOwner,
    PowerState,
    VerbSet,
    WordSet,
    list_map,
)


class AcceleratorSpec(Resource, frozen=True, kw_only=True):
    """Identifies a device. The node plugin or an IaaS driver writes it; ``unschedulable`` belongs to people."""

    __rules__: ClassVar[tuple[Rule, ...]] = (
        *immutable("driver", "deviceID", "attachment"),
        Rule(
            rule="self.attachment == 'Remote' || has(self.nodeName)",
            message="a locally attached device has a nodeName",
        ),
    )

    driver: Annotated[Word, Meta(description="The accelerator plugin or IaaS driver that knows the device.")]
    device_id: Annotated[LongWord, Meta(min_length=1, description="The id that the driver gives the device.")] = field(
        name="deviceID"
    )
    type: AcceleratorType
    attachment: Attachment = Attachment.LOCAL
    node_name: (
        Annotated[ObjectName, Meta(description="The node that the device is at; a remote one may be at none.")] | None
    ) = None
    parent: Annotated[ObjectName, Meta(description="The Accelerator that this one is a partition of.")] | None = None
    unschedulable: Annotated[bool, Meta(description="True: the device takes no new workloads (cordoned).")] = False
    unschedulable_reason: Annotated[Text, Meta(description="For whoever wonders why.")] = ""


class Link(Resource, frozen=True, kw_only=True):
    """A path to another device of the same driver and node."""

    peer: Annotated[LongWord, Meta(description="The deviceID at the other end.")]
    kind: LinkKind
    bandwidth_gi_b_s: Annotated[Decimal, Meta(description="GiB/s in one direction.")] | None = field(
        default=None, name="bandwidthGiBPerSecond"
    )


class Topology(Resource, frozen=True, kw_only=True):
    numa_node: Count | None = None
    pcie_root: OptionalWord = ""
    pci_bus_id: OptionalWord = field(default="", name="pciBusID")
    links: Annotated[tuple[Link, ...], Meta(max_length=128, extra_json_schema=list_map("peer"))] = ()


class Memory(Resource, frozen=True, kw_only=True):
    total_bytes: Bytes = 0
    type: OptionalWord = ""
    bandwidth_gi_b_s: Decimal | None = field(default=None, name="bandwidthGiBPerSecond")


class Slot(Resource, frozen=True, kw_only=True):
    """A resource that the device offers, with its exact amount."""

    name: Word
    amount: Decimal
    quantum: Decimal = "1"
    exclusive_group: OptionalWord = ""


class ComputeUnits(Resource, frozen=True, kw_only=True):
    name: Word
    count: Count


class Precision(Resource, frozen=True, kw_only=True):
    format: Word
    support: PrecisionSupport


class Partitioning(Resource, frozen=True, kw_only=True):
    technology: OptionalWord = ""
    max_partitions: Count = 1
    profiles: Annotated[WordSet, Meta(description="The profiles that the device can be cut into now.")] = ()


class Variant(Resource, frozen=True, kw_only=True):
    """A property of the device (BEP-1000)."""

    namespace: Word
    feature: Word
    value: LongWord


class DeviceDescription(Resource, frozen=True, kw_only=True):
    """The device as its driver describes it (BEP-1000). Written by the node plugin or the IaaS driver."""

    vendor: OptionalWord = ""
    model: OptionalWord = ""
    uuid: Annotated[LongWord, Meta(description="The id that claims of the same device select.")] = ""
    driver_version: OptionalWord = ""
    firmware_version: OptionalWord = ""
    hardware_location: LongWord = ""
    memory: Memory | None = None
    processing_units: Count = 0
    compute_units: Annotated[tuple[ComputeUnits, ...], Meta(max_length=16, extra_json_schema=list_map("name"))] = ()
    precisions: Annotated[tuple[Precision, ...], Meta(max_length=32, extra_json_schema=list_map("format"))] = ()
    partitioning: Partitioning | None = None
    slots: Annotated[tuple[Slot, ...], Meta(max_length=32, extra_json_schema=list_map("name"))] = ()
    variants: Annotated[
        tuple[Variant, ...], Meta(max_length=64, extra_json_schema=list_map("namespace", "feature", "value"))
    ] = ()
    topology: Topology | None = None
    operations: Annotated[VerbSet, Meta(description="The operations that the driver can do on the device.")] = ()
    extra: Annotated[Properties, Meta(description="Facts for people.")] = field(default_factory=dict)


class Health(Resource, frozen=True, kw_only=True):
    state: DeviceHealth
    reason: Text = ""
    since: Time | None = None


class Program(Resource, frozen=True, kw_only=True):
    """The image that the device has loaded. ``sha256`` is unknown if kube-acc has not loaded it."""

    image: LongWord
    sha256: Sha256 | None = None


class Holder(Resource, frozen=True, kw_only=True):
    """A workload that holds the device or a part of it."""

    namespace: ObjectName
    pod: ObjectName
    uid: Uid
    container: Label | None = None
    claim: ObjectName | None = None


class Usage(Resource, frozen=True, kw_only=True):
    """The use of the device when it was last measured, at most once a minute. Earlier values are not kept.

    Series are for a metrics server.
    """

    measured_at: Time
    utilization_percent: Decimal | None = None
    memory_used_bytes: Bytes | None = None
    power_watts: Decimal | None = None
    temperature_celsius: Decimal | None = None


class OperationRef(Resource, frozen=True, kw_only=True):
    namespace: ObjectName
    name: ObjectName
    uid: Uid


class AcceleratorStatus(Resource, frozen=True, kw_only=True):
    """The state of a device. ``className``, ``managedBy``, ``operation``, ``attachedBy`` and their conditions are the
    controllers'; the rest is the node plugin's."""

    observed_generation: Annotated[int, Meta(ge=0)] = 0
    device: DeviceDescription | None = None
    health: Health | None = None
    attach_state: AttachState = AttachState.UNKNOWN
    power_state: PowerState = PowerState.UNKNOWN
    program: Program | None = None
    holders: Annotated[
        tuple[Holder, ...],
        Meta(
            max_length=128,
            description="The workloads that hold the device, as the kubelet says.",
            extra_json_schema=LIST_ATOMIC,
        ),
    ] = ()
    held: Annotated[bool, Meta(description="Whether there is any holder; for printing and selecting.")] = False
    usage: Usage | None = None
    device_plugin_resource: Annotated[
        LongWord,
        Meta(description="The extended resource, or the DRA driver, by which somebody else offers the device."),
    ] = ""
    class_name: Annotated[ObjectName, Meta(description="The class that the device belongs to.")] | None = None
    managed_by: (
        Annotated[LifecycleOwner, Meta(description="Who operates the device, by the co-existence rule.")] | None
    ) = None
    operation: Annotated[OperationRef, Meta(description="The one operation that may touch the device now.")] | None = (
        None
    )
    attached_by: Annotated[OperationRef, Meta(description="The operation that attached a remote device.")] | None = None
    conditions: Conditions = ()

    @property
    def is_quarantined(self) -> bool:
        """True if the device has the condition ``Quarantined``, because an operation ended and left an unknown state.

        A reset or a detachment of the device ends the quarantine.
        """
        return any(
            condition.type == ControllerCondition.QUARANTINED and condition.status == "True"
            for condition in self.conditions
        )
