"""The closed vocabularies of the resources of kube-acc, and the names that all of them share.

Each object has one writer for each field: users write a spec, the node plugin writes accelerators and what they are
(field manager ``kube-acc-node``), the controllers write what they decide of devices, classes and policies
(``kube-acc-controllers``) and of operations and the devices that they hold (``kube-acc-operations``)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta

from ai.backend.common.device_operations import OperationVerb
from ai.backend.kubeacc.crd.fields import LongWord, ObjectName, OptionalWord, Word

GROUP = "accelerators.backend.ai"
VERSION = "v1alpha1"
NODE_MANAGER = "kube-acc-node"
CONTROLLER_MANAGER = "kube-acc-controllers"
OPERATION_MANAGER = "kube-acc-operations"
DRIVER_MANAGER = "kube-acc-driver"
OPERATION_FINALIZER = f"{GROUP}/operation"


ATTACHED_CONDITION, ATTACH_FAILED_CONDITION = f"{GROUP}/Attached", f"{GROUP}/AttachFailed"
"""The conditions of a claim's device for which the scheduler waits before it binds the pod (DRA)."""


def accelerator_of_pool(pool: str, device: str) -> str:
    """Returns the name of the Accelerator that a node offers as ``device`` in its pool, which has the node's name."""
    return f"{pool}-{device}"[-253:].strip("-.")


class AcceleratorType(StrEnum):
    GPU = "GPU"
    FPGA = "FPGA"
    NPU = "NPU"
    TPU = "TPU"
    NIC = "NIC"
    QAT = "QAT"
    SSD = "SSD"
    QPU = "QPU"
    OTHER = "Other"


class Attachment(StrEnum):
    """The way in which a device is connected to a node.

    ``Local``: the device is built into its node. ``Remote``: a fabric or an IaaS connects it to a node.
    """

    LOCAL = "Local"
    REMOTE = "Remote"


class AttachState(StrEnum):
    ATTACHED = "Attached"
    DETACHED = "Detached"
    UNKNOWN = "Unknown"


class PowerState(StrEnum):
    ON = "On"
    OFF = "Off"
    UNKNOWN = "Unknown"


class LifecycleOwner(StrEnum):
    """The party that operates a device and offers it to pods: kube-acc or the device plugin of somebody else."""

    KUBE_ACC = "KubeAcc"
    DEVICE_PLUGIN = "DevicePlugin"


class DrainMode(StrEnum):
    """The treatment of workloads that hold a device: the operation is refused, waits for their end, or evicts them."""

    REFUSE = "Refuse"
    WAIT = "Wait"
    EVICT = "Evict"


class SubjectKind(StrEnum):
    USER = "User"
    GROUP = "Group"
    SERVICE_ACCOUNT = "ServiceAccount"


class PartitionAction(StrEnum):
    CREATE = "Create"
    DESTROY = "Destroy"


class Outcome(StrEnum):
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    ABORTED = "Aborted"


class RollbackState(StrEnum):
    NOT_NEEDED = "NotNeeded"
    DONE = "Done"
    FAILED = "Failed"


def list_map(*keys: str) -> dict[str, Any]:
    """Returns the schema of a list whose items several writers may own, each item by its ``keys``."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


LIST_SET = {"x-kubernetes-list-type": "set"}
LIST_ATOMIC = {"x-kubernetes-list-type": "atomic"}
VerbSet = Annotated[tuple[OperationVerb, ...], Meta(max_length=7, extra_json_schema=LIST_SET)]
TypeSet = Annotated[tuple[AcceleratorType, ...], Meta(max_length=9, extra_json_schema=LIST_SET)]
WordSet = Annotated[tuple[Word, ...], Meta(max_length=32, extra_json_schema=LIST_SET)]
NameSet = Annotated[tuple[ObjectName, ...], Meta(max_length=64, extra_json_schema=LIST_SET)]
Labels = Annotated[dict[LongWord, OptionalWord], Meta(max_length=16)]


class NodeCondition(StrEnum):
    """The conditions of an Accelerator that the node plugin writes."""

    DISCOVERED = "Discovered"
    HEALTHY = "Healthy"


class ControllerCondition(StrEnum):
    """The conditions of an Accelerator that the controllers write. ``Managed``: kube-acc may operate it, by the
    co-existence rule. ``Quarantined``: an operation ended without anybody knowing the device's state. ``Compliant``:
    its holders are those that the policies let share it."""

    MANAGED = "Managed"
    QUARANTINED = "Quarantined"
    COMPLIANT = "Compliant"
