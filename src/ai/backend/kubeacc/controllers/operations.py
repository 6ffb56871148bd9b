"""Drives every AcceleratorOperation through its state machine, one step at a time.

Each step is stored before the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from ai.backend.common.device_operations import OperationPhase
from ai.backend.common.errors import ArtifactRejected, NotFound
from ai.backend.common.structs import replace
from ai.backend.kubeacc.controllers.cluster_view import ClusterView
from ai.backend.kubeacc.controllers.decision import CURES_QUARANTINE, Situation, next_step
from ai.backend.kubeacc.controllers.devices import ownership_of
from ai.backend.kubeacc.controllers.progress import advance, ended_status, timestamp
from ai.backend.kubeacc.crd.accelerators import OperationRef
from ai.backend.kubeacc.crd.fields import Condition
from ai.backend.kubeacc.crd.objects import (
    ACCELERATORS,
    OPERATIONS,
    POLICIES,
    Accelerator,
    AcceleratorClass,
    AcceleratorOperation,
)
from ai.backend.kubeacc.crd.operations import AcceleratorOperationSpec
from ai.backend.kubeacc.crd.policies import MAX_RECENT, AcceleratorPolicySpec, RecentOperation
from ai.backend.kubeacc.crd.vocabulary import (
    OPERATION_FINALIZER,
    OPERATION_MANAGER,
    AttachState,
    ControllerCondition,
    RollbackState,
)
from ai.backend.kubeacc.drivers.artifacts import verify_signature
from ai.backend.kubeacc.policies.evaluation import OperationContext, Usage, evaluate
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import ObjectConflict, ObjectInvalid, RequestDenied, TooManyRequests
from ai.backend.node.kube_api.resources import PODS
from ai.backend.plugin.crash_points import crash_point

log = logging.getLogger(__name__)
P = OperationPhase
Key = tuple[str, str]
DEFAULT_DEADLINE_S, DEFAULT_RETRIES = 600, 3
_HOUR_S = 3600.0
_HOSTNAME = "kubernetes.io/hostname"
CRASH_POINTS = (
    "after-operation-finalizer",
    "after-operation-acquire",
    "before-operation-status",
    "after-operation-status",
    "after-operation-release",
)
"""Passed by every operation that succeeds, in this order; the two of the status once for each step."""


class OperationController:
    """Takes the next step of an operation whenever the operation is due; operations are named by (namespace, name).

    ``executor_of`` returns the executor of a device, empty if there is none; ``silent_s`` for how long an executor was
    not seen alive.
    """

    def __init__(
        self,
        api: KubeApi,
        view: ClusterView,
        *,
        executor_of: Callable[[AcceleratorOperation, Accelerator], str],
        silent_s: Callable[[str], float],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._view = api, view
        self._executor_of, self._silent_s, self._now = executor_of, silent_s, now
        self._acquiring: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def reconcile(self, key: Key) -> float | None:
        """Takes the next step of an operation, and returns the seconds until the operation is reconciled again."""
        namespace, name = key
        operation = self._view.operations.get(name, namespace)
        if operation is None:
            return None
        if operation.status.phase.is_final:
            return await self._finish(operation)
        if OPERATION_FINALIZER not in operation.metadata.finalizers:
            if operation.metadata.deletion_timestamp:
                return None  # nothing was begun without the finalizer
            await self._set_finalizer(operation, is_present=True)
            crash_point("after-operation-finalizer")
            return 0.0
        # Of the waiting operations of a namespace one is decided at a time, so that each sees the quota that is left.
        async with self._acquiring.setdefault(namespace, asyncio.Lock()):
            situation = self._situation(operation)
            next_action = next_step(situation)
            if next_action.acquire and situation.device is not None:
                await self._acquire(operation, situation.device)
                crash_point("after-operation-acquire")
                return 0.0
        if next_action.evict and situation.device is not None and (problem := await self._evict(situation.device)):
            next_action = replace(next_action, reason="EvictionRefused", message=problem[:1024])
        status, _ = advance(situation, next_action)
        if status != replace(operation.status, report=None):
            crash_point("before-operation-status")
            if status.attempts > operation.status.attempts == 0 and situation.policy.policy is not None:
                await self._record_begin(operation, situation.policy.policy, situation.now)
            await self._store_status(operation, status)
            crash_point("after-operation-status")
            if next_action.trigger is not None:
                log.info("%s/%s: %s by %s", namespace, name, status.phase, next_action.trigger)
        return 0.0 if next_action.trigger is not None else next_action.again_s

    def _situation(self, operation: AcceleratorOperation) -> Situation:
        now = self._now()
        device = self._view.accelerators.get(operation.spec.accelerator)
        acc_class = self._view.classes.get(device.status.class_name) if device and device.status.class_name else None
        default_deadline_s = acc_class.spec.default_deadline_seconds if acc_class else DEFAULT_DEADLINE_S
        default_retries = acc_class.spec.default_retry_limit if acc_class else DEFAULT_RETRIES
        status, spec = operation.status, operation.spec
        deadline = now + timedelta(seconds=spec.deadline_seconds or default_deadline_s)
        policies = {policy.metadata.name: policy.spec for policy in self._view.policies.all()}
        namespace = self._view.namespaces.get(operation.metadata.namespace)
        operation_context = OperationContext(
            spec=spec,
            namespace=operation.metadata.namespace,
            namespace_labels=namespace.metadata.labels if namespace is not None else {},
            class_name=device.status.class_name if device is not None else None,
            now=now,
            usage={
                name: self._usage(name, policy, operation, now)
                for name, policy in policies.items()
                if policy.quota is not None
            },
        )
        policy = evaluate(policies, operation_context)
        executor = status.executor or (self._executor_of(operation, device) if device is not None else "")
        return Situation(
            operation=operation,
            device=device,
            ownership=ownership_of(device, acc_class) if device is not None else None,
            policy=policy,
            retry_limit=default_retries if spec.retry_limit is None else spec.retry_limit,
            deadline=datetime.fromisoformat(status.deadline) if status.deadline else deadline,
            now=now,
            executor=executor,
            artifact_problem=_artifact_problem(spec, acc_class, is_required=policy.needs_signature),
            executor_silent_s=self._silent_s(executor) if executor else 0.0,
        )

    def _usage(self, name: str, policy: AcceleratorPolicySpec, operation: AcceleratorOperation, now: datetime) -> Usage:
        """Returns how much of the quota of the policy ``name`` an operation's namespace uses, without the operation.

        Operations that this policy allowed and attached devices of its classes count. An operation that cannot
        be decoded counts for every policy, and where no more can be noted, none begins.
        """
        namespace, uid = operation.metadata.namespace, operation.metadata.uid
        other_operations = [
            other_operation
            for other_operation in self._view.operations.all()
            if other_operation.metadata.namespace == namespace
            and other_operation.metadata.uid != uid
            and other_operation.status.policy == name
        ]
        devices = self._view.accelerators.all()
        locking_uids = {device.status.operation.uid for device in devices if device.status.operation is not None}
        begun_uids = {
            other_operation.metadata.uid
            for other_operation in other_operations
            if other_operation.status.attempts
            and other_operation.status.start_time
            and _is_recent(other_operation.status.start_time, now)
        }
        recent_operations = self._recent_operations(name, now)
        begun_uids |= {
            recent_operation.uid
            for recent_operation in recent_operations
            if recent_operation.namespace == namespace and recent_operation.uid != uid
        }
        limit = policy.quota.operations_per_hour if policy.quota is not None else None
        undecodable_count = sum(1 for key in self._view.operations.reflector.undecodable if key[0] == namespace)
        return Usage(
            attached_devices=sum(
                1
                for device in devices
                if device.status.attached_by is not None
                and device.status.attached_by.namespace == namespace
                and (not policy.class_names or device.status.class_name in policy.class_names)
            ),
            concurrent_operations=undecodable_count
            + sum(
                1
                for other_operation in other_operations
                if other_operation.status.phase.holds_device or other_operation.metadata.uid in locking_uids
            ),
            operations_last_hour=undecodable_count
            + len(begun_uids)
            + (limit or 0 if len(recent_operations) >= MAX_RECENT else 0),
        )

    def _recent_operations(self, policy_name: str, now: datetime) -> list[RecentOperation]:
        """Returns the operations of the last hour that a policy's status lists."""
        policy = self._view.policies.get(policy_name)
        recorded_operations = policy.status.recent_operations if policy is not None else ()
        return [
            recent_operation for recent_operation in recorded_operations if _is_recent(recent_operation.start_time, now)
        ]

    async def _record_begin(self, operation: AcceleratorOperation, policy_name: str, now: datetime) -> None:
        """Adds an operation that begins to the status of its policy, if a quota counts it.

        Raises Conflict if the policy has changed since it was asked, so of two operations one gets the last place."""
        policy = self._view.policies.get(policy_name)
        if policy is None or policy.spec.quota is None or policy.spec.quota.operations_per_hour is None:
            return
        metadata = operation.metadata
        beginning_operation = RecentOperation(namespace=metadata.namespace, uid=metadata.uid, start_time=timestamp(now))
        recent_operations = [
            recent_operation
            for recent_operation in self._recent_operations(policy_name, now)
            if recent_operation.uid != metadata.uid
        ]
        condition = {"uid": policy.metadata.uid, "resourceVersion": policy.metadata.resource_version}
        written_policy = await self._api.apply(
            POLICIES,
            policy_name,
            {
                "metadata": condition,
                "status": {"recentOperations": msgspec.to_builtins([*recent_operations, beginning_operation])},
            },
            manager=OPERATION_MANAGER,
            force=True,
            subresource="status",
        )
        self._view.policies.record(written_policy)

    async def _set_finalizer(self, operation: AcceleratorOperation, *, is_present: bool) -> None:
        finalizers = [name for name in operation.metadata.finalizers if name != OPERATION_FINALIZER]
        if is_present:
            finalizers.append(OPERATION_FINALIZER)
        metadata = {
            "uid": operation.metadata.uid,
            "resourceVersion": operation.metadata.resource_version,
            "finalizers": finalizers,
        }
        patched_operation = await self._api.patch(
            OPERATIONS, operation.metadata.name, {"metadata": metadata}, operation.metadata.namespace
        )
        self._view.operations.record(patched_operation)

    async def _acquire(self, operation: AcceleratorOperation, device: Accelerator) -> None:
        """Locks the device for an operation. Raises Conflict if the device has changed since it was read, so of two
        operations one gets it."""
        metadata = operation.metadata
        reference = OperationRef(namespace=metadata.namespace, name=metadata.name, uid=metadata.uid)
        await self._write_device(device, operation=reference, quarantined=None, attached_by=device.status.attached_by)

    async def _release(self, operation: AcceleratorOperation, device: Accelerator) -> None:
        status, spec = operation.status, operation.spec
        metadata = operation.metadata
        attached_by = device.status.attached_by
        has_succeeded = status.phase is P.SUCCEEDED
        if has_succeeded and spec.attach is not None:
            attached_by = OperationRef(namespace=metadata.namespace, name=metadata.name, uid=metadata.uid)
        elif device.status.attach_state is AttachState.DETACHED:
            attached_by = None
        is_quarantined: bool | None = None
        if status.rollback is RollbackState.FAILED:
            is_quarantined = True
        elif has_succeeded and spec.operation in CURES_QUARANTINE:
            is_quarantined = False
        message = f"{metadata.namespace}/{metadata.name}: {status.message}"[:1024]
        await self._write_device(
            device, operation=None, quarantined=is_quarantined, attached_by=attached_by, message=message
        )

    async def release_orphan(self, device: Accelerator) -> None:
        """Frees and quarantines a device whose operation vanished without an end.

        The copies of devices and of operations are not of one moment, so the API server is asked first."""
        holder = device.status.operation
        operation = await self._api.find(OPERATIONS, holder.name, holder.namespace) if holder is not None else None
        if operation is not None and holder is not None and operation.metadata.uid == holder.uid:
            return
        await self._write_device(
            device,
            operation=None,
            quarantined=True,
            attached_by=device.status.attached_by,
            message="the operation that held the device was removed before its end",
        )

    async def _write_device(
        self,
        device: Accelerator,
        *,
        operation: OperationRef | None,
        quarantined: bool | None,
        attached_by: OperationRef | None,
        message: str = "",
    ) -> None:
        """Writes the locking operation, the quarantine and the attaching operation into the status of a device.

        ``quarantined`` None keeps the present quarantine.
        """
        conditions = [
            condition
            for condition in device.status.conditions
            if condition.type == ControllerCondition.QUARANTINED and quarantined is None
        ]
        if quarantined is not None and (quarantined or device.status.is_quarantined):
            conditions = [
                Condition(
                    type=ControllerCondition.QUARANTINED,
                    status="True" if quarantined else "False",
                    reason="StateUnknown" if quarantined else "OperationSucceeded",
                    message=message,
                    last_transition_time=timestamp(self._now()),
                    observed_generation=device.metadata.generation,
                )
            ]
        status: dict[str, Any] = {"conditions": msgspec.to_builtins(conditions)}
        if operation is not None:
            status["operation"] = msgspec.to_builtins(operation)
        if attached_by is not None:
            status["attachedBy"] = msgspec.to_builtins(attached_by)
        metadata = {"uid": device.metadata.uid, "resourceVersion": device.metadata.resource_version}
        written_device = await self._api.apply(
            ACCELERATORS,
            device.metadata.name,
            {"metadata": metadata, "status": status},
            manager=OPERATION_MANAGER,
            force=True,
            subresource="status",
        )
        self._view.accelerators.record(written_device)

    async def _store_status(self, operation: AcceleratorOperation, status: Any) -> None:
        """Writes the whole status except the report, if nobody changed the operation meanwhile."""
        metadata = {"uid": operation.metadata.uid, "resourceVersion": operation.metadata.resource_version}
        written_operation = await self._api.apply(
            OPERATIONS,
            operation.metadata.name,
            {"metadata": metadata, "status": msgspec.to_builtins(status)},
            operation.metadata.namespace,
            manager=OPERATION_MANAGER,
            force=True,
            subresource="status",
        )
        self._view.operations.record(written_operation)

    async def _evict(self, device: Accelerator) -> str:
        """Requests the eviction of the pods that hold a device, repeatedly for pods that a disruption budget protects.

        Returns why a pod stays, empty if none does."""
        problem = ""
        for holder in device.status.holders:
            path = f"/api/v1/namespaces/{holder.namespace}/pods/{holder.pod}/eviction"
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": holder.pod, "namespace": holder.namespace},
                # The kubelet tells no uid of a pod that got the device by an extended resource.
                **({"deleteOptions": {"preconditions": {"uid": holder.uid}}} if holder.uid else {}),
            }
            try:
                await self._api.request("POST", path, body=body)
            except (NotFound, ObjectConflict):
                continue  # gone, or another pod of this name
            except (TooManyRequests, RequestDenied) as e:
                problem = f"the pod {holder.namespace}/{holder.pod} is not evicted: {e.message}"
        return problem

    async def _finish(self, operation: AcceleratorOperation) -> float | None:
        """Frees the device of an ended operation, then the operation itself, and removes the operation in the end."""
        device = self._view.accelerators.get(operation.spec.accelerator)
        holder = device.status.operation if device is not None else None
        if device is not None and holder is not None and holder.uid == operation.metadata.uid:
            await self._release(operation, device)
            crash_point("after-operation-release")
        problem = await self._remove_scheduling_gate(operation) if operation.status.phase is P.SUCCEEDED else ""
        status = ended_status(operation, problem, self._now())
        if status != operation.status and not operation.metadata.deletion_timestamp:
            await self._store_status(operation, replace(status, report=None))
            return 0.0
        if OPERATION_FINALIZER in operation.metadata.finalizers:
            await self._set_finalizer(operation, is_present=False)
        if operation.metadata.deletion_timestamp or operation.status.completion_time is None:
            return None
        age_s = (self._now() - datetime.fromisoformat(operation.status.completion_time)).total_seconds()
        remaining_s = operation.spec.ttl_seconds_after_finished - age_s
        if remaining_s > 0:
            return remaining_s
        await self._api.delete(
            OPERATIONS, operation.metadata.name, operation.metadata.namespace, uid=operation.metadata.uid
        )
        return None

    async def _remove_scheduling_gate(self, operation: AcceleratorOperation) -> str:
        """Removes the scheduling gate of the pod that waits for the attachment (decision 0396).

        Returns why the pod cannot be released, empty if it is, or if there is none to be released."""
        attach = operation.spec.attach
        if attach is None or attach.gated_pod is None or OPERATION_FINALIZER not in operation.metadata.finalizers:
            return ""
        path = f"/api/v1/namespaces/{operation.metadata.namespace}/pods/{attach.gated_pod.name}"
        try:
            pod = msgspec.json.decode(await self._api.request("GET", path))
            present_gates = pod["spec"].get("schedulingGates", ())
            remaining_gates = [gate for gate in present_gates if gate["name"] != ATTACH_GATE]
            if pod["metadata"]["uid"] != attach.gated_pod.uid or len(remaining_gates) == len(present_gates):
                return ""
            node = self._view.nodes.get(attach.node_name)
            hostname = node.metadata.labels.get(_HOSTNAME, attach.node_name) if node is not None else attach.node_name
            node_selector = {**pod["spec"].get("nodeSelector", {}), _HOSTNAME: hostname}
            body = {
                "metadata": {"uid": attach.gated_pod.uid, "resourceVersion": pod["metadata"]["resourceVersion"]},
                "spec": {"schedulingGates": remaining_gates, "nodeSelector": node_selector},
            }
            await self._api.patch(PODS, attach.gated_pod.name, body, operation.metadata.namespace)
        except NotFound:
            return ""
        except (ObjectInvalid, RequestDenied) as e:  # a repetition would be refused, too
            return f"the gate of {operation.metadata.namespace}/{attach.gated_pod.name} stays: {e.message}"
        return ""


def _is_recent(start_time: str, now: datetime) -> bool:
    """Returns True if an operation that began at ``start_time`` counts for hourly quotas: it began in the last hour."""
    return datetime.fromisoformat(start_time) > now - timedelta(seconds=_HOUR_S)


def _artifact_problem(spec: AcceleratorOperationSpec, acc_class: AcceleratorClass | None, *, is_required: bool) -> str:
    """Returns why an operation's image may not be loaded. Empty if it may be loaded, or there is no image."""
    if spec.program is None:
        return ""
    signers = acc_class.spec.signers if acc_class is not None else ()
    try:
        verify_signature(spec.program.artifact, signers, is_required=is_required)
    except ArtifactRejected as e:
        return e.message
    return ""


ATTACH_GATE = "accelerators.backend.ai/attach"
"""The scheduling gate of pods that wait for a device to be attached."""
