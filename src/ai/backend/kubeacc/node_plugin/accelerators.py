"""Reports the devices of this node as Accelerator objects, and reads from these objects which devices are withheld."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from ai.backend.common.device_operations import OperationVerb
from ai.backend.common.devices import ComputeDevice, DeviceHealth
from ai.backend.common.errors import BackendError
from ai.backend.common.ids import DeviceId, DeviceName
from ai.backend.common.slots import format_quantity
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.kubeacc.crd import accelerators as crd
from ai.backend.kubeacc.crd.fields import Condition
from ai.backend.kubeacc.crd.objects import ACCELERATORS, Accelerator
from ai.backend.kubeacc.crd.vocabulary import (
    NODE_MANAGER,
    Attachment,
    AttachState,
    LifecycleOwner,
    NodeCondition,
    accelerator_of_pool,
)
from ai.backend.kubeacc.node_plugin.devices import LOST_REASON, DeviceKey, DeviceTracker, name_in_cluster
from ai.backend.kubeacc.node_plugin.facts import FactStore
from ai.backend.kubeacc.node_plugin.holders import Holders, PodHolder
from ai.backend.kubeacc.node_plugin.places import NO_LOCATION, PciLocation, pci_location_of
from ai.backend.kubeacc.node_plugin.served import wait_until_served
from ai.backend.kubeacc.node_plugin.settings import NodePluginSettings
from ai.backend.kubeacc.node_plugin.slices import parent_of
from ai.backend.kubeacc.node_plugin.workloads import Workloads
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.reflector import Reflector
from ai.backend.node.kube_api.resources import NODES
from ai.backend.plugin.accelerator import Attachable, PluginCapabilities
from ai.backend.plugin.accelerator.shapes import InvalidResponse

log = logging.getLogger(__name__)
_MAX_BYTES, _MAX_COUNT = (1 << 53) - 1, (1 << 31) - 1
"""The limits of ``Bytes`` and ``Count`` in the resources (crd.fields)."""
_MAX_ID = 512
_VERBS: tuple[tuple[str, tuple[OperationVerb, ...]], ...] = (
    ("attachable", (OperationVerb.ATTACH, OperationVerb.DETACH)),
    ("partitionable", (OperationVerb.PARTITION,)),
    ("power_controllable", (OperationVerb.POWER, OperationVerb.RESET)),
    ("programmable", (OperationVerb.PROGRAM,)),
)


def accelerator_name(node: str, plugin_key: str, device_id: str) -> str:
    """Returns the name of a device's Accelerator object."""
    return accelerator_of_pool(node, name_in_cluster(plugin_key, device_id))


