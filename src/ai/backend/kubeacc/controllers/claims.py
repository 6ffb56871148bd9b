"""Attaches the devices for which the scheduler waits, and sets the condition on which the scheduler binds the pod (DRA
binding conditions, KEP-5007; decision 0432)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple

from ai.backend.common.device_operations import OperationPhase, OperationVerb
from ai.backend.kubeacc.controllers.cluster_view import ClusterView
from ai.backend.kubeacc.controllers.progress import timestamp
from ai.backend.kubeacc.crd.objects import OPERATIONS, AcceleratorOperation
from ai.backend.kubeacc.crd.vocabulary import (
    ATTACH_FAILED_CONDITION,
    ATTACHED_CONDITION,
    CONTROLLER_MANAGER,
    AttachState,
    accelerator_of_pool,
)
from ai.backend.kubeacc.policies.roles import CONTROLLERS_USER
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import ObjectExists, ObjectInvalid, RequestDenied
from ai.backend.node.kube_api.objects import AllocatedDevice, ResourceClaim
from ai.backend.node.kube_api.resources import RESOURCE_CLAIMS

log = logging.getLogger(__name__)
_RECHECK_S = 2.0
_TTL_S = 3600
Key = tuple[str, str]


class _Verdict(NamedTuple):
    """Holds type, reason and message of a condition of a device in a claim.

    The condition decides if the scheduler binds the pod of the claim.
    """

    type: str
    reason: str
    message: str


def waiting_devices(claim: ResourceClaim) -> list[AllocatedDevice]:
    """Returns the allocated devices of a claim that must be attached before its pod is bound."""
    allocation = claim.status.allocation
    results = allocation.devices.results if allocation is not None else ()
    return [result for result in results if ATTACHED_CONDITION in result.binding_conditions]


def operation_name(claim: ResourceClaim, device: AllocatedDevice) -> str:
    """Returns the name of the operation that attaches a device for one allocation of a claim."""
    allocation = claim.status.allocation
    allocated_at = allocation.allocation_timestamp if allocation is not None else ""
    digest = sha256(f"{claim.metadata.uid} {allocated_at} {device.pool}/{device.device}".encode()).hexdigest()[:16]
    return f"attach-{digest}"


class ClaimController:
    """Reconciles resource claims: attaches the detached devices of a claim, and writes the results into the claim.

    A claim with a device that is detached gets an operation ``Attach`` in its namespace, which policies judge as any
    other; how it ends is the condition of the device in the claim.
    """

    def __init__(
        self, api: KubeApi, view: ClusterView, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._api, self._view, self._now = api, view, now

    async def reconcile(self, key: Key) -> float | None:
        namespace, name = key
        claim = self._view.claims.get(name, namespace)
        if claim is None or claim.metadata.deletion_timestamp:
            return None
        devices = waiting_devices(claim)
        written_verdicts = [_written_verdict(claim, device) for device in devices]
        # An allocation is decided once: the scheduler ends one that has failed, and a new one is a new attempt.
        verdicts = [
            verdict or await self._attach(claim, device)
            for device, verdict in zip(devices, written_verdicts, strict=True)
        ]
        decided_devices = [
            (device, verdict) for device, verdict in zip(devices, verdicts, strict=True) if verdict is not None
        ]
        if verdicts != written_verdicts:
            await self._write_conditions(claim, decided_devices)
        return _RECHECK_S if len(decided_devices) < len(devices) else None

    async def _attach(self, claim: ResourceClaim, device: AllocatedDevice) -> _Verdict | None:
        """Returns the result of a device's attachment. Returns None while the attachment is in progress."""
        name = operation_name(claim, device)
        operation = self._view.operations.get(name, claim.metadata.namespace)
        accelerator = self._view.accelerators.get(accelerator_of_pool(device.pool, device.device))
        is_free = accelerator is not None and accelerator.status.operation is None
        if operation is None and accelerator is not None and is_free:
            if accelerator.status.attach_state is AttachState.ATTACHED:
                return _Verdict(ATTACHED_CONDITION, "AlreadyAttached", "")
            return await self._create_operation(claim, device, name)
        if operation is not None and operation.status.phase.is_final:
            return _verdict_of(operation) if is_free or operation.status.phase is not OperationPhase.SUCCEEDED else None
        return None

    async def _create_operation(self, claim: ResourceClaim, device: AllocatedDevice, name: str) -> _Verdict | None:
        owner = {
            "apiVersion": RESOURCE_CLAIMS.api_version,
            "kind": RESOURCE_CLAIMS.kind,
            "name": claim.metadata.name,
            "uid": claim.metadata.uid,
        }
        spec = {
            "accelerator": accelerator_of_pool(device.pool, device.device),
            "operation": OperationVerb.ATTACH.value,
            "requestedBy": CONTROLLERS_USER,
            "attach": {"nodeName": device.pool},
            "ttlSecondsAfterFinished": _TTL_S,
        }
        body = {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec}
        try:
            await self._api.create(OPERATIONS, body, claim.metadata.namespace)
        except ObjectExists:
            return None
        except (RequestDenied, ObjectInvalid) as e:
            return _Verdict(ATTACH_FAILED_CONDITION, "Refused", e.message[:1024])
        return None

    async def _write_conditions(
        self, claim: ResourceClaim, decided_devices: list[tuple[AllocatedDevice, _Verdict]]
    ) -> None:
        """Writes the conditions of all kube-acc devices of a claim. This controller is their only writer."""
        entries: list[dict[str, Any]] = [
            {
                "driver": device.driver,
                "pool": device.pool,
                "device": device.device,
                "conditions": [
                    {
                        "type": verdict.type,
                        "status": "True",
                        "reason": verdict.reason,
                        "message": verdict.message,
                        "lastTransitionTime": timestamp(self._now()),
                    }
                ],
            }
            for device, verdict in decided_devices
        ]
        written_claim = await self._api.apply(
            RESOURCE_CLAIMS,
            claim.metadata.name,
            {"metadata": {"uid": claim.metadata.uid}, "status": {"devices": entries}},
            claim.metadata.namespace,
            manager=CONTROLLER_MANAGER,
            force=True,
            subresource="status",
        )
        self._view.claims.record(written_claim)
        for device, verdict in decided_devices:
            log.info("%s of %s/%s: %s", device.device, *claim.key, verdict.type)


def _verdict_of(operation: AcceleratorOperation) -> _Verdict:
    status = operation.status
    if status.phase is OperationPhase.SUCCEEDED:
        return _Verdict(ATTACHED_CONDITION, "Attached", "")
    message = f"{operation.metadata.name}: {status.message}"[:1024]
    return _Verdict(ATTACH_FAILED_CONDITION, status.reason or status.phase.value, message)


def _written_verdict(claim: ResourceClaim, device: AllocatedDevice) -> _Verdict | None:
    """Returns the condition that was written for a device of the present allocation.

    The scheduler removes all conditions of an allocation that it ends.
    """
    for entry in claim.status.devices:
        if (entry.driver, entry.pool, entry.device) == (device.driver, device.pool, device.device):
            for condition in entry.conditions:
                if condition.type in (ATTACHED_CONDITION, ATTACH_FAILED_CONDITION) and condition.status == "True":
                    return _Verdict(condition.type, condition.reason, condition.message)
    return None
