"""Serves the kubelet's device plugin interface (v1beta1) for the devices of one accelerator plugin."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from ai.backend.common.devices import ComputeDevice, DeviceHealth
from ai.backend.common.errors import BackendError, NotFound, Unavailable
from ai.backend.infra.bus import Signal
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.node_plugin import wire
from ai.backend.kubeacc.node_plugin.checkpoint import HeldDevice, WorkloadRecord
from ai.backend.kubeacc.node_plugin.devices import DeviceTracker, device_name
from ai.backend.kubeacc.node_plugin.edits import allocate_response
from ai.backend.kubeacc.node_plugin.preference import DevicePreference
from ai.backend.kubeacc.node_plugin.rpc import grpc_client, grpc_server, wait_for_change
from ai.backend.kubeacc.node_plugin.slices import offers_anything
from ai.backend.kubeacc.node_plugin.workloads import Workloads

log = logging.getLogger(__name__)
_REGISTER_FIRST_S, _REGISTER_MAX_S = 0.5, 10.0
_MAX_ERROR = 1000
_KUBELET_SOCKET = "kubelet.sock"


class DevicePlugin:
    """Offers the devices of one accelerator plugin as the extended resource ``resource``.

    The interface tells no end of a container: a device that is allocated anew, or that the kubelet lists at no pod any
    more (:meth:`Holders.once`), was given back. ``offers`` says whether a device may be offered at all.
    """

    def __init__(
        self,
        tracker: DeviceTracker,
        workloads: Workloads,
        plugin_key: str,
        resource: str,
        may_offer: Callable[[ComputeDevice], bool] = lambda device: True,
    ) -> None:
        self._tracker, self._workloads, self._offers = tracker, workloads, may_offer
        self.plugin_key, self.resource = plugin_key, resource
        self._watchers: set[Signal] = set()
        self._preference: tuple[tuple[ComputeDevice, ...], DevicePreference] | None = None
        tracker.subscribe(self.notify)

    def notify(self) -> None:
        """Sends the list of devices to the kubelet again."""
        for watcher_signal in self._watchers:
            watcher_signal.set()

    def _devices(self) -> dict[str, ComputeDevice]:
        return {
            device_name(device.device_id): device
            for device in self._tracker.devices(self.plugin_key)
            if offers_anything(device) and self._offers(device)
        }

    async def get_device_plugin_options(self, _request: Any, _context: Any) -> Any:
        return plugin_options()

    async def list_and_watch(self, _request: Any, _context: Any) -> AsyncIterator[Any]:
        """Yields all devices now and after every change."""
        await self._tracker.is_complete.wait()
        change_signal = Signal()
        self._watchers.add(change_signal)
        try:
            sent_message: bytes | None = None
            while True:
                device_message = device_list(self._devices())
                encoded_message = device_message.SerializeToString()
                if encoded_message != sent_message:
                    sent_message = encoded_message
                    yield device_message
                await change_signal.wait(None)
        finally:
            self._watchers.discard(change_signal)

    async def get_preferred_allocation(self, request: Any, _context: Any) -> Any:
        answer = wire.device_plugin.PreferredAllocationResponse()
        preference = self.preference()
        for container in request.container_requests:
            chosen_ids = preference.choose(
                container.available_deviceIDs, container.must_include_deviceIDs, container.allocation_size
            )
            answer.container_responses.add(deviceIDs=chosen_ids)
        return answer

    def preference(self) -> DevicePreference:
        """Returns the object that chooses preferred devices among the plugin's present devices.

        Links are weighed once for each list of devices.
        """
        devices = self._tracker.devices(self.plugin_key)
        if self._preference is None or self._preference[0] is not devices:
            names = [device_name(device.device_id) for device in devices]
            self._preference = devices, DevicePreference(devices, names)
        return self._preference[1]

    async def allocate(self, request: Any, context: Any) -> Any:
        """Prepares the devices for the containers of a pod.

        What fails gives back the others, and the kubelet refuses the pod with the reason.
        """
        answer = wire.device_plugin.AllocateResponse()
        prepared_uids: list[str] = []
        try:
            for container in request.container_requests:
                record = await self._allocate_devices(list(container.devices_ids))
                prepared_uids.append(record.uid)
                configs = {key: share.config for key, share in record.shares.items() if share.config is not None}
                answer.container_responses.append(allocate_response(configs, record.cdi_names.get("", ())))
        except BackendError as e:
            log.warning("devices of %s are not allocated: %s", self.resource, e.message)
            for uid in prepared_uids:
                await self._release(uid)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, e.message[:_MAX_ERROR])
        return answer

    async def _allocate_devices(self, names: Sequence[str]) -> WorkloadRecord:
        present_devices = self._devices()
        unknown_names = [name for name in names if name not in present_devices]
        if unknown_names or not names:
            raise NotFound(
                f"{self.resource} has no device {', '.join(map(repr, unknown_names))[:200] or 'that is named'}"
            )
        devices = [present_devices[name] for name in names]
        for device in devices:  # the kubelet gives only what it knows to be free
            holder = self._workloads.holder_of((self.plugin_key, device.device_id))
            if holder is not None and holder.way == "device-plugin":
                await self._workloads.release(holder.uid)
        return await self._workloads.prepare(
            WorkloadRecord(
                uid=str(uuid.uuid4()),
                way="device-plugin",
                name=self.resource,
                devices=tuple(
                    HeldDevice(plugin=self.plugin_key, device_id=device.device_id, name=name)
                    for name, device in zip(names, devices, strict=True)
                ),
            )
        )

    async def _release(self, uid: str) -> None:
        try:
            await self._workloads.release(uid)
        except BackendError as e:
            log.warning("devices of %s are not given back: %s", self.resource, e.message)

    async def pre_start_container(self, request: Any, context: Any) -> Any:
        """Refuses the start of a container whose device has failed since its allocation."""
        present_devices = self._devices()
        for name in request.devices_ids:
            device = present_devices.get(name)
            if device is None or device.health is not DeviceHealth.HEALTHY:
                reason = device.health_reason if device is not None else "it is not there any more"
                await context.abort(
                    grpc.StatusCode.FAILED_PRECONDITION, f"the device {name[:63]} has failed: {reason[:_MAX_ERROR]}"
                )
        return wire.device_plugin.PreStartContainerResponse()


def plugin_options() -> Any:
    return wire.device_plugin.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


def device_list(devices: dict[str, ComputeDevice]) -> Any:
    """Returns the message by which ``ListAndWatch`` reports devices to the kubelet, with health and NUMA node."""
    device_message = wire.device_plugin.ListAndWatchResponse()
    for name, device in devices.items():
        device_entry = device_message.devices.add(
            ID=name, health="Healthy" if device.health is DeviceHealth.HEALTHY else "Unhealthy"
        )
        if device.numa_node is not None and device.numa_node >= 0:
            device_entry.topology.nodes.add(ID=device.numa_node)
    return device_message


async def serve_device_plugin(kubelet_directory: Path, plugin: DevicePlugin) -> None:
    """Serves and registers an extended resource until cancelled.

    Registers again after each restart of the kubelet, which removes all sockets of its directory and makes its own
    anew.
    """
    socket_folder = kubelet_directory / "device-plugins"
    socket_name = f"{plugin.resource.replace('/', '-')[:60]}.sock"
    delays = Backoff(_REGISTER_FIRST_S, _REGISTER_MAX_S)
    while True:
        try:
            async with grpc_server(socket_folder / socket_name, {wire.DEVICE_PLUGIN: plugin}):
                restart_task = asyncio.ensure_future(
                    wait_for_change(socket_folder / _KUBELET_SOCKET, socket_folder / socket_name)
                )
                try:
                    await _register(socket_folder / _KUBELET_SOCKET, socket_name, plugin.resource)
                    delays.reset()
                    await restart_task
                finally:
                    await cancel_all(restart_task)
            log.info("the kubelet was restarted: %s is registered again", plugin.resource)
        except (BackendError, OSError) as e:
            log.warning("%s is not registered: %s", plugin.resource, e)
            await delays.wait()


async def _register(socket: Path, endpoint: str, resource: str) -> None:
    request = wire.device_plugin.RegisterRequest(
        version="v1beta1", endpoint=endpoint, resource_name=resource, options=plugin_options()
    )
    async with grpc_client(socket, wire.DEVICE_PLUGIN_REGISTRATION) as call:
        try:
            await call("Register", request)
        except grpc.aio.AioRpcError as e:
            raise Unavailable(f"the kubelet does not register {resource}: {e.details()}") from None
    log.info("the kubelet has registered the device plugin of %s", resource)


async def run_device_plugins(
    kubelet_directory: Path, tracker: DeviceTracker, make_plugin: Callable[[str], DevicePlugin | None]
) -> None:
    """Starts a kubelet device plugin for each accelerator plugin of the node, also for plugins that appear later.

    ``make`` returns the device plugin, or None if the accelerator plugin gets none.
    """
    tasks: dict[str, asyncio.Task[None]] = {}
    change_signal = Signal()
    tracker.subscribe(change_signal.set)
    try:
        while True:
            for key in tracker.plugin_keys():
                if key not in tasks and (plugin := make_plugin(key)) is not None:
                    tasks[key] = asyncio.create_task(
                        serve_device_plugin(kubelet_directory, plugin), name=f"kube-acc-device-plugin-{key}"
                    )
            await change_signal.wait(None)
    finally:
        await cancel_all(*tasks.values())
