"""Runs operations of administrators on devices that no kernel holds: partitions, power, images, attachment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.plugins import PluginHandle, PluginSet
from ai.backend.common.devices import ComputeDevice
from ai.backend.common.errors import Conflict, InvalidInput, NotFound, PluginError
from ai.backend.common.ids import DeviceId
from ai.backend.common.wire.agent import DeviceOperation, DeviceOptions, DeviceOptionsOf, OperateDevice, PartitionOption
from ai.backend.plugin.accelerator import AbstractComputePlugin, Attachable, Partitionable, Programmable

Act = Callable[[Any, DeviceId, str], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class _Action:
    """An operation. ``power`` is the capability that it needs; ``argument`` describes its argument, if it needs one."""

    power: str
    act: Act
    argument: str = ""
    needs_listed: bool = True


ACTIONS: Mapping[str, _Action] = {
    "partition": _Action("partitionable", lambda p, d, a: p.create_partition(d, a), "the profile"),
    "unpartition": _Action("partitionable", lambda p, d, _: p.destroy_partition(d)),
    "power-on": _Action("power_controllable", lambda p, d, _: p.power_on(d)),
    "power-off": _Action("power_controllable", lambda p, d, _: p.power_off(d)),
    "reset": _Action("power_controllable", lambda p, d, _: p.reset(d)),
    "program": _Action("programmable", lambda p, d, a: p.program(d, a), "the image, a path on the agent's node"),
    "attach": _Action("attachable", lambda p, d, _: p.attach(d), needs_listed=False),
    "detach": _Action("attachable", lambda p, d, _: p.detach(d)),
}


class DeviceOperations:
    """Runs operations on devices, one at a time for each plugin. ``refresh`` is awaited before one returns."""

    def __init__(self, plugins: PluginSet, inventory: Inventory, *, refresh: Callable[[], Awaitable[None]]) -> None:
        self._plugins = plugins
        self._inventory = inventory
        self._refresh = refresh
        self._locks: dict[str, asyncio.Lock] = {}

    async def operate(self, req: OperateDevice) -> DeviceOperation:
        """Runs an operation, and returns once the inventory contains its result.

        Raises:
            InvalidInput: an unknown action, one that the plugin does not support, or a missing argument.
            NotFound: no such device. Conflict: a kernel holds it. PluginError: the plugin failed.
        """
        handle = self._plugins.get(req.device_name)
        action = ACTIONS.get(req.action)
        if action is None:
            names = ", ".join(ACTIONS)
            raise InvalidInput(f"{req.action[:32]!r} is no operation on a device; there are {names}")
        if not getattr(handle.plugin.capabilities, action.power):
            able = ", ".join(sorted(_able(handle.plugin))) or "none"
            raise InvalidInput(f"devices of {handle.key} do not know {req.action}; what they know: {able}")
        if action.argument and not req.argument:
            raise InvalidInput(f"{req.action} needs {action.argument}")
        async with self._locks.setdefault(handle.key, asyncio.Lock()):
            return await self._do(handle, req, action)

    async def _do(self, handle: PluginHandle, req: OperateDevice, action: _Action) -> DeviceOperation:
        device_id = DeviceId(req.device_id)
        listed = {device.device_id for device in self._listed(handle)}
        if action.needs_listed and device_id not in listed:
            raise NotFound(f"the plugin {handle.key} lists no device {req.device_id[:128]!r}")
        if holders := self._inventory.holders(handle.key, device_id):
            raise Conflict(f"the device {device_id} is in use", data={"kernels": holders})
        # No await before the device is withheld: no kernel can take it in between.
        self._inventory.withhold(handle.key, device_id, f"{req.action} is under way")
        try:
            await self._inventory.rebuild()
            result_id = await handle.call(req.action, lambda p: action.act(p, device_id, req.argument))
        finally:
            await asyncio.shield(self._restore(handle.key, device_id))
        return DeviceOperation(device_id=str(result_id) if result_id else req.device_id)

    async def _restore(self, key: str, device_id: DeviceId) -> None:
        self._inventory.restore(key, device_id)
        await self._inventory.rebuild()
        await self._refresh()

    def _listed(self, handle: PluginHandle) -> tuple[ComputeDevice, ...]:
        kind = self._inventory.kinds.get(handle.key)
        if kind is None:
            raise PluginError(f"the plugin {handle.key} has not listed its devices yet")
        return kind.answered

    async def options(self, req: DeviceOptionsOf) -> DeviceOptions:
        """Returns the operations that are possible on a plugin's devices now."""
        handle = self._plugins.get(req.device_name)
        can = handle.plugin.capabilities
        devices = self._listed(handle)
        profiles: dict[str, list[PartitionOption]] = {}
        images: dict[str, str] = {}
        for device in devices:
            device_id = device.device_id
            with suppress(NotFound):  # a device that cannot be partitioned, such as a partition itself
                if can.partitionable:
                    profiles[device_id] = await _profiles(handle, device_id)
            with suppress(NotFound):
                if can.programmable and (image := await _image(handle, device_id)) is not None:
                    images[device_id] = image
        attachable: list[str] = []
        if can.attachable:
            device_ids = await handle.call("attachable_devices", lambda p: cast("Attachable", p).attachable_devices())
            attachable = [str(device_id) for device_id in device_ids]
        return DeviceOptions(
            actions=sorted(_able(handle.plugin)),
            devices=[str(device.device_id) for device in devices],
            profiles={device_id: options for device_id, options in profiles.items() if options},
            images=images,
            attachable=attachable,
        )


def _able(plugin: AbstractComputePlugin) -> list[str]:
    return [name for name, action in ACTIONS.items() if getattr(plugin.capabilities, action.power)]


async def _profiles(handle: PluginHandle, device_id: DeviceId) -> list[PartitionOption]:
    profiles = await handle.call("partition_profiles", lambda p: cast("Partitionable", p).partition_profiles(device_id))
    return [PartitionOption(name=p.name, slot_name=p.slot_name, available=p.available) for p in profiles]


async def _image(handle: PluginHandle, device_id: DeviceId) -> str | None:
    return await handle.call("programmed_image", lambda p: cast("Programmable", p).programmed_image(device_id))
