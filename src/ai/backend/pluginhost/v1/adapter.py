"""Adapts a v1 plugin to the present interface (spec 00, "Current Design"; peer facts 2.1 to 2.5)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    DeviceHealth,
    DeviceSlot,
    SlotDisplay,
)
from ai.backend.common.ids import DeviceId, KernelId, SlotName
from ai.backend.core.allocation.alloc_map import AbstractAllocMap, AffinityHint
from ai.backend.plugin.accelerator import (
    AbstractComputePlugin,
    AbstractLifecycleHook,
    AttachedDevice,
    HookContext,
    Measurement,
    NodeInfo,
    PluginCapabilities,
    StatContext,
    Workload,
    slot_totals,
)
from ai.backend.plugin.accelerator.shapes import InvalidResponse
from ai.backend.pluginhost.external_alloc_map import ExternalAllocMap
from ai.backend.pluginhost.v1.api import alloc_maps
from ai.backend.pluginhost.v1.api.alloc_maps import device_slots, slot_type
from ai.backend.pluginhost.v1.api.plugin import AbstractComputePlugin as V1Plugin
from ai.backend.pluginhost.v1.api.statistics import StatContext as V1StatContext
from ai.backend.pluginhost.v1.hook import LegacyHook
from ai.backend.pluginhost.v1.values import (
    LocalConfig,
    V1CallFailed,
    ask,
    keyed_measurements,
    node_measurements,
    require_collection,
    require_mapping,
    settings_as_texts,
    texts_of,
    to_decimal,
)

_STOCK_MAPS = (alloc_maps.DiscretePropertyAllocMap, alloc_maps.FractionAllocMap)
_FAULTY_STATUSES = ("offline", "unavailable")


class LegacySettings(BaseModel):
    """The settings of a v1 plugin. Their table ``local-config`` is the agent's configuration as the plugin sees it."""

    model_config = ConfigDict(extra="allow", frozen=True)


