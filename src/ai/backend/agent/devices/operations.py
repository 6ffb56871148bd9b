"""Runs operations of administrators on devices that no kernel holds: partitions, power, images, attachment. Cordons and
taints devices too, whoever holds them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import msgspec

from ai.backend.agent.devices.cordons import Cordons
from ai.backend.agent.devices.inventory import INTRINSIC, Inventory
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.common.devices import ComputeDevice
from ai.backend.common.errors import Conflict, InvalidInput, NotFound, PluginError
from ai.backend.common.ids import DeviceId
from ai.backend.common.wire.agent import DeviceOperation, DeviceOptions, DeviceOptionsOf, OperateDevice, PartitionOption
from ai.backend.plugin.accelerator import AbstractComputePlugin, Attachable, Partitionable, Programmable
from ai.backend.pluginhost.handle import PluginHandle

Act = Callable[[Any, DeviceId, str], Awaitable[Any]]


class _Action(msgspec.Struct, frozen=True):
    """Describes one kind of device operation: the function that runs it, and the capability that the plugin needs.

    ``power`` is the required capability; ``argument`` describes the argument, if any.
    """

    power: str
    act: Act
    argument: str = ""
    needs_listed: bool = True


ACTIONS: Mapping[str, _Action] = {
    "partition": _Action(
        "partitionable", lambda plugin, device_id, argument: plugin.create_partition(device_id, argument), "the profile"
    ),
    "unpartition": _Action("partitionable", lambda plugin, device_id, _: plugin.destroy_partition(device_id)),
    "power-on": _Action("power_controllable", lambda plugin, device_id, _: plugin.power_on(device_id)),
    "power-off": _Action("power_controllable", lambda plugin, device_id, _: plugin.power_off(device_id)),
    "reset": _Action("power_controllable", lambda plugin, device_id, _: plugin.reset(device_id)),
    "program": _Action(
        "programmable",
        lambda plugin, device_id, argument: plugin.program(device_id, argument),
        "the image, a path on the agent's node",
    ),
    "attach": _Action("attachable", lambda plugin, device_id, _: plugin.attach(device_id), needs_listed=False),
    "detach": _Action("attachable", lambda plugin, device_id, _: plugin.detach(device_id)),
}
CORDON_ACTIONS = ("cordon", "taint", "uncordon")
_TAINT_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
MAX_CORDON_S = 10 * 365 * 86_400.0
_MAX_REASON_LENGTH = 300


class DeviceOperations:
    """Runs operations on devices, one at a time for each plugin, and awaits ``refresh`` after each operation."""

    def __init__(
        self,
        plugins: PluginSet,
        inventory: Inventory,
        cordons: Cordons,
        *,
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self._plugins = plugins
        self._inventory = inventory
        self._cordons = cordons
        inventory.set_cordons(cordons.reasons(), cordons.taints())
        self._refresh = refresh
        self._locks: dict[str, asyncio.Lock] = {}

    def lock_of(self, plugin_key: str) -> asyncio.Lock:
        """Returns the lock that permits changes of a plugin's devices to one caller at a time."""
        return self._locks.setdefault(plugin_key, asyncio.Lock())

    async def operate(self, req: OperateDevice) -> DeviceOperation:
        """Runs an operation on a device, and returns once the inventory contains the result.

        Raises:
            InvalidInput: an unknown action, one that the plugin does not support, or a missing argument.
            NotFound: no such device. Conflict: a kernel holds it. PluginError: the plugin failed.
        """
        if req.action in CORDON_ACTIONS:
            return await self._change_cordon(req)
        handle = self._plugins.get(req.device_name)
        action = ACTIONS.get(req.action)
        if action is None:
            action_names = ", ".join([*ACTIONS, *CORDON_ACTIONS])
            raise InvalidInput(f"{req.action[:32]!r} is no operation on a device; there are {action_names}")
        if not getattr(handle.plugin.capabilities, action.power):
            supported_actions = ", ".join(sorted(_supported_actions_of(handle.plugin))) or "none"
            raise InvalidInput(f"devices of {handle.key} do not know {req.action}; what they know: {supported_actions}")
        if action.argument and not req.argument:
            raise InvalidInput(f"{req.action} needs {action.argument}")
        async with self.lock_of(handle.key):
            return await self._run_operation(handle, req, action)

    async def _change_cordon(self, req: OperateDevice) -> DeviceOperation:
        """Cordons, taints or uncordons a device, without a call of its plugin.

        Kernels that hold the device go on. A device of a plugin that has failed can be cordoned, and a device that is
        not listed any more can be uncordoned.
        """
        device_id = DeviceId(req.device_id)
        kind = self._inventory.kinds.get(req.device_name)
        is_listed = kind is not None and any(device.device_id == device_id for device in kind.listed_devices)
        if req.action == "uncordon":
            if not self._cordons.remove(req.device_name, device_id) and not is_listed:
                raise NotFound(f"the plugin {req.device_name[:64]} lists no device {req.device_id[:128]!r}")
        else:
            if not is_listed:
                raise NotFound(f"the plugin {req.device_name[:64]} lists no device {req.device_id[:128]!r}")
            reason, taint = req.argument.strip(), ""
            if req.action == "taint":
                taint, _, reason = reason.partition(" ")
                if _TAINT_KEY.fullmatch(taint) is None or req.device_name in INTRINSIC:
                    raise InvalidInput(
                        "taint needs a key and the reason, and an accelerator: maintenance new fan on Friday"
                    )
            if not reason.strip():
                raise InvalidInput(f"{req.action} needs the reason, for whoever wonders why the device takes nothing")
            if req.expires_after_s is not None and not 0 < req.expires_after_s <= MAX_CORDON_S:
                raise InvalidInput(f"a cordon ends after more than 0 and at most {MAX_CORDON_S:.0f} seconds")
            self._cordons.put(req.device_name, device_id, reason[:_MAX_REASON_LENGTH], req.expires_after_s, taint=taint)
        await self._apply_cordons()
        return DeviceOperation(device_id=req.device_id)

    def is_cordoned(self, plugin_key: str, device_id: DeviceId) -> bool:
        """Returns True for a device that has a cordon or a taint."""
        return (plugin_key, device_id) in {**self._cordons.reasons(), **self._cordons.taints()}

    def rule_of(self, plugin_key: str, device_id: DeviceId) -> str | None:
        """Returns the name of the rule that has cordoned or tainted a device, or an empty text if an operator has.

        Returns None if the device has neither a cordon nor a taint.
        """
        return self._cordons.rule_of(plugin_key, device_id)

    async def cordon_by_rule(
        self, plugin_key: str, device_id: DeviceId, rule: str, reason: str, expires_after_s: float | None, *, taint: str
    ) -> bool:
        """Cordons or taints a device in the name of a rule. Returns False, and changes nothing, if the device has a
        cordon or taint already. Raises OSError.
        """
        if self.rule_of(plugin_key, device_id) is not None:
            return False
        self._cordons.put(plugin_key, device_id, reason[:_MAX_REASON_LENGTH], expires_after_s, taint=taint, rule=rule)
        await self._apply_cordons()
        return True

    async def uncordon_by_rule(self, plugin_key: str, device_id: DeviceId, rule: str) -> bool:
        """Removes a cordon or taint that this rule has set. Returns False, and changes nothing, if this rule has set
        none. Raises OSError.
        """
        if self.rule_of(plugin_key, device_id) != rule:
            return False
        self._cordons.remove(plugin_key, device_id)
        await self._apply_cordons()
        return True

    async def expire_cordons(self) -> None:
        """Removes the cordons and taints whose time is over."""
        if self._cordons.expire():
            await self._apply_cordons()

    async def _apply_cordons(self) -> None:
        self._inventory.set_cordons(self._cordons.reasons(), self._cordons.taints())
        await self._inventory.rebuild()
        await self._refresh()

    async def _run_operation(self, handle: PluginHandle, req: OperateDevice, action: _Action) -> DeviceOperation:
        device_id = DeviceId(req.device_id)
        listed_ids = {device.device_id for device in self._listed(handle)}
        if action.needs_listed and device_id not in listed_ids:
            raise NotFound(f"the plugin {handle.key} lists no device {req.device_id[:128]!r}")
        if holder_ids := self._inventory.holders(handle.key, device_id):
            raise Conflict(f"the device {device_id} is in use", data={"kernels": holder_ids})
        # No await before the device is withheld: no kernel can take it in between.
        self._inventory.withhold(handle.key, device_id, f"{req.action} is under way")
        try:
            await self._inventory.rebuild()
            result_id = await handle.call(req.action, lambda plugin: action.act(plugin, device_id, req.argument))
        finally:
            await asyncio.shield(self._restore(handle.key, device_id))
        return DeviceOperation(device_id=str(result_id) if result_id else req.device_id)

    async def _restore(self, plugin_key: str, device_id: DeviceId) -> None:
        self._inventory.restore(plugin_key, device_id)
        await self._inventory.rebuild()
        await self._refresh()

    def _listed(self, handle: PluginHandle) -> tuple[ComputeDevice, ...]:
        kind = self._inventory.kinds.get(handle.key)
        if kind is None:
            raise PluginError(f"the plugin {handle.key} has not listed its devices yet")
        return kind.listed_devices

    async def options(self, req: DeviceOptionsOf) -> DeviceOptions:
        """Returns the operations that are possible on a plugin's devices now."""
        handle = self._plugins.get(req.device_name)
        capabilities = handle.plugin.capabilities
        devices = self._listed(handle)
        profiles_of_device: dict[str, list[PartitionOption]] = {}
        image_of_device: dict[str, str] = {}
        for device in devices:
            device_id = device.device_id
            with suppress(NotFound):  # a device that cannot be partitioned, such as a partition itself
                if capabilities.partitionable:
                    profiles_of_device[device_id] = await _partition_profiles(handle, device_id)
            with suppress(NotFound):
                if capabilities.programmable and (image := await _programmed_image(handle, device_id)) is not None:
                    image_of_device[device_id] = image
        attachable_ids: list[str] = []
        if capabilities.attachable:
            device_ids = await handle.call(
                "attachable_devices", lambda plugin: cast("Attachable", plugin).attachable_devices()
            )
            attachable_ids = [str(device_id) for device_id in device_ids]
        return DeviceOptions(
            actions=sorted([*_supported_actions_of(handle.plugin), *CORDON_ACTIONS]),
            devices=[str(device.device_id) for device in devices],
            profiles={
                device_id: partition_options
                for device_id, partition_options in profiles_of_device.items()
                if partition_options
            },
            images=image_of_device,
            attachable=attachable_ids,
            cordons={
                str(device_id): description
                for (plugin_key, device_id), description in self._cordons.descriptions().items()
                if plugin_key == handle.key
            },
        )


def _supported_actions_of(plugin: AbstractComputePlugin) -> list[str]:
    return [name for name, action in ACTIONS.items() if getattr(plugin.capabilities, action.power)]


async def _partition_profiles(handle: PluginHandle, device_id: DeviceId) -> list[PartitionOption]:
    profiles = await handle.call(
        "partition_profiles", lambda plugin: cast("Partitionable", plugin).partition_profiles(device_id)
    )
    return [
        PartitionOption(name=profile.name, slot_name=profile.slot_name, available=profile.available)
        for profile in profiles
    ]


async def _programmed_image(handle: PluginHandle, device_id: DeviceId) -> str | None:
    return await handle.call(
        "programmed_image", lambda plugin: cast("Programmable", plugin).programmed_image(device_id)
    )
