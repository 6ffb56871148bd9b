"""Finds the pods that hold devices, from the kubelet's PodResources (v1)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.ids import DeviceId
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.kubeacc.node_plugin import wire
from ai.backend.kubeacc.node_plugin.devices import DeviceKey, DeviceTracker, device_name
from ai.backend.kubeacc.node_plugin.rpc import grpc_client
from ai.backend.kubeacc.node_plugin.settings import NodePluginSettings
from ai.backend.kubeacc.node_plugin.workloads import Workloads

log = logging.getLogger(__name__)
_ADMISSION_S = 60.0
"""How long after its allocation a device may be missing in the kubelet's list: the pod is being admitted."""


class PodHolder(NamedTuple):
    """Describes a container that holds a device. ``claim`` is the claim's name, or empty with the device plugin."""

    namespace: str
    pod: str
    container: str
    claim: str = ""


class Holders(PeriodicLoop):
    """Reads periodically from the kubelet which pods hold which devices.

    It calls ``post_create`` of claims that a pod uses, ends allocations of the device plugin that the kubelet lists no
    more, and finds devices of ours that another device plugin offers.
    """

    period_s = 10.0

    def __init__(
        self,
        settings: NodePluginSettings,
        tracker: DeviceTracker,
        workloads: Workloads,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._tracker, self._workloads, self._clock = settings, tracker, workloads, clock
        self.holders: Mapping[DeviceKey, tuple[PodHolder, ...]] = {}
        self.foreign_resources: Mapping[DeviceKey, str] = {}
        """The extended resource by which somebody else offers a device of ours."""
        self.changed: Callable[[], None] = lambda: None

    def foreign_offer(self, key: DeviceKey) -> str:
        return self.foreign_resources.get(key, "")

    async def once(self) -> None:
        socket = self._settings.kubelet_directory / "pod-resources" / "kubelet.sock"
        allocatable_devices, pod_list = await _query_kubelet(socket)
        offered_elsewhere = foreign_resources(allocatable_devices, self._tracker, self._settings)
        holders = holders_of(pod_list, self._tracker, self._settings)
        is_changed = (offered_elsewhere, holders) != (self.foreign_resources, self.holders)
        self.foreign_resources, self.holders = offered_elsewhere, holders
        await self._reconcile()
        if is_changed:
            self.changed()

    async def _reconcile(self) -> None:
        for record in list(self._workloads.records.values()):
            keys = [(device.plugin, DeviceId(device.device_id)) for device in record.devices]
            is_used = any(
                record.way == "device-plugin" or (holder.namespace, holder.claim) == (record.namespace, record.name)
                for key in keys
                for holder in self.holders.get(key, ())
            )
            if is_used and record.phase == "prepared":
                await self._workloads.record_running(record.uid)
            is_overdue = self._clock() - record.at > _ADMISSION_S
            if record.way == "device-plugin" and not is_used and (is_overdue or record.phase == "releasing"):
                try:
                    await self._workloads.release(record.uid)
                except BackendError as e:
                    log.warning("devices of %s are not given back yet: %s", record.name, e.message)


async def _query_kubelet(socket: Path) -> tuple[Any, Any]:
    try:
        async with grpc_client(socket, wire.POD_RESOURCES) as call:
            allocatable_devices = await call(
                "GetAllocatableResources", wire.pod_resources.AllocatableResourcesRequest()
            )
            return allocatable_devices, await call("List", wire.pod_resources.ListPodResourcesRequest())
    except grpc.aio.AioRpcError as e:
        raise Unavailable(f"the kubelet does not tell who holds devices: {e.details()}") from None


def holders_of(
    pod_list: Any, tracker: DeviceTracker, settings: NodePluginSettings
) -> dict[DeviceKey, tuple[PodHolder, ...]]:
    """Returns the containers that hold each kube-acc device, from a ``ListPodResourcesResponse``."""
    device_by_name = tracker.by_name()
    key_by_resource = {
        (settings.resource_of(key), device_name(device.device_id)): (key, device.device_id)
        for key in tracker.plugin_keys()
        for device in tracker.devices(key)
    }
    holders: dict[DeviceKey, list[PodHolder]] = {}
    for pod in pod_list.pod_resources:
        for container in pod.containers:
            for device_group in container.devices:
                for name in device_group.device_ids:
                    key = key_by_resource.get((device_group.resource_name, name))
                    if key is not None:
                        holders.setdefault(key, []).append(PodHolder(pod.namespace, pod.name, container.name))
            for dynamic_resource in container.dynamic_resources:
                for resource in dynamic_resource.claim_resources:
                    if resource.driver_name == settings.driver_name and resource.device_name in device_by_name:
                        plugin_key, device = device_by_name[resource.device_name]
                        holder = PodHolder(pod.namespace, pod.name, container.name, dynamic_resource.claim_name)
                        holders.setdefault((plugin_key, device.device_id), []).append(holder)
    return {key: tuple(sorted(set(device_holders))) for key, device_holders in holders.items()}


def foreign_resources(
    allocatable_devices: Any, tracker: DeviceTracker, settings: NodePluginSettings
) -> dict[DeviceKey, str]:
    """Returns the kube-acc devices that another device plugin also offers, from an ``AllocatableResourcesResponse``.

    Device plugins name devices by the vendor's id, as accelerator plugins do.
    """
    own_resources = {
        settings.resource_of(key) for key in tracker.plugin_keys() if settings.offer_of(key).by == "device-plugin"
    }
    resource_of_name = {
        name: device_group.resource_name
        for device_group in allocatable_devices.devices
        if device_group.resource_name not in own_resources
        for name in device_group.device_ids
    }
    return {
        (key, device.device_id): resource_of_name[name]
        for key in tracker.plugin_keys()
        for device in tracker.devices(key)
        for name in (device.device_id, device_name(device.device_id))
        if name in resource_of_name
    }