class AcceleratorReports(PeriodicLoop):
    """Writes the Accelerators of this node if they differ from its devices, as the field manager of node plugins.

    A device that is not listed any more and that nobody holds loses its object, unless it can be attached again.
    Without the custom resources in the cluster nothing is written, and no device is withheld.
    """

    period_s = 30.0

    def __init__(
        self,
        api: KubeApi,
        tracker: DeviceTracker,
        workloads: Workloads,
        holders: Holders,
        fact_store: FactStore,
        settings: NodePluginSettings,
        node: str,
        *,
        usage_of: Callable[[DeviceKey], crd.Usage | None] = lambda key: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._tracker, self._workloads, self._holders = api, tracker, workloads, holders
        self._facts, self._settings, self._node, self._now = fact_store, settings, node, now
        self._usage_of = usage_of
        self._is_served = False
        self._owner: dict[str, str] | None = None
        self._attachable_ids: dict[str, tuple[DeviceId, ...]] = {}
        self.reflector: Reflector[Accelerator] = Reflector(
            api,
            ACCELERATORS,
            field_selector=f"spec.nodeName={node}",
            on_change=self._on_change,
            on_undecodable=lambda key: self.changed(),
        )
        self.changed: Callable[[], None] = lambda: None
        """Called when devices may be withheld, or are given again."""
        self.foreign_offer: Callable[[DeviceKey], str] = holders.foreign_offer
        """By what somebody else offers a device; empty if nobody does."""
        tracker.subscribe(self.wake)

    def _on_change(self, before: Accelerator | None, after: Accelerator | None) -> None:
        if after is None or before is None or _withheld_reason(before) != _withheld_reason(after):
            self.changed()
        if after is None:
            self.wake()

    async def watch(self) -> None:
        """Watches this node's Accelerators until cancelled. Waits until the cluster has the resource."""
        await wait_until_served(self._api, ACCELERATORS)
        self._is_served = True
        self.wake()
        await self.reflector.run()

    def withheld_reason(self, key: DeviceKey) -> str:
        """Returns the reason for which no new workload gets a device, or an empty text if workloads may get the device.

        A device whose object cannot be decoded is withheld, because an operation may hold it.
        """
        if other_plugin := self._tracker.competing_plugin(key):
            return f"the plugin {other_plugin} has the device"
        name = accelerator_name(self._node, *key)
        if ("", name) in self.reflector.undecodable:
            return "its Accelerator cannot be read"
        accelerator = self.reflector.get(name)
        return _withheld_reason(accelerator) if accelerator is not None else ""

    def detached_devices(self, plugin_key: str) -> list[ComputeDevice]:
        """Returns the known devices that a plugin can attach to this node but that are not attached."""
        listed_ids = {device.device_id for device in self._tracker.devices(plugin_key)}
        devices = []
        for device_id in self._attachable_ids.get(plugin_key, ()):
            accelerator = self.reflector.get(accelerator_name(self._node, plugin_key, device_id))
            if device_id in listed_ids or accelerator is None:
                continue  # without an object nothing could be ordered
            model = accelerator.status.device.model if accelerator.status.device is not None else ""
            name = DeviceName(plugin_key)
            devices.append(
                ComputeDevice(device_name=name, device_id=device_id, hw_location="", slots=(), model_name=model or None)
            )
        return devices

    def key_of(self, name: str) -> DeviceKey | None:
        """Returns the plugin and the device id of the Accelerator object ``name`` of this node.

        Finds detached devices too. Returns None if there is no such object.
        """
        accelerator = self.reflector.get(name)
        return (accelerator.spec.driver, DeviceId(accelerator.spec.device_id)) if accelerator is not None else None

    async def once(self) -> None:
        if not self._is_served or not self._tracker.is_complete.is_set():
            return
        await self.reflector.synced.wait()
        attachable_ids = {key: await self._attachable(key) for key in self._tracker.plugin_keys()}
        if attachable_ids != self._attachable_ids:
            self._attachable_ids = attachable_ids
            self.changed()
        if self._owner is None:
            node = await self._api.get(NODES, self._node)
            self._owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.metadata.uid}
        failure: BackendError | None = None
        expected_names: set[str] = set()
        for key in self._tracker.plugin_keys():
            listed_devices = {device.device_id: device for device in self._tracker.devices(key)}
            for device_id in dict.fromkeys([*listed_devices, *attachable_ids[key]]):
                name = accelerator_name(self._node, key, device_id)
                expected_names.add(name)
                is_remote = device_id in attachable_ids[key]
                try:
                    await self._report(name, key, device_id, listed_devices.get(device_id), is_remote=is_remote)
                except BackendError as e:  # a device that the server refuses keeps no other one from being reported
                    log.warning("the accelerator %s is not reported: %s", name, e.message)
                    failure = e
        for (_, name), present_object in list(self.reflector.objects.items()):
            # A plugin that has not answered yet says nothing.
            has_our_driver = present_object.spec.driver in attachable_ids
            if name not in expected_names and has_our_driver and present_object.status.operation is None:
                await self._api.delete(ACCELERATORS, name, uid=present_object.metadata.uid)
        if failure is not None:
            raise failure

    async def _attachable(self, key: str) -> tuple[DeviceId, ...]:
        plugin_handle = self._tracker.plugin_handle(key)
        if plugin_handle is None or not plugin_handle.plugin.capabilities.attachable:
            return ()
        try:
            device_ids = await plugin_handle.call(
                "attachable_devices",
                lambda plugin: cast("Attachable", plugin).attachable_devices(),
                check=_checked_ids,
            )
        except BackendError as e:
            log.debug("the attachable devices of %s are not known: %s", key, e)
            return ()
        return tuple(device_ids)[:4096]

    async def _report(
        self, name: str, key: str, device_id: DeviceId, device: ComputeDevice | None, *, is_remote: bool
    ) -> None:
        present_object = self.reflector.get(name)
        spec = self._spec(key, device_id, present_object, is_remote=is_remote)
        if present_object is None or any(
            field_value != msgspec.to_builtins(present_object.spec).get(field_name)
            for field_name, field_value in spec.items()
        ):
            # A device that is built into its node goes with the node's object.
            metadata = {"ownerReferences": [self._owner]} if "attachment" not in spec else {}
            body: dict[str, Any] = {"metadata": metadata, "spec": spec}
            present_object = await self._api.apply(ACCELERATORS, name, body, manager=NODE_MANAGER, force=True)
        status = self._status(key, device_id, device, present_object)
        previous_status = msgspec.to_builtins(present_object.status)
        previous_own_status = {**previous_status, "conditions": _own_conditions(present_object)}
        if any(previous_own_status.get(field_name) != field_value for field_name, field_value in status.items()):
            body = {"metadata": {"uid": present_object.metadata.uid}, "status": status}
            await self._api.apply(ACCELERATORS, name, body, manager=NODE_MANAGER, force=True, subresource="status")

    def _spec(
        self, key: str, device_id: DeviceId, present_object: Accelerator | None, *, is_remote: bool
    ) -> dict[str, Any]:
        attachment = present_object.spec.attachment if present_object is not None else None
        if attachment is None:
            attachment = Attachment.REMOTE if is_remote else Attachment.LOCAL
        spec: dict[str, Any] = {
            "driver": key,
            "deviceID": device_id,
            "type": self._settings.offer_of(key).type.value,
            "nodeName": self._node,
        }
        if attachment is not Attachment.LOCAL:  # the default is left out when objects are read
            spec["attachment"] = attachment.value
        listed_ids = {device.device_id for device in self._tracker.devices(key)}
        if parent_id := parent_of(device_id, listed_ids):
            spec["parent"] = accelerator_name(self._node, key, parent_id)
        return spec

    def _status(
        self, key: str, device_id: DeviceId, device: ComputeDevice | None, present_object: Accelerator
    ) -> dict[str, Any]:
        now = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        is_listed = device is not None and device.health_reason != LOST_REASON
        holders = self._holders.holders.get((key, device_id), ())
        plugin_handle = self._tracker.plugin_handle(key)
        capabilities = plugin_handle.plugin.capabilities if plugin_handle is not None else PluginCapabilities()
        health = present_object.status.health
        if device is not None:
            state, reason = device.health, device.health_reason[:1024]
            if health is None or (health.state, health.reason) != (state, reason):
                health = crd.Health(state=state, reason=reason, since=now)
        own_status = crd.AcceleratorStatus(
            observed_generation=present_object.metadata.generation,
            device=describe_device(device, capabilities, pci_location_of(device.hw_location))
            if device is not None
            else present_object.status.device,
            health=health,
            power_state=self._facts.get((key, device_id)).power,
            program=self._facts.get((key, device_id)).program,
            attach_state=AttachState.ATTACHED if is_listed else AttachState.DETACHED,
            holders=tuple(self._holder(holder) for holder in holders)[:128],
            held=bool(holders),
            usage=self._usage_of((key, device_id)) or present_object.status.usage,
            device_plugin_resource=self.foreign_offer((key, device_id)),
            conditions=self._conditions(device, present_object, now, is_listed=is_listed),
        )
        status: dict[str, Any] = msgspec.to_builtins(own_status)
        return status

    def _holder(self, holder: PodHolder) -> crd.Holder:
        record = self._workloads.workload_of_claim(holder.namespace, holder.claim)
        return crd.Holder(
            namespace=holder.namespace,
            pod=holder.pod,
            uid=record.pod_uid if record is not None and record.pod == holder.pod else "",
            container=holder.container,
            claim=holder.claim or None,
        )

    @staticmethod
    def _conditions(
        device: ComputeDevice | None, present_object: Accelerator, now: str, *, is_listed: bool
    ) -> tuple[Condition, ...]:
        is_healthy = device is not None and device.health is DeviceHealth.HEALTHY
        reason = device.health_reason[:1024] if device is not None else ""
        condition_values: Mapping[NodeCondition, tuple[bool, str, str]] = {
            NodeCondition.DISCOVERED: (is_listed, "Listed" if is_listed else "NotListed", ""),
            NodeCondition.HEALTHY: (is_healthy, "Healthy" if is_healthy else "Failed", reason),
        }
        old_conditions = {condition.type: condition for condition in present_object.status.conditions}
        conditions = []
        for name, (value, change_reason, message) in condition_values.items():
            status, old_condition = str(value), old_conditions.get(name)
            changed_at = (
                old_condition.last_transition_time
                if old_condition is not None and old_condition.status == status
                else now
            )
            conditions.append(
                Condition(
                    type=name,
                    status=status,
                    reason=change_reason,
                    message=message,
                    last_transition_time=changed_at,
                    observed_generation=present_object.metadata.generation,
                )
            )
        return tuple(conditions)


