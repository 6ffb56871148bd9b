"""Acts on the devices of this node through the accelerator plugin that also serves sessions (Interface v2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, cast

from ai.backend.common.device_operations import OperationVerb
from ai.backend.common.devices import ComputeDevice, DeviceHealth
from ai.backend.common.errors import InvalidInput, NotFound
from ai.backend.common.ids import DeviceId
from ai.backend.kubeacc.crd.vocabulary import Attachment, AttachState, PowerState
from ai.backend.kubeacc.drivers.spi import AbstractAcceleratorDriver, DriverDevice
from ai.backend.plugin.accelerator import (
    AbstractComputePlugin,
    Attachable,
    Partitionable,
    PowerControllable,
    Programmable,
)

V = OperationVerb
OPERATIONS_OF: Mapping[str, frozenset[OperationVerb]] = {
    "attachable": frozenset({V.ATTACH, V.DETACH}),
    "programmable": frozenset({V.PROGRAM}),
    "power_controllable": frozenset({V.POWER, V.RESET}),
    "partitionable": frozenset({V.PARTITION}),
}
"""Optional power of a plugin -> the operations that it makes possible."""


def operations_of(plugin: AbstractComputePlugin) -> frozenset[OperationVerb]:
    """Returns the operations that a plugin's powers permit on its devices. Every device can be diagnosed."""
    permitted_verbs = [verbs for power, verbs in OPERATIONS_OF.items() if getattr(plugin.capabilities, power)]
    return frozenset({V.DIAGNOSE}).union(*permitted_verbs)


class BareMetalDriver(AbstractAcceleratorDriver):
    """Acts on the devices of one plugin on one node. The plugin raises Conflict for devices that workloads hold.

    ``plugin_of`` returns the plugin that runs now, since one whose process has died is started anew. It raises
    PluginError where none runs."""

    name: ClassVar[str] = "bare-metal"

    def __init__(self, plugin_of: Callable[[], AbstractComputePlugin], node_name: str) -> None:
        self._plugin_of = plugin_of
        self._node_name = node_name
        self.operations = operations_of(plugin_of())

    @property
    def _plugin(self) -> AbstractComputePlugin:
        return self._plugin_of()

    async def discover(self) -> Sequence[DriverDevice]:
        plugin_devices = await self._plugin.list_devices()
        devices = [await self._describe(device) for device in plugin_devices]
        if V.ATTACH in self.operations:
            attached_ids = {device.device_id for device in plugin_devices}
            attachable_plugin = cast("Attachable", self._plugin)
            devices += [
                DriverDevice(device_id=device_id, attachment=Attachment.REMOTE, attach_state=AttachState.DETACHED)
                for device_id in await attachable_plugin.attachable_devices()
                if device_id not in attached_ids
            ]
        return devices

    async def _describe(self, device: ComputeDevice) -> DriverDevice:
        program: str | None = None
        if V.PROGRAM in self.operations:
            with suppress(NotFound):  # a partition has no image of its own
                program = await cast("Programmable", self._plugin).programmed_image(device.device_id)
        is_healthy = device.health is DeviceHealth.HEALTHY
        return DriverDevice(
            device_id=device.device_id,
            node_name=self._node_name,
            model=device.model_name or "",
            program=program,
            properties={
                "health": "healthy" if is_healthy else f"unhealthy: {device.health_reason}",
                "location": device.hw_location,
            },
        )

    async def attach(self, device_id: str, node_name: str) -> None:
        self._require(V.ATTACH)
        if node_name != self._node_name:
            raise InvalidInput(f"the plugin of {self._node_name} attaches devices to its own node only")
        attachable_plugin = cast("Attachable", self._plugin)
        listed_ids = {device.device_id for device in await self._plugin.list_devices()}
        if device_id not in listed_ids and device_id not in await attachable_plugin.attachable_devices():
            raise NotFound(f"there is no device {device_id[:128]!r} to attach")
        await attachable_plugin.attach(DeviceId(device_id))

    async def detach(self, device_id: str) -> None:
        self._require(V.DETACH)
        await cast("Attachable", self._plugin).detach(DeviceId(device_id))

    async def program(self, device_id: str, image: Path) -> None:
        self._require(V.PROGRAM)
        await self._require_listed(device_id)
        await cast("Programmable", self._plugin).program(DeviceId(device_id), str(image))

    async def power(self, device_id: str, state: PowerState) -> None:
        self._require(V.POWER)
        await self._require_listed(device_id)
        plugin = cast("PowerControllable", self._plugin)
        await (plugin.power_on if state is PowerState.ON else plugin.power_off)(DeviceId(device_id))

    async def reset(self, device_id: str) -> None:
        self._require(V.RESET)
        await self._require_listed(device_id)
        await cast("PowerControllable", self._plugin).reset(DeviceId(device_id))

    async def create_partition(self, device_id: str, profile: str) -> str:
        self._require(V.PARTITION)
        await self._require_listed(device_id)
        return await cast("Partitionable", self._plugin).create_partition(DeviceId(device_id), profile)

    async def destroy_partition(self, device_id: str) -> None:
        self._require(V.PARTITION)
        await cast("Partitionable", self._plugin).destroy_partition(DeviceId(device_id))

    def _require(self, verb: OperationVerb) -> None:
        if verb not in self.operations:
            self._refuse(verb)

    async def _require_listed(self, device_id: str) -> None:
        if all(device.device_id != device_id for device in await self._plugin.list_devices()):
            raise NotFound(f"the plugin {self._plugin.key} lists no device {device_id[:128]!r}")
