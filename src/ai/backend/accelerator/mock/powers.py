"""Simulates the optional powers, so that the conformance kit and the agent can be tried on each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ai.backend.accelerator.mock.declaration import MockDevice
from ai.backend.accelerator.mock.faults import execute_fault
from ai.backend.accelerator.mock.state import MockState, slice_slot_name, with_faults
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

    @with_faults
    @wraps(change_device)
    async def call_with_device(self: Any, device_id: DeviceId, /, *args: P.args, **kwargs: P.kwargs) -> R:
        device = self.mock_state.devices.get(device_id)
        if device is None:
            raise NotFound(f"the mock accelerator has no device {device_id}")
        result = change_device(self, device, *args, **kwargs)
        self.mock_state.save()
        return result

    return call_with_device


class SimulatedPowers:
    """Implements Partitionable, Programmable, PowerControllable, Attachable, HealthWatching and CdiProvider."""

    mock_state: MockState

    def _check_unused(self, device_id: str) -> None:
        partitions = [
            holder_id for holder_id, (parent, _) in self.mock_state.hardware.partitions.items() if parent == device_id
        ]
        if any(self.mock_state.hardware.in_use.get(holder_id) for holder_id in (device_id, *partitions)):
            raise Conflict(f"the device {device_id} is in use")

    @_changing_device
    def partition_profiles(self, device: MockDevice) -> Sequence[PartitionProfile]:
        return [
            PartitionProfile(
                name=profile.name,
                slot_name=self.mock_state.slot_name(slice_slot_name(profile.memory_size)),
                memory_size=profile.memory_size,
                available=self._remaining(device, profile.name),
            )
            for profile in device.partitions
        ]

    def _remaining(self, device: MockDevice, profile: str) -> int:
        """Returns the number of further partitions of a profile that fit into a device.

        The profile's largest number and the device's free memory limit it.
        """
        profiles = {partition.name: partition for partition in device.partitions}
        existing_profiles = [
            name for parent, name in self.mock_state.hardware.partitions.values() if parent == device.mother_uuid
        ]
        free_bytes = device.memory_size - sum(
            profiles[name].memory_size for name in existing_profiles if name in profiles
        )
        chosen_profile = profiles[profile]
        return max(
            0, min(chosen_profile.max - existing_profiles.count(profile), free_bytes // chosen_profile.memory_size)
        )

    @_changing_device
    def create_partition(self, device: MockDevice, profile: str) -> DeviceId:
        if all(partition.name != profile for partition in device.partitions):
            raise NotFound(f"the device {device.mother_uuid} has no profile {profile}")
        if self.mock_state.hardware.in_use.get(device.mother_uuid):
            raise Conflict(f"the device {device.mother_uuid} is in use")
        if self._remaining(device, profile) < 1:
            raise Conflict(f"the device {device.mother_uuid} has no room for another {profile}")
        possible_ids = (f"{device.mother_uuid}/{profile}/{number}" for number in range(64))
        partition_id = DeviceId(next(name for name in possible_ids if name not in self.mock_state.hardware.partitions))
        self.mock_state.hardware.partitions[partition_id] = [device.mother_uuid, profile]
        return partition_id

    @with_faults
    async def destroy_partition(self, partition_id: DeviceId) -> None:
        if self.mock_state.hardware.in_use.get(partition_id):
            raise Conflict(f"the partition {partition_id} is in use")
        self.mock_state.hardware.partitions.pop(partition_id, None)
        self.mock_state.save()

    @_changing_device
    def program(self, device: MockDevice, image: str) -> None:
        if not image.startswith("/") or not image.endswith(".bit"):
            raise InvalidInput(f"{image!r:.200} is no image for the mock accelerator; it takes /....bit")
        self.mock_state.hardware.images[device.mother_uuid] = image

    @_changing_device
    def programmed_image(self, device: MockDevice) -> str | None:
        return self.mock_state.hardware.images.get(device.mother_uuid)

    @_changing_device
    def power_on(self, device: MockDevice) -> None:
        self.mock_state.hardware.off = [
            off_id for off_id in self.mock_state.hardware.off if off_id != device.mother_uuid
        ]

    @_changing_device
    def power_off(self, device: MockDevice) -> None:
        self._check_unused(device.mother_uuid)
        self.mock_state.hardware.off = sorted({*self.mock_state.hardware.off, device.mother_uuid})

    @_changing_device
    def reset(self, device: MockDevice) -> None:
        self._check_unused(device.mother_uuid)
        self.mock_state.hardware.images.pop(device.mother_uuid, None)
        self.mock_state.hardware.resets[device.mother_uuid] = (
            self.mock_state.hardware.resets.get(device.mother_uuid, 0) + 1
        )

    @with_faults
    async def attachable_devices(self) -> Sequence[DeviceId]:
        attached_ids = self.mock_state.hardware.attached
        return [
            DeviceId(uuid)
            for uuid, device in self.mock_state.devices.items()
            if not device.is_attached and uuid not in attached_ids
        ]

    @_changing_device
    def attach(self, device: MockDevice) -> None:
        if not device.is_attached:
            self.mock_state.hardware.attached = sorted({*self.mock_state.hardware.attached, device.mother_uuid})

    @with_faults
    async def detach(self, device_id: DeviceId) -> None:
        device = self.mock_state.devices.get(device_id)
        if device is None:
            return
        self._check_unused(device_id)
        if device.is_attached:
            raise Conflict(f"the device {device_id} is built in")
        self.mock_state.hardware.attached = [name for name in self.mock_state.hardware.attached if name != device_id]
        self.mock_state.save()

    async def watch_health(self) -> AsyncIterator[DeviceHealthChange]:
        fault = self.mock_state.panel.faults.take_fault("watch_health")
        if fault is not None:
            if fault.behaviour == "end":
                return
            if fault.behaviour == "unknown-device":
                yield DeviceHealthChange(device_id=UNKNOWN_DEVICE, health=DeviceHealth.UNHEALTHY, reason=fault.message)
            else:
                await execute_fault(fault)
        reported_healths = {
            device.device_id: (device.health, device.health_reason) for device in self.mock_state.present_devices()
        }
        while True:
            await asyncio.sleep(WATCH_S)
            self.mock_state.panel.refresh()
            current_healths = {
                device.device_id: (device.health, device.health_reason) for device in self.mock_state.present_devices()
            }
            for device_id, (health, reason) in current_healths.items():
                if reported_healths.get(device_id) != (health, reason):
                    yield DeviceHealthChange(device_id=device_id, health=health, reason=reason)
            reported_healths = current_healths

    @with_faults
    async def cdi_spec(self) -> Mapping[str, Any]:
        devices = [device for device in self.mock_state.present_devices() if device.health is DeviceHealth.HEALTHY]
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
