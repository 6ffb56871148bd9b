"""Decides the class and the owner of each device, and counts the devices of each class."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from ai.backend.common.devices import DeviceHealth
from ai.backend.common.structs import replace
from ai.backend.kubeacc.controllers.cluster_view import ClusterView
from ai.backend.kubeacc.controllers.progress import timestamp
from ai.backend.kubeacc.crd.fields import Condition
from ai.backend.kubeacc.crd.objects import (
    ACCELERATORS,
    CLASSES,
    Accelerator,
    AcceleratorClass,
    AcceleratorPolicy,
)
from ai.backend.kubeacc.crd.policies import Sharing
from ai.backend.kubeacc.crd.vocabulary import CONTROLLER_MANAGER, ControllerCondition
from ai.backend.kubeacc.policies.coexistence import Ownership, ownership
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.objects import KubeObject

log = logging.getLogger(__name__)


def class_of(device: Accelerator, classes: Iterable[AcceleratorClass]) -> AcceleratorClass | None:
    """Returns the class of a device. If several classes select it, the highest priority and then the first name win."""
    matching_classes = [acc_class for acc_class in classes if _selects(acc_class, device)]
    return min(matching_classes, key=lambda c: (-c.spec.priority, c.metadata.name), default=None)


def _selects(acc_class: AcceleratorClass, device: Accelerator) -> bool:
    selector, description = acc_class.spec.selector, device.status.device
    vendor = description.vendor if description is not None else ""
    model = description.model if description is not None else ""
    return (
        (not selector.types or device.spec.type in selector.types)
        and (not selector.drivers or device.spec.driver in selector.drivers)
        and (not selector.vendors or vendor in selector.vendors)
        and (not selector.models or any(_matches(model, pattern) for pattern in selector.models))
        and (not selector.attachments or device.spec.attachment in selector.attachments)
        and all(device.metadata.labels.get(key) == value for key, value in selector.match_labels.items())
    )


def _matches(model: str, pattern: str) -> bool:
    return model.startswith(pattern[:-1]) if pattern.endswith("*") else model == pattern


def ownership_of(device: Accelerator, acc_class: AcceleratorClass | None) -> Ownership | None:
    """Returns the owner of a device by the co-existence rule. Returns None for a device without a class."""
    if acc_class is None:
        return None
    return ownership(
        device.spec.attachment,
        acc_class.spec.lifecycle_owner,
        other_plugin=bool(device.status.device_plugin_resource),
    )


def sharing_violation(device: Accelerator, policies: Iterable[AcceleratorPolicy]) -> str:
    """Returns a text about the policy whose sharing limit the holders of a device exceed, or an empty text if none is.

    A namespace is bound by the policies that are about it; of several, by the strictest.
    """
    holders = device.status.holders
    for policy in policies:
        spec = policy.spec
        if spec.sharing is None or (spec.class_names and device.status.class_name not in spec.class_names):
            continue
        bound_holders = [holder for holder in holders if not spec.namespaces or holder.namespace in spec.namespaces]
        if bound_holders and (
            problem := _sharing_problem(spec.sharing, len(holders), {holder.namespace for holder in holders})
        ):
            return f"the policy {policy.metadata.name} allows {problem}"
    return ""


def _sharing_problem(sharing: Sharing, workloads: int, namespaces: set[str]) -> str:
    if sharing.exclusive and len(namespaces) > 1:
        return f"one namespace at a time, and {', '.join(sorted(namespaces))[:500]} hold the device"
    if workloads > sharing.max_workloads_per_device:
        return f"{sharing.max_workloads_per_device} workloads, and {workloads} hold the device"
    return ""


class DeviceController:
    """Updates the status of accelerators, and the counts of devices in the status of accelerator classes."""

    def __init__(
        self, api: KubeApi, view: ClusterView, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._api, self._view, self._now = api, view, now
        self._counts: dict[str, Counter[str]] = {}

    async def reconcile(self, name: str) -> float | None:
        """Writes class, owner and conditions of a device if they differ from the stored ones.

        A device whose class cannot be decoded keeps all of them: it may be another one's.
        """
        device = self._view.accelerators.get(name)
        if device is None or device.metadata.deletion_timestamp:
            return None
        if ("", device.status.class_name) in self._view.classes.reflector.undecodable:
            return None
        acc_class = class_of(device, self._view.classes.all())
        device_ownership = ownership_of(device, acc_class)
        class_name = acc_class.metadata.name if acc_class is not None else None
        owner = device_ownership.owner if device_ownership is not None else None
        conditions = self._conditions(device, device_ownership)
        present_conditions = {condition.type: condition for condition in device.status.conditions}
        is_current = (
            device.status.class_name == class_name
            and device.status.managed_by == owner
            and all(present_conditions.get(condition.type) == condition for condition in conditions)
        )
        if is_current:
            return None
        status: dict[str, Any] = {"conditions": msgspec.to_builtins(conditions)}
        if class_name is not None:
            status["className"] = class_name
        if owner is not None:
            status["managedBy"] = owner
        written_device = await self._api.apply(
            ACCELERATORS,
            name,
            {"metadata": {"uid": device.metadata.uid}, "status": status},
            manager=CONTROLLER_MANAGER,
            force=True,
            subresource="status",
        )
        self._view.accelerators.record(written_device)
        return None

    def _conditions(self, device: Accelerator, device_ownership: Ownership | None) -> list[Condition]:
        if device_ownership is None:
            managed_condition = (False, "NoClass", "no AcceleratorClass selects the device")
        else:
            managed_condition = (device_ownership.is_managed, device_ownership.reason, device_ownership.message)
        problem = sharing_violation(device, self._view.policies.all())
        compliant_condition = (not problem, "SharingExceeded" if problem else "WithinPolicy", problem)
        present_conditions = {condition.type: condition for condition in device.status.conditions}
        return [
            _condition(present_conditions.get(name), name, value, reason, message, device, timestamp(self._now()))
            for name, (value, reason, message) in (
                (ControllerCondition.MANAGED, managed_condition),
                (ControllerCondition.COMPLIANT, compliant_condition),
            )
        ]

    async def reconcile_class(self, name: str) -> float | None:
        """Writes the number of devices that a class has."""
        acc_class = self._view.classes.get(name)
        if acc_class is None:
            return None
        devices = [device for device in self._view.accelerators.all() if device.status.class_name == name]
        status = replace(
            acc_class.status,
            observed_generation=acc_class.metadata.generation,
            devices=len(devices),
            healthy=sum(
                1
                for counted_device in devices
                if counted_device.status.health and counted_device.status.health.state is DeviceHealth.HEALTHY
            ),
            held=sum(1 for device in devices if device.status.holders),
        )
        if status == acc_class.status:
            return None
        body = {"metadata": {"uid": acc_class.metadata.uid}, "status": _with_zeros(status)}
        written_class = await self._api.apply(
            CLASSES, name, body, manager=CONTROLLER_MANAGER, force=True, subresource="status"
        )
        self._view.classes.record(written_class)
        return None


def _with_zeros(status: Any) -> Mapping[str, Any]:
    """Returns the status of an accelerator class with its counts, also if they are zero, so that zeros are shown."""
    return {"devices": 0, "healthy": 0, "held": 0, **msgspec.to_builtins(status)}


def _condition(
    present_condition: Condition | None, name: str, value: bool, reason: str, message: str, device: KubeObject, now: str
) -> Condition:
    """Returns the condition ``name`` of a device with the given value, reason and message.

    Returns ``present_condition`` itself if its value, reason and message are the same.
    """
    status = "True" if value else "False"
    if present_condition is not None and (
        present_condition.status,
        present_condition.reason,
        present_condition.message,
    ) == (status, reason, message):
        return present_condition
    changed_at = (
        present_condition.last_transition_time
        if present_condition is not None and present_condition.status == status
        else now
    )
    return Condition(
        type=name,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=changed_at,
        observed_generation=device.metadata.generation,
    )
