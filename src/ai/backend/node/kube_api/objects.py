"""Defines the fields of Kubernetes objects that are decoded (API reference 1.34 and later); all others are skipped.

A projection decodes many times faster, and into less memory, than the whole object: ``managedFields`` alone are often
half of it. Fields that the platform does not read are not listed; add one where it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

ResourceList = dict[str, str]
"""Names of resources and their quantities, see :func:`ai.backend.node.kube_api.quantities.parse_quantity`."""


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """The base class of every projection of Kubernetes objects and of their parts.

    Keys are in camel case, and each field has a default, as absent fields mean.
    """


class OwnerReference(Part, frozen=True, kw_only=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(Part, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: Sequence[str] = ()
    owner_references: Sequence[OwnerReference] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str = ""
    """The time at which the object may vanish; empty unless its deletion was requested."""


class KubeObject(Part, frozen=True, kw_only=True):
    """The base class of all Kubernetes objects, which has the metadata only.

    An object without further fields stands for any kind of which only the metadata count.
    """

    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> tuple[str, str]:
        """The namespace and the name of the object; the namespace is empty for objects of the whole cluster."""
        return self.metadata.namespace, self.metadata.name


class Condition(Part, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class ResourceRequirements(Part, frozen=True, kw_only=True):
    requests: ResourceList = {}
    limits: ResourceList = {}


class Container(Part, frozen=True, kw_only=True):
    """Describes a container of a pod. ``restart_policy`` ``Always`` marks an init container that runs as long as the
    pod does (native sidecar).
    """

    name: str = ""
    image: str = ""
    restart_policy: str = ""
    resources: ResourceRequirements = ResourceRequirements()


class SchedulingGate(Part, frozen=True, kw_only=True):
    name: str = ""


class PodSpec(Part, frozen=True, kw_only=True):
    node_name: str = ""
    scheduling_gates: Sequence[SchedulingGate] = ()
    containers: Sequence[Container] = ()
    init_containers: Sequence[Container] = ()
    overhead: ResourceList = {}
    resources: ResourceRequirements | None = None
    """The resources of the whole pod, where the cluster has pod-level resources."""
    priority: int = 0
    runtime_class_name: str = ""
    scheduler_name: str = ""
    host_network: bool = False


class StateWaiting(Part, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class StateRunning(Part, frozen=True, kw_only=True):
    started_at: str | None = None


class StateTerminated(Part, frozen=True, kw_only=True):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    container_id: str = msgspec.field(default="", name="containerID")
    finished_at: str | None = None


class ContainerState(Part, frozen=True, kw_only=True):
    waiting: StateWaiting | None = None
    running: StateRunning | None = None
    terminated: StateTerminated | None = None


class ContainerStatus(Part, frozen=True, kw_only=True):
    name: str = ""
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodIP(Part, frozen=True, kw_only=True):
    ip: str = ""


class PodClaimStatus(Part, frozen=True, kw_only=True):
    name: str = ""
    resource_claim_name: str = ""


class PodStatus(Part, frozen=True, kw_only=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: Sequence[PodIP] = msgspec.field(default=(), name="podIPs")
    host_ip: str = msgspec.field(default="", name="hostIP")
    start_time: str = ""
    qos_class: str = ""
    conditions: Sequence[Condition] = ()
    container_statuses: Sequence[ContainerStatus] = ()
    init_container_statuses: Sequence[ContainerStatus] = ()
    resource_claim_statuses: Sequence[PodClaimStatus] = ()


class Pod(KubeObject, frozen=True, kw_only=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Taint(Part, frozen=True, kw_only=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Part, frozen=True, kw_only=True):
    unschedulable: bool = False
    taints: Sequence[Taint] = ()


class NodeAddress(Part, frozen=True, kw_only=True):
    type: str = ""
    address: str = ""


class NodeInfo(Part, frozen=True, kw_only=True):
    architecture: str = ""
    operating_system: str = ""
    kernel_version: str = ""
    kubelet_version: str = ""
    container_runtime_version: str = ""


class NodeStatus(Part, frozen=True, kw_only=True):
    capacity: ResourceList = {}
    allocatable: ResourceList = {}
    conditions: Sequence[Condition] = ()
    addresses: Sequence[NodeAddress] = ()
    node_info: NodeInfo = NodeInfo()


class Node(KubeObject, frozen=True, kw_only=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LeaseSpec(Part, frozen=True, kw_only=True):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str = ""
    renew_time: str = ""
    lease_transitions: int = 0


class Lease(KubeObject, frozen=True, kw_only=True):
    spec: LeaseSpec = LeaseSpec()


class DeviceAttribute(Part, frozen=True, kw_only=True):
    """Holds one attribute of a device, whose value is a text, a number, a flag or a version.

    The value is in the field of its type.
    """

    string: str | None = None
    number: int | None = msgspec.field(default=None, name="int")
    flag: bool | None = msgspec.field(default=None, name="bool")
    version: str | None = None

    @property
    def value(self) -> Any:
        """The value, or None for an attribute of a type that is not known."""
        return next(
            (
                field_value
                for field_value in (self.string, self.number, self.flag, self.version)
                if field_value is not None
            ),
            None,
        )


class DeviceCapacity(Part, frozen=True, kw_only=True):
    value: str = "0"


class DeviceTaint(Part, frozen=True, kw_only=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class Device(Part, frozen=True, kw_only=True):
    name: str = ""
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    taints: Sequence[DeviceTaint] = ()
    node_name: str = ""
    all_nodes: bool = False
    binding_conditions: Sequence[str] = ()
    allow_multiple_allocations: bool = False
    consumes_counters: Sequence[dict[str, Any]] = ()


class DevicePool(Part, frozen=True, kw_only=True):
    """Identifies the pool of devices to which a slice of Kubernetes (ResourceSlice) belongs.

    All slices of a pool with the highest ``generation`` together are the pool, if there are ``resource_slice_count``.
    """

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Part, frozen=True, kw_only=True):
    driver: str = ""
    node_name: str = ""
    pool: DevicePool = DevicePool()
    devices: Sequence[Device] = ()


class ResourceSlice(KubeObject, frozen=True, kw_only=True):
    spec: ResourceSliceSpec = ResourceSliceSpec()


class AllocatedDevice(Part, frozen=True, kw_only=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: ResourceList = {}
    binding_conditions: Sequence[str] = ()


class ClaimDevices(Part, frozen=True, kw_only=True):
    results: Sequence[AllocatedDevice] = ()


class ClaimAllocation(Part, frozen=True, kw_only=True):
    devices: ClaimDevices = ClaimDevices()
    allocation_timestamp: str = ""


class ClaimConsumer(Part, frozen=True, kw_only=True):
    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimDeviceStatus(Part, frozen=True, kw_only=True):
    driver: str = ""
    pool: str = ""
    device: str = ""
    conditions: Sequence[Condition] = ()


class ClaimStatus(Part, frozen=True, kw_only=True):
    allocation: ClaimAllocation | None = None
    devices: Sequence[ClaimDeviceStatus] = ()
    reserved_for: Sequence[ClaimConsumer] = ()


class ResourceClaim(KubeObject, frozen=True, kw_only=True):
    status: ClaimStatus = ClaimStatus()


class Overhead(Part, frozen=True, kw_only=True):
    pod_fixed: ResourceList = {}


class RuntimeClass(KubeObject, frozen=True, kw_only=True):
    handler: str = ""
    overhead: Overhead | None = None