class LegacyPluginAdapter(AbstractComputePlugin):
    """Makes a v1 plugin usable as a plugin of the present interface.

    Each class of v1 plugins has a subclass, see :func:`adapter_of`. ``restore_from_container`` and
    ``update_plugin_config`` are never called: the agent knows what its workloads hold (decision 0057), and settings are
    read when it starts.
    """

    v1_class: ClassVar[type[V1Plugin]]
    settings_model: ClassVar[type[BaseModel] | None] = LegacySettings
    capabilities: ClassVar[PluginCapabilities] = PluginCapabilities(process_metrics=True, blocking=True)

    def __init__(self, settings: BaseModel | None = None) -> None:
        super().__init__(settings)
        values = dict(settings.model_extra or {}) if settings is not None else {}
        local_config = LocalConfig(values.pop("local-config", {}))
        self.v1 = self.v1_class(settings_as_texts(values, f"plugins.{self.key}"), local_config)
        self._spec: AllocMapSpec | None = None
        self._is_initialised = False

    async def init(self) -> None:
        await ask(self.v1, "init")
        alloc_map = await self._alloc_map()
        self._spec = alloc_map.spec if isinstance(alloc_map, _STOCK_MAPS) and type(alloc_map) in _STOCK_MAPS else None
        await self.configurable_slots()
        self._is_initialised = True

    async def cleanup(self) -> None:
        if self._is_initialised:
            await ask(self.v1, "cleanup")

    async def _alloc_map(self) -> alloc_maps.AbstractAllocMap:
        alloc_map = await ask(self.v1, "create_alloc_map")
        if not isinstance(alloc_map, alloc_maps.AbstractAllocMap):
            raise InvalidResponse(f"create_alloc_map returned {alloc_map!r:.60} instead of an AbstractAllocMap")
        return alloc_map

    async def list_devices(self) -> Sequence[ComputeDevice]:
        return await self._devices_of(await self._alloc_map())

    async def _devices_of(self, alloc_map: alloc_maps.AbstractAllocMap) -> list[ComputeDevice]:
        """Returns the devices that the alloc map contains. The list of a v1 plugin also has masked devices."""
        devices_by_id: dict[DeviceId, Any] = {}
        for device in require_collection("list_devices", await ask(self.v1, "list_devices")):
            device_id = getattr(device, "device_id", None)
            if not isinstance(device_id, str):
                raise InvalidResponse(f"list_devices: the device_id {device_id!r:.60} is no text")
            if device_id in devices_by_id:
                raise InvalidResponse(f"list_devices: the device {device_id!r:.64} is listed twice")
            devices_by_id[DeviceId(device_id)] = device
        slots = device_slots(alloc_map)
        if unlisted_ids := sorted(map(repr, set(slots) - set(devices_by_id))):
            raise InvalidResponse(
                f"create_alloc_map has the device {unlisted_ids[0]:.64}, which list_devices does not list"
            )
        fault_reason = await self._out_of_order()
        return [
            self._convert_device(device, slots[device_id], fault_reason)
            for device_id, device in devices_by_id.items()
            if device_id in slots
        ]

    def _convert_device(self, device: Any, slot: DeviceSlot, reason: str | None) -> ComputeDevice:
        model_name, numa_node = getattr(device, "model_name", None), device.numa_node
        return ComputeDevice(
            device_name=self.key,
            device_id=DeviceId(device.device_id),
            hw_location=str(device.hw_location or "unknown"),
            slots=(slot,),
            numa_node=None if numa_node is None or numa_node < 0 else int(numa_node),
            memory_size=int(to_decimal(device.memory_size or 0, f"list_devices: memory_size of {device.device_id}")),
            processing_units=int(
                to_decimal(device.processing_units or 0, f"list_devices: units of {device.device_id}")
            ),
            model_name=model_name if isinstance(model_name, str) else None,
            health=DeviceHealth.HEALTHY if reason is None else DeviceHealth.UNHEALTHY,
            health_reason=reason or "",
        )

    async def _hardware(self) -> Mapping[str, Any]:
        """Returns hardware metadata; empty for a plugin that does not have ``get_node_hwinfo``."""
        try:
            metadata = await ask(self.v1, "get_node_hwinfo")
        except V1CallFailed as e:
            if isinstance(e.__cause__, NotImplementedError):
                return {}
            raise
        return require_mapping("get_node_hwinfo", metadata)

    async def _out_of_order(self) -> str | None:
        """Returns the reason why all devices of the plugin count as faulty; None if they do not.

        A v1 plugin does not report the health of one device.
        """
        try:
            hardware_metadata = await self._hardware()
        except (V1CallFailed, InvalidResponse):
            return None
        status = hardware_metadata.get("status")
        status = str(getattr(status, "value", status))
        return str(hardware_metadata.get("status_info") or status) if status in _FAULTY_STATUSES else None

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        metadata = require_mapping("get_metadata", await ask(self.v1, "get_metadata"))
        number_format = metadata.get("number_format") or {}
        try:
            slots = {str(name): slot_type(kind, name) for name, kind in self.v1.slot_types}
        except (AttributeError, TypeError, ValueError):
            raise InvalidResponse("slot_types is no list of pairs of a slot's name and its type") from None
        return [
            SlotDisplay(
                slot_name=SlotName(name),
                slot_type=kind,
                description=str(metadata.get("description") or ""),
                human_readable_name=str(metadata.get("human_readable_name") or name),
                display_unit=str(metadata.get("display_unit") or "Unit"),
                display_icon=str(metadata.get("display_icon") or ""),
                number_binary=bool(number_format.get("binary")),
                number_round_length=int(number_format.get("round_length") or 0),
            )
            for name, kind in slots.items()
        ]

    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        """Returns the plugin's slots in whole quanta, and at most the capacity of its healthy devices.

        Raises InvalidResponse where it says more than its alloc map has.
        """
        reported_amounts = require_mapping("", await ask(self.v1, "available_slots"))
        devices = await self.list_devices()
        device_amounts: dict[SlotName, Decimal] = {}
        for slot in (device_slot for device in devices for device_slot in device.slots):
            device_amounts[slot.slot_name] = device_amounts.get(slot.slot_name, Decimal(0)) + slot.amount
        capacities = {SlotName(str(name)): to_decimal(amount, str(name)) for name, amount in reported_amounts.items()}
        for name, amount in capacities.items():
            if amount > device_amounts.get(name, 0):
                raise InvalidResponse(f"offers {amount} {name}; its alloc map has {device_amounts.get(name, 0)}")
        return {
            name: min(device_total, capacities.get(name, Decimal(0)))
            for name, device_total in slot_totals(devices).items()
        }

    def alloc_map_spec(self) -> AllocMapSpec | None:
        return self._spec

    async def create_alloc_map(self) -> AbstractAllocMap:
        if self._spec is not None:
            return await super().create_alloc_map()
        v1_map = await self._alloc_map()
        return ExternalAllocMap(await self._devices_of(v1_map), partial(self._choose, v1_map))

    @staticmethod
    def _choose(
        v1_map: alloc_maps.AbstractAllocMap,
        held: DeviceAllocation,
        request: Mapping[SlotName, Decimal],
        hint: AffinityHint,
        eligible: frozenset[DeviceId] | None,
    ) -> DeviceAllocation:
        """Chooses devices for a request by a v1 alloc map, and returns them.

        Ineligible devices are shown to the map as taken, since v1 knows no eligible ones. The map gets no hint.
        """
        del hint
        v1_map.clear()
        saved_allocations = device_slots(v1_map)
        taken_amounts = {slot: dict(device_amounts) for slot, device_amounts in held.slots.items()}
        for device, slot in saved_allocations.items():
            if eligible is not None and device not in eligible and slot.amount:
                taken_amounts.setdefault(slot.slot_name, {})[device] = slot.amount
        if taken_amounts:
            v1_map.apply_allocation(taken_amounts)
        v1_allocation = v1_map.allocate(dict(request))
        if not isinstance(v1_allocation, Mapping):
            raise InvalidResponse(f"returned {v1_allocation!r:.60} instead of an allocation")
        amounts_by_slot = {
            SlotName(str(slot)): {
                device: to_decimal(amount, f"{slot} of {device}") for device, amount in device_amounts.items() if amount
            }
            for slot, device_amounts in v1_allocation.items()
        }
        return DeviceAllocation(
            slots={slot: device_amounts for slot, device_amounts in amounts_by_slot.items() if device_amounts}
        )

    def create_lifecycle_hook(
        self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext
    ) -> AbstractLifecycleHook:
        return LegacyHook(workload, device_alloc, context, self)

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        """Returns the devices of an allocation with the data of the plugin.

        A device that the plugin leaves out has only a model.
        """
        if not device_alloc.slots:
            return ()
        v1_allocation = {slot: dict(devices) for slot, devices in device_alloc.slots.items()}
        reported_devices = require_collection(
            "get_attached_devices", await ask(self.v1, "get_attached_devices", v1_allocation)
        )
        try:
            attached_devices = [
                AttachedDevice(
                    device_id=DeviceId(reported_device["device_id"]),
                    model_name=str(reported_device["model_name"]),
                    data={
                        str(key): _json_value(value) for key, value in dict(reported_device.get("data") or {}).items()
                    },
                )
                for reported_device in reported_devices
            ]
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise InvalidResponse(f"get_attached_devices: an item is malformed: {type(e).__name__}: {e}") from None
        missing_ids = device_alloc.device_ids() - {device.device_id for device in attached_devices}
        missing_devices = (
            [missing_device for missing_device in await self.list_devices() if missing_device.device_id in missing_ids]
            if missing_ids
            else []
        )
        return attached_devices + [
            AttachedDevice(device_id=missing_device.device_id, model_name=missing_device.model_name or self.key)
            for missing_device in missing_devices
        ]

    async def get_node_info(self) -> NodeInfo:
        hardware = await self._hardware()
        node_facts = {
            "plugin_version": await ask(self.v1, "get_version"),
            **texts_of("extra_info", await ask(self.v1, "extra_info")),
            **texts_of("get_node_hwinfo: metadata", hardware.get("metadata") or {}),
            **{
                key: getattr(metadata_value, "value", metadata_value)
                for key, metadata_value in hardware.items()
                if key in ("status", "status_info")
            },
        }
        return NodeInfo(extra={key: str(value) for key, value in node_facts.items() if value not in (None, "")})

    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        method = "gather_node_measures"
        return list(node_measurements(require_collection(method, await ask(self.v1, method, V1StatContext()))))

    async def gather_workload_metrics(
        self, ctx: StatContext, kernels: Sequence[KernelId]
    ) -> Mapping[KernelId, Sequence[Measurement]]:
        """Returns a plugin's container metrics of kernels; the plugin gets kernel ids as container ids."""
        if not kernels:
            return {}
        method = "gather_container_measures"
        metrics = require_collection(
            method, await ask(self.v1, method, V1StatContext(), [str(kernel) for kernel in kernels])
        )
        measurements_by_kernel: dict[KernelId, list[Measurement]] = {}
        requested_kernels = set(kernels)
        for container_id, measurement in keyed_measurements(metrics, "per_container"):
            try:
                kernel = KernelId(UUID(str(container_id)))
            except ValueError:
                raise InvalidResponse(f"{method}: {container_id!r:.60} is none of the containers asked for") from None
            if kernel in requested_kernels:
                measurements_by_kernel.setdefault(kernel, []).append(measurement)
        return measurements_by_kernel

    async def gather_process_metrics(
        self, ctx: StatContext, pids: Mapping[int, KernelId]
    ) -> Mapping[int, Sequence[Measurement]]:
        if not pids:
            return {}
        method = "gather_process_measures"
        kernel_text_by_pid = {pid: str(kernel) for pid, kernel in pids.items()}
        measurements_by_pid: dict[int, list[Measurement]] = {}
        for pid, measurement in keyed_measurements(
            require_collection(method, await ask(self.v1, method, V1StatContext(), kernel_text_by_pid)), "per_process"
        ):
            if pid in pids:
                measurements_by_pid.setdefault(pid, []).append(measurement)
        return measurements_by_pid


def _json_value(value: object) -> object:
    """Converts a value to JSON; sizes become plain numbers, other quantities text."""
    match value:
        case None | bool() | str() | float():
            return value
        case int():
            return int(value)
    return str(value)


def adapter_of(v1_class: type[V1Plugin]) -> type[LegacyPluginAdapter]:
    """Returns the adapter for one class of v1 plugins. Its version is the package's ``__version__``, else ``v1``."""
    package_name = v1_class.__module__.rpartition(".")[0] or v1_class.__module__
    version = getattr(importlib.import_module(package_name), "__version__", None) or "v1"
    class_attributes = {"v1_class": v1_class, "key": getattr(v1_class, "key", None), "version": str(version)}
    return type(f"Legacy{v1_class.__name__}", (LegacyPluginAdapter,), class_attributes)
