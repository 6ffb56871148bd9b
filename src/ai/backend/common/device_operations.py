"""Defines the verbs, phases and other fixed words of operations on accelerators of a Kubernetes cluster (spec 02).

``core.lifecycle`` has their transitions.
"""

from __future__ import annotations

from enum import StrEnum


class OperationVerb(StrEnum):
    """The kind of an operation on a device, such as attach, program or reset.

    ``diagnose`` only reads; every other one changes the device.
    """

    ATTACH = "Attach"
    DETACH = "Detach"
    PROGRAM = "Program"
    POWER = "Power"
    RESET = "Reset"
    PARTITION = "Partition"
    DIAGNOSE = "Diagnose"


class OperationPhase(StrEnum):
    """The phase of an operation on a device, from ``Pending`` to its end.

    ``Verifying``: the executor has reported success, and the device does not show the result yet. ``Cancelling``: the
    executor was told to stop and has not reported yet.
    """

    PENDING = "Pending"
    QUEUED = "Queued"
    DRAINING = "Draining"
    RUNNING = "Running"
    RETRYING = "Retrying"
    VERIFYING = "Verifying"
    CANCELLING = "Cancelling"
    ROLLING_BACK = "RollingBack"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    REFUSED = "Refused"

    @property
    def is_final(self) -> bool:
        """Returns True if the operation has ended and holds no device."""
        return self in FINAL_OPERATION_PHASES

    @property
    def holds_device(self) -> bool:
        """Returns True if no other operation may use the device."""
        return self in HOLDING_OPERATION_PHASES


FINAL_OPERATION_PHASES = frozenset(
    {OperationPhase.SUCCEEDED, OperationPhase.FAILED, OperationPhase.CANCELLED, OperationPhase.REFUSED}
)
HOLDING_OPERATION_PHASES = frozenset(
    {
        OperationPhase.DRAINING,
        OperationPhase.RUNNING,
        OperationPhase.RETRYING,
        OperationPhase.VERIFYING,
        OperationPhase.CANCELLING,
        OperationPhase.ROLLING_BACK,
    }
)
