"""Simulates the optional powers, so that the conformance kit and the agent can be tried on each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ai.backend.accelerator.mock.declaration import MockDevice
from ai.backend.accelerator.mock.faults import act
from ai.backend.accelerator.mock.state import MockState, faulted, slice_of
from ai.backend.common.devices import DeviceHealth
from ai.backend.common.errors import Conflict, InvalidInput, NotFound
from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import DeviceHealthChange, PartitionProfile

P = ParamSpec("P")
R = TypeVar("R")
WATCH_S = 0.05
"""Seconds between two looks of the watch at the control file."""
CDI_KIND = "backend.ai/mock"
UNKNOWN_DEVICE = DeviceId("no-such-device")


def _changing_device(
    change_device: Callable[Concatenate[Any, MockDevice, P], R],
) -> Callable[Concatenate[Any, DeviceId, P], Coroutine[Any, Any, R]]:
    """Wraps a function that changes a mock device. The call raises NotFound for an unknown device, and saves the
    state.
    """

    @faulted
    @wraps(change_device)
    async def call(self: Any, device_id: DeviceId, /, *args: P.args, **kwargs: P.kwargs) -> R:
        device = self.board.devices.get(device_id)
        if device is None:
            raise NotFound(f"the mock accelerator has no device {device_id}")
        result = change_device(self, device, *args, **kwargs)
        self.board.save()
        return result

    return call


class SimulatedPowers:
    """Implements Partitionable, Programmable, PowerControllable, Attachable, HealthWatching and CdiProvider."""

    board: MockState

    def _check_unused(self, device_id: str) -> None:
        partitions = [
            holder_id for holder_id, (parent, _) in self.board.hardware.partitions.items() if parent == device_id
        ]
        if any(self.board.hardware.in_use.get(holder_id) for holder_id in (device_id, *partitions)):
            raise Conflict(f"the device {device_id} is in use")

    @_changing_device
    def partition_profiles(self, device: MockDevice) -> Sequence[PartitionProfile]:
        return [
            PartitionProfile(
                name=profile.name,
                slot_name=self.board.slot_name(slice_of(profile.memory_size)),
                memory_size=profile.memory_size,
                available=self._remaining(device, profile.name),
            )
            for profile in device.partitions
        ]

    def _remaining(self, device: MockDevice, profile: str) -> int:
        """Returns how many more partitions of a profile fit into a device, by their number and by the memory that is
        left.
        """
        profiles = {partition.name: partition for partition in device.partitions}
        existing = [name for parent, name in self.board.hardware.partitions.values() if parent == device.mother_uuid]
        remaining = device.memory_size - sum(profiles[name].memory_size for name in existing if name in profiles)
        size = profiles[profile]
        return max(0, min(size.max - existing.count(profile), remaining // size.memory_size))

    @_changing_device
    def create_partition(self, device: MockDevice, profile: str) -> DeviceId:
        if all(partition.name != profile for partition in device.partitions):
            raise NotFound(f"the device {device.mother_uuid} has no profile {profile}")
        if self.board.hardware.in_use.get(device.mother_uuid):
            raise Conflict(f"the device {device.mother_uuid} is in use")
        if self._remaining(device, profile) < 1:
            raise Conflict(f"the device {device.mother_uuid} has no room for another {profile}")
        names = (f"{device.mother_uuid}/{profile}/{number}" for number in range(64))
        partition_id = DeviceId(next(name for name in names if name not in self.board.hardware.partitions))
        self.board.hardware.partitions[partition_id] = [device.mother_uuid, profile]
        return partition_id

    @faulted
    async def destroy_partition(self, partition_id: DeviceId) -> None:
        if self.board.hardware.in_use.get(partition_id):
            raise Conflict(f"the partition {partition_id} is in use")
        self.board.hardware.partitions.pop(partition_id, None)
        self.board.save()

    @_changing_device
    def program(self, device: MockDevice, image: str) -> None:
        if not image.startswith("/") or not image.endswith(".bit"):
            raise InvalidInput(f"{image!r:.200} is no image for the mock accelerator; it takes /....bit")
        self.board.hardware.images[device.mother_uuid] = image

    @_changing_device
    def programmed_image(self, device: MockDevice) -> str | None:
        return self.board.hardware.images.get(device.mother_uuid)

    @_changing_device
    def power_on(self, device: MockDevice) -> None:
        self.board.hardware.off = [off_id for off_id in self.board.hardware.off if off_id != device.mother_uuid]

    @_changing_device
    def power_off(self, device: MockDevice) -> None:
        self._check_unused(device.mother_uuid)
        self.board.hardware.off = sorted({*self.board.hardware.off, device.mother_uuid})

    @_changing_device
    def reset(self, device: MockDevice) -> None:
        self._check_unused(device.mother_uuid)
        self.board.hardware.images.pop(device.mother_uuid, None)
        self.board.hardware.resets[device.mother_uuid] = self.board.hardware.resets.get(device.mother_uuid, 0) + 1

    @faulted
    async def attachable_devices(self) -> Sequence[DeviceId]:
        attached = self.board.hardware.attached
        return [
            DeviceId(uuid)
            for uuid, device in self.board.devices.items()
            if not device.is_attached and uuid not in attached
        ]

    @_changing_device
    def attach(self, device: MockDevice) -> None:
        if not device.is_attached:
            self.board.hardware.attached = sorted({*self.board.hardware.attached, device.mother_uuid})

    @faulted
    async def detach(self, device_id: DeviceId) -> None:
        device = self.board.devices.get(device_id)
        if device is None:
            return
        self._check_unused(device_id)
        if device.is_attached:
            raise Conflict(f"the device {device_id} is built in")
        self.board.hardware.attached = [name for name in self.board.hardware.attached if name != device_id]
        self.board.save()

    async def watch_health(self) -> AsyncIterator[DeviceHealthChange]:
        fault = self.board.panel.faults.pick("watch_health")
        if fault is not None:
            if fault.behaviour == "end":
                return
            if fault.behaviour == "unknown-device":
                yield DeviceHealthChange(device_id=UNKNOWN_DEVICE, health=DeviceHealth.UNHEALTHY, reason=fault.message)
            else:
                await act(fault)
        reported_healths = {device.device_id: (device.health, device.health_reason) for device in self.board.present()}
        while True:
            await asyncio.sleep(WATCH_S)
            self.board.panel.refresh()
            healths = {device.device_id: (device.health, device.health_reason) for device in self.board.present()}
            for device_id, (health, reason) in healths.items():
                if reported_healths.get(device_id) != (health, reason):
                    yield DeviceHealthChange(device_id=device_id, health=health, reason=reason)
            reported_healths = healths

    @faulted
    async def cdi_spec(self) -> Mapping[str, Any]:
        devices = [device for device in self.board.present() if device.health is DeviceHealth.HEALTHY]
        return {
            "cdiVersion": "0.6.0",
            "kind": CDI_KIND,
            "devices": [
                {
                    "name": device.device_id.replace("/", "_"),
                    "containerEdits": {
                        "deviceNodes": [{"path": f"/dev/mock/{device.hw_location[5:]}", "hostPath": "/dev/null"}]
                    },
                }
                for device in devices
            ],
        }
