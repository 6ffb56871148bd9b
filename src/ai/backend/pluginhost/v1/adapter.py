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
    exact,
    keyed_measurements,
    listed,
    mapping,
    node_measurements,
    texts,
    texts_of,
)

_STOCK_MAPS = (alloc_maps.DiscretePropertyAllocMap, alloc_maps.FractionAllocMap)
_FAULTY_STATUSES = ("offline", "unavailable")


class LegacySettings(BaseModel):
    """The plugin's own settings; ``local-config`` is what it sees of an agent's configuration."""

    model_config = ConfigDict(extra="allow", frozen=True)


class LegacyPluginAdapter(AbstractComputePlugin):
    """Represents the base of adapters of v1 plugins. Each class of v1 plugins has a subclass, see :func:`adapter_of`.
    ``restore_from_container`` and ``update_plugin_config`` are never called: the agent knows what its workloads hold
    (decision 0057), and settings are read when it starts.
    """

    v1_class: ClassVar[type[V1Plugin]]
    settings_model: ClassVar[type[BaseModel] | None] = LegacySettings
    capabilities: ClassVar[PluginCapabilities] = PluginCapabilities(process_metrics=True, blocking=True)

    def __init__(self, settings: BaseModel | None = None) -> None:
        super().__init__(settings)
        values = dict(settings.model_extra or {}) if settings is not None else {}
        local = LocalConfig(values.pop("local-config", {}))
        self.v1 = self.v1_class(texts(values, f"plugins.{self.key}"), local)
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
        for device in listed("list_devices", await ask(self.v1, "list_devices")):
            name = getattr(device, "device_id", None)
            if not isinstance(name, str):
                raise InvalidResponse(f"list_devices: the device_id {name!r:.60} is no text")
            if name in devices_by_id:
                raise InvalidResponse(f"list_devices: the device {name!r:.64} is listed twice")
            devices_by_id[DeviceId(name)] = device
        slots = device_slots(alloc_map)
        if strange_ids := sorted(map(repr, set(slots) - set(devices_by_id))):
            raise InvalidResponse(
                f"create_alloc_map has the device {strange_ids[0]:.64}, which list_devices does not list"
            )
        reason = await self._out_of_order()
        return [self._device(device, slots[name], reason) for name, device in devices_by_id.items() if name in slots]

    def _device(self, device: Any, slot: DeviceSlot, reason: str | None) -> ComputeDevice:
        model, node = getattr(device, "model_name", None), device.numa_node
        return ComputeDevice(
            device_name=self.key,
            device_id=DeviceId(device.device_id),
            hw_location=str(device.hw_location or "unknown"),
            slots=(slot,),
            numa_node=None if node is None or node < 0 else int(node),
            memory_size=int(exact(device.memory_size or 0, f"list_devices: memory_size of {device.device_id}")),
            processing_units=int(exact(device.processing_units or 0, f"list_devices: units of {device.device_id}")),
            model_name=model if isinstance(model, str) else None,
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
        return mapping("get_node_hwinfo", metadata)

    async def _out_of_order(self) -> str | None:
        """Returns the reason why all devices count as faulty, or None. A v1 plugin does not report the health of one
        device.
        """
        try:
            facts = await self._hardware()
        except (V1CallFailed, InvalidResponse):
            return None
        status = facts.get("status")
        status = str(getattr(status, "value", status))
        return str(facts.get("status_info") or status) if status in _FAULTY_STATUSES else None

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        facts = mapping("get_metadata", await ask(self.v1, "get_metadata"))
        form = facts.get("number_format") or {}
        try:
            slots = {str(name): slot_type(kind, name) for name, kind in self.v1.slot_types}
        except (AttributeError, TypeError, ValueError):
            raise InvalidResponse("slot_types is no list of pairs of a slot's name and its type") from None
        return [
            SlotDisplay(
                slot_name=SlotName(name),
                slot_type=kind,
                description=str(facts.get("description") or ""),
                human_readable_name=str(facts.get("human_readable_name") or name),
                display_unit=str(facts.get("display_unit") or "Unit"),
                display_icon=str(facts.get("display_icon") or ""),
                number_binary=bool(form.get("binary")),
                number_round_length=int(form.get("round_length") or 0),
            )
            for name, kind in slots.items()
        ]

    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        """Returns the plugin's slots in whole quanta, and at most the capacity of its healthy devices. Raises
        InvalidResponse where it says more than its alloc map has."""
        reported = mapping("", await ask(self.v1, "available_slots"))
        devices = await self.list_devices()
        amounts: dict[SlotName, Decimal] = {}
        for slot in (device_slot for device in devices for device_slot in device.slots):
            amounts[slot.slot_name] = amounts.get(slot.slot_name, Decimal(0)) + slot.amount
        capacities = {SlotName(str(name)): exact(amount, str(name)) for name, amount in reported.items()}
        for name, amount in capacities.items():
            if amount > amounts.get(name, 0):
                raise InvalidResponse(f"offers {amount} {name}; its alloc map has {amounts.get(name, 0)}")
        return {name: min(total, capacities.get(name, Decimal(0))) for name, total in slot_totals(devices).items()}

    def alloc_map_spec(self) -> AllocMapSpec | None:
        return self._spec

    async def create_alloc_map(self) -> AbstractAllocMap:
        if self._spec is not None:
            return await super().create_alloc_map()
        own = await self._alloc_map()
        return ExternalAllocMap(await self._devices_of(own), partial(self._choose, own))

    @staticmethod
    def _choose(
        v1_map: alloc_maps.AbstractAllocMap,
        held: DeviceAllocation,
        request: Mapping[SlotName, Decimal],
        hint: AffinityHint,
        eligible: frozenset[DeviceId] | None,
    ) -> DeviceAllocation:
        """Allocates devices by a v1 alloc map. Ineligible devices are shown to it as taken, since v1 knows no eligible
        ones. It gets no hint.
        """
        del hint
        v1_map.clear()
        saved_allocations = device_slots(v1_map)
        taken = {slot: dict(devices) for slot, devices in held.slots.items()}
        for device, slot in saved_allocations.items():
            if eligible is not None and device not in eligible and slot.amount:
                taken.setdefault(slot.slot_name, {})[device] = slot.amount
        if taken:
            v1_map.apply_allocation(taken)
        chosen = v1_map.allocate(dict(request))
        if not isinstance(chosen, Mapping):
            raise InvalidResponse(f"returned {chosen!r:.60} instead of an allocation")
        request_exact = {
            SlotName(str(slot)): {
                device: exact(value, f"{slot} of {device}") for device, value in amounts.items() if value
            }
            for slot, amounts in chosen.items()
        }
        return DeviceAllocation(slots={slot: amounts for slot, amounts in request_exact.items() if amounts})

    def create_lifecycle_hook(
        self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext
    ) -> AbstractLifecycleHook:
        return LegacyHook(workload, device_alloc, context, self)

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        """Returns the devices of an allocation with the data of the plugin. A device that the plugin leaves out has
        only a model.
        """
        if not device_alloc.slots:
            return ()
        v1_allocation = {slot: dict(devices) for slot, devices in device_alloc.slots.items()}
        reported = listed("get_attached_devices", await ask(self.v1, "get_attached_devices", v1_allocation))
        try:
            attached = [
                AttachedDevice(
                    device_id=DeviceId(item["device_id"]),
                    model_name=str(item["model_name"]),
                    data={str(key): _json_value(value) for key, value in dict(item.get("data") or {}).items()},
                )
                for item in reported
            ]
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise InvalidResponse(f"get_attached_devices: an item is malformed: {type(e).__name__}: {e}") from None
        missing = device_alloc.device_ids() - {device.device_id for device in attached}
        unnamed = [one for one in await self.list_devices() if one.device_id in missing] if missing else []
        return attached + [
            AttachedDevice(device_id=one.device_id, model_name=one.model_name or self.key) for one in unnamed
        ]

    async def get_node_info(self) -> NodeInfo:
        hardware = await self._hardware()
        facts = {
            "plugin_version": await ask(self.v1, "get_version"),
            **texts_of("extra_info", await ask(self.v1, "extra_info")),
            **texts_of("get_node_hwinfo: metadata", hardware.get("metadata") or {}),
            **{key: getattr(v, "value", v) for key, v in hardware.items() if key in ("status", "status_info")},
        }
        return NodeInfo(extra={key: str(value) for key, value in facts.items() if value not in (None, "")})

    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        method = "gather_node_measures"
        return list(node_measurements(listed(method, await ask(self.v1, method, V1StatContext()))))

    async def gather_workload_metrics(
        self, ctx: StatContext, kernels: Sequence[KernelId]
    ) -> Mapping[KernelId, Sequence[Measurement]]:
        """Returns a plugin's container metrics of kernels; the plugin gets kernel ids as container ids."""
        if not kernels:
            return {}
        method = "gather_container_measures"
        metrics = listed(method, await ask(self.v1, method, V1StatContext(), [str(kernel) for kernel in kernels]))
        gathered: dict[KernelId, list[Measurement]] = {}
        requested = set(kernels)
        for name, made in keyed_measurements(metrics, "per_container"):
            try:
                kernel = KernelId(UUID(str(name)))
            except ValueError:
                raise InvalidResponse(f"{method}: {name!r:.60} is none of the containers asked for") from None
            if kernel in requested:
                gathered.setdefault(kernel, []).append(made)
        return gathered

    async def gather_process_metrics(
        self, ctx: StatContext, pids: Mapping[int, KernelId]
    ) -> Mapping[int, Sequence[Measurement]]:
        if not pids:
            return {}
        method = "gather_process_measures"
        by_pid = {pid: str(kernel) for pid, kernel in pids.items()}
        gathered: dict[int, list[Measurement]] = {}
        for pid, made in keyed_measurements(
            listed(method, await ask(self.v1, method, V1StatContext(), by_pid)), "per_process"
        ):
            if pid in pids:
                gathered.setdefault(pid, []).append(made)
        return gathered


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
    package = v1_class.__module__.rpartition(".")[0] or v1_class.__module__
    version = getattr(importlib.import_module(package), "__version__", None) or "v1"
    facts = {"v1_class": v1_class, "key": getattr(v1_class, "key", None), "version": str(version)}
    return type(f"Legacy{v1_class.__name__}", (LegacyPluginAdapter,), facts)
