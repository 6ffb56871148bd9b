"""Tracks the devices of this node as the accelerator plugins list them, with their effective health."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import cast

from ai.backend.common.devices import ComputeDevice, DeviceAllocation, DeviceHealth, DeviceSlot
from ai.backend.common.errors import BackendError
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace
from ai.backend.infra.loop import PeriodicLoop, cancel_all
from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.node_plugin.places import pci_address
from ai.backend.kubeacc.node_plugin.settings import NodePluginSettings
from ai.backend.plugin.accelerator import DeviceHealthChange, HealthWatching, responses
from ai.backend.plugin.discovery import PluginSource, find_plugins
from ai.backend.pluginhost.handle import RETRY_FIRST_S, RETRY_MAX_S, PluginHandle
from ai.backend.pluginhost.health import DeviceHealthTracker

log = logging.getLogger(__name__)
LOST_REASON = "its plugin lists it no more"
_WATCH_FIRST_S, _WATCH_MAX_S = 1.0, 60.0
_MAX_LABEL = 63
_UNSAFE = re.compile(r"[^a-z0-9]+")
DeviceKey = tuple[str, DeviceId]
"""The plugin's key and the device's id."""


def device_name(device_id: str) -> str:
    """Returns a DNS label for a device.

    It is the device's id, or a form of the id with a digest, so that names are unique.
    """
    label = _UNSAFE.sub("-", device_id.lower()).strip("-")
    if label and label == device_id and len(label) <= _MAX_LABEL:
        return label
    digest = hashlib.sha256(device_id.encode()).hexdigest()[:10]
    return f"{label[: _MAX_LABEL - 11].strip('-') or 'device'}-{digest}"


def whole_allocation(device: ComputeDevice) -> DeviceAllocation:
    """Returns the allocation of everything that a device offers.

    Of slots that exclude each other, the first is used.
    """
    slots: dict[SlotName, Mapping[DeviceId, Decimal]] = {}
    groups: set[str] = set()
    for slot in device.slots:
        if slot.amount <= 0 or (slot.exclusive_group is not None and slot.exclusive_group in groups):
            continue
        if slot.exclusive_group is not None:
            groups.add(slot.exclusive_group)
        slots[slot.slot_name] = {device.device_id: slot.amount}
    return DeviceAllocation(slots=slots)


def share_slot(device: ComputeDevice) -> DeviceSlot | None:
    """Returns the slot by which workloads share a device, which is the first divisible slot.

    Returns None if there is none.
    """
    return next(
        (
            slot
            for slot in device.slots
            if slot.slot_type is not SlotType.UNIQUE
            and 0 < slot.quantum < slot.amount
            and not slot.amount % slot.quantum
        ),
        None,
    )


def sum_allocations(allocations: Iterable[DeviceAllocation]) -> DeviceAllocation:
    """Returns the sum of several allocations."""
    slots: dict[SlotName, dict[DeviceId, Decimal]] = {}
    for allocation in allocations:
        for slot_name, amount_of_device in allocation.slots.items():
            total_of_device = slots.setdefault(slot_name, {})
            for device_id, amount in amount_of_device.items():
                total_of_device[device_id] = total_of_device.get(device_id, Decimal(0)) + amount
    return DeviceAllocation(slots=slots)


@dataclass(slots=True)
class _Listing:
    """Holds the last device list of a plugin, and the devices with their effective health."""

    answered: tuple[ComputeDevice, ...] = ()
    answered_at: float = 0.0
    devices: tuple[ComputeDevice, ...] = ()


class DeviceTracker(PeriodicLoop):
    """Lists the devices of all plugins each ``discovery-interval``, and applies reported changes of health at once. A
    device that a workload holds stays, unhealthy, when its plugin lists it no more.

    ``subscribe`` adds a function that is called in the event loop after every change. ``is_held`` tells whether a
    workload holds a device.
    """

    def __init__(self, settings: NodePluginSettings, sources: Iterable[PluginSource] | None = None) -> None:
        self.period_s = settings.discovery_interval
        if sources is None:
            sources = find_plugins(settings.compute_plugins, (), (), settings.in_process_plugins)
        self.handles = [
            PluginHandle(
                source,
                settings.plugins,
                settings.plugin_timeout,
                settings.plugin_environment,
                self.wake,
                Backoff(RETRY_FIRST_S, RETRY_MAX_S),
            )
            for source in sources
        ]
        self.is_held: Callable[[DeviceKey], bool] = lambda key: False
        self._listings: dict[str, _Listing] = {}
        self._trackers: dict[str, DeviceHealthTracker] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._recovery: asyncio.TimerHandle | None = None
        self._listeners: list[Callable[[], None]] = []
        self._claimed: dict[DeviceKey, str] = {}
        self.is_complete = asyncio.Event()
        """Set once every plugin was asked."""

    def subscribe(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def plugin_keys(self) -> list[str]:
        """Returns the keys of the plugins that have listed their devices at least once."""
        return list(self._listings)

    def devices(self, plugin_key: str) -> tuple[ComputeDevice, ...]:
        """Returns the devices of a plugin with their effective health. An unknown plugin has no devices."""
        listing = self._listings.get(plugin_key)
        return listing.devices if listing is not None else ()

    def by_name(self) -> dict[str, tuple[str, ComputeDevice]]:
        """Returns a map from the name of each device in the cluster to its plugin's key and the device."""
        return {
            name_in_cluster(key, device.device_id): (key, device)
            for key in self._listings
            for device in self.devices(key)
        }

    def competing_plugin(self, key: DeviceKey) -> str:
        """Returns the plugin that may give a device at the same PCI address to workloads instead of this plugin.

        Returns an empty text if there is no such plugin. Of two plugins that list one device it is the one whose device
        is held, else the first.
        """
        return self._claimed.get(key, "")

    def plugin_handle(self, plugin_key: str) -> PluginHandle | None:
        """Returns the handle of the plugin with the given key, or None if no such plugin is started at present."""
        return next((handle for handle in self.handles if handle.key == plugin_key and handle.started), None)

    async def once(self) -> None:
        now = asyncio.get_running_loop().time()
        await asyncio.gather(*(handle.start(now) for handle in self.handles if handle.may_start(now)))
        served_plugins: dict[str, PluginHandle] = {}
        for handle in self.handles:
            if handle.started and served_plugins.setdefault(handle.key, handle) is not handle:
                await handle.refuse(f"another plugin already serves {handle.key}")
        await asyncio.gather(*(self._list_devices(handle) for handle in served_plugins.values()))
        self._watch_health(served_plugins)
        self._update_health()
        if not self.is_complete.is_set():
            self.is_complete.set()
            self._notify()

    async def _list_devices(self, handle: PluginHandle) -> None:
        asked_at = asyncio.get_running_loop().time()
        try:
            slot_displays = await handle.call(
                "configurable_slots",
                lambda plugin: plugin.configurable_slots(),
                check=partial(responses.validate_displays, owner_of=lambda slot: None),
            )
            listed_devices = await handle.call(
                "list_devices",
                lambda plugin: plugin.list_devices(),
                check=partial(
                    responses.validate_devices,
                    key=handle.key,
                    displays=tuple(slot_displays),
                    owner_of=lambda slot: None,
                ),
            )
        except BackendError as e:
            log.warning("the devices of %s are not listed anew: %s", handle.key, e)
            return
        listing = self._listings.setdefault(handle.key, _Listing())
        listed_ids = {device.device_id for device in listed_devices}
        lost_devices = tuple(
            replace(device, health=DeviceHealth.UNHEALTHY, health_reason=LOST_REASON)
            for device in listing.answered
            if device.device_id not in listed_ids and self.is_held((handle.key, device.device_id))
        )
        listing.answered, listing.answered_at = (*listed_devices, *lost_devices), asked_at
        self._trackers.setdefault(handle.key, DeviceHealthTracker()).retain(
            device.device_id for device in listing.answered
        )

    def _watch_health(self, served_plugins: Mapping[str, PluginHandle]) -> None:
        for key, handle in served_plugins.items():
            task = self._watches.get(key)
            if handle.plugin.capabilities.health_watching and (task is None or task.done()):
                self._watches[key] = asyncio.create_task(self._watch_plugin(handle), name=f"kube-acc-health-{key}")

    async def _watch_plugin(self, handle: PluginHandle) -> None:
        """Applies reported changes of health until the plugin stops. Starts again after failures."""
        delays = Backoff(_WATCH_FIRST_S, _WATCH_MAX_S)
        while handle.started:
            try:
                async for change in cast("HealthWatching", handle.plugin).watch_health():
                    delays.reset()
                    self._on_health_change(handle.key, change)
            except Exception as e:  # noqa: BLE001  # whatever the plugin raises: the list is the truth
                log.warning("the watch of %s's health ended: %s", handle.key, e)
            await delays.wait()

    def _on_health_change(self, key: str, change: DeviceHealthChange) -> None:
        listing = self._listings.get(key)
        if listing is None or not isinstance(change, DeviceHealthChange):
            return
        if any(device.device_id == change.device_id for device in listing.answered):
            self._trackers[key].on_change(change, asyncio.get_running_loop().time())
            self._update_health()

    def _update_health(self) -> None:
        """Computes the devices with their effective health, and notifies the listeners of a difference."""
        loop = asyncio.get_running_loop()
        is_changed = False
        for key, listing in self._listings.items():
            devices = self._trackers[key].evaluate(listing.answered, listing.answered_at, loop.time())
            is_changed |= devices != listing.devices
            listing.devices = devices
        if self._recovery is not None:
            self._recovery.cancel()
            self._recovery = None
        next_recovery_at = min(
            (recovery_at for tracker in self._trackers.values() if (recovery_at := tracker.due()) is not None),
            default=None,
        )
        if next_recovery_at is not None:
            self._recovery = loop.call_at(max(next_recovery_at, loop.time() + 0.01), self._update_health)
        devices_of_others = self._devices_of_others()
        if is_changed or devices_of_others != self._claimed:
            self._claimed = devices_of_others
            self._notify()

    def _devices_of_others(self) -> dict[DeviceKey, str]:
        """Returns the devices that another plugin gives to workloads, each with the name of that plugin.

        A plugin that starts late does not take a device from the one that a workload has it from."""
        plugin_order = [handle.key for handle in self.handles if handle.started]
        sorted_keys = sorted(
            self._listings, key=lambda key: plugin_order.index(key) if key in plugin_order else len(plugin_order)
        )
        pci_devices = [
            (key, device.device_id, address)
            for key in sorted_keys
            for device in self.devices(key)
            if (address := pci_address(device.hw_location))
        ]
        owner_of_address: dict[str, str] = {}
        for key, device_id, address in pci_devices:
            if self.is_held((key, device_id)):
                owner_of_address.setdefault(address, key)
        for key, _, address in pci_devices:
            owner_of_address.setdefault(address, key)
        return {
            (key, device_id): owner_of_address[address]
            for key, device_id, address in pci_devices
            if owner_of_address[address] != key
        }

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    async def close(self) -> None:
        """Ends the watches and stops the plugins."""
        if self._recovery is not None:
            self._recovery.cancel()
        await cancel_all(*self._watches.values())
        await asyncio.gather(*(handle.stop() for handle in self.handles))


def name_in_cluster(plugin_key: str, device_id: str) -> str:
    """Returns the name of a device in the node's pool, which contains the devices of all plugins."""
    return device_name(f"{plugin_key}-{device_id}")