def _checked_ids(answer: Any) -> Sequence[DeviceId]:
    is_list = isinstance(answer, list | tuple)
    if not is_list or any(not isinstance(device_id, str) or not 0 < len(device_id) <= _MAX_ID for device_id in answer):
        raise InvalidResponse(f"no list of the ids of devices: {answer!r:.100}")
    return cast("Sequence[DeviceId]", answer)


def _own_conditions(present_object: Accelerator) -> list[Any]:
    names = frozenset(NodeCondition)
    by_type = {condition.type: condition for condition in present_object.status.conditions if condition.type in names}
    return [msgspec.to_builtins(by_type[name]) for name in NodeCondition if name in by_type]


def _withheld_reason(accelerator: Accelerator) -> str:
    status, spec = accelerator.status, accelerator.spec
    if spec.unschedulable:
        return spec.unschedulable_reason or "cordoned"
    if status.operation is not None:
        return f"operation {status.operation.name}"
    if status.is_quarantined:
        return "quarantined: its state is not known; reset or detach it"
    if status.class_name is not None and status.managed_by is not LifecycleOwner.KUBE_ACC:
        return "another device plugin has the life cycle" if status.managed_by is not None else "two owners"
    return ""


def describe_device(
    device: ComputeDevice, capabilities: PluginCapabilities, pci_location: PciLocation = NO_LOCATION
) -> crd.DeviceDescription:
    """Returns a device as its Accelerator describes it (BEP-1000), cut to the limits of the resource."""
    memory = None
    if device.memory_size:
        spec = device.memory_spec
        bandwidth = spec.bandwidth if spec is not None else None
        memory = crd.Memory(
            total_bytes=min(device.memory_size, _MAX_BYTES),
            type=((spec.memory_type if spec is not None else None) or "")[:128],
            bandwidth_gi_b_s=_decimal(bandwidth) if bandwidth is not None else None,
        )
    verbs = [verb for capability, verb_group in _VERBS if getattr(capabilities, capability) for verb in verb_group]
    partitioning = device.partitioning_support[0] if device.partitioning_support else None
    return crd.DeviceDescription(
        vendor=pci_location.vendor[:128],
        model=(device.model_name or "")[:128],
        uuid=device.device_id[:512],
        hardware_location=device.hw_location[:512],
        memory=memory,
        processing_units=min(device.processing_units, _MAX_COUNT),
        compute_units=tuple(
            {
                compute_unit.name: crd.ComputeUnits(
                    name=compute_unit.name[:128], count=min(compute_unit.count, _MAX_COUNT)
                )
                for compute_unit in device.compute_units
            }.values()
        )[:16],
        precisions=tuple(
            {
                entry.format: crd.Precision(format=entry.format, support=entry.support)
                for entry in device.precision_support
            }.values()
        )[:32],
        partitioning=crd.Partitioning(
            technology=(partitioning.technology or "")[:128],
            max_partitions=min(partitioning.max_partitions, _MAX_COUNT),
        )
        if partitioning is not None
        else None,
        slots=tuple(
            crd.Slot(
                name=slot.slot_name,
                amount=format_quantity(slot.amount),
                quantum=format_quantity(slot.quantum),
                exclusive_group=(slot.exclusive_group or "")[:128],
            )
            for slot in device.slots
        )[:32],
        variants=tuple(
            dict.fromkeys(
                crd.Variant(namespace=entry.namespace, feature=entry.feature, value=entry.value)
                for entry in device.variant_properties
            )
        )[:64],
        topology=crd.Topology(
            numa_node=device.numa_node,
            pcie_root=pci_location.root[:128],
            pci_bus_id=pci_location.address,
            links=tuple(
                {
                    link.peer: crd.Link(
                        peer=link.peer,
                        kind=link.kind,
                        bandwidth_gi_b_s=_decimal(link.bandwidth_gib_s) if link.bandwidth_gib_s is not None else None,
                    )
                    for link in device.links
                }.values()
            )[:128],
        ),
        operations=tuple(verbs),
    )


def _decimal(value: float) -> str:
    decimal_text = f"{value:.6f}".rstrip("0").rstrip(".")
    return decimal_text or "0"
