"""The optional powers, simulated: so that the conformance kit and the agent can be tried on each."""

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
STRANGER = DeviceId("no-such-device")


def _changing(
    change: Callable[Concatenate[Any, MockDevice, P], R],
) -> Callable[Concatenate[Any, DeviceId, P], Coroutine[Any, Any, R]]:
    """Makes a call of a change of a device: it raises NotFound for an unknown one, and saves the new state."""

    @faulted
    @wraps(change)
    async def call(self: Any, device_id: DeviceId, /, *args: P.args, **kwargs: P.kwargs) -> R:
        device = self.board.devices.get(device_id)
        if device is None:
            raise NotFound(f"the mock accelerator has no device {device_id}")
        result = change(self, device, *args, **kwargs)
        self.board.save()
        return result

    return call


class SimulatedPowers:
    """Partitionable, Programmable, PowerControllable, Attachable, HealthWatching, CdiProvider."""

    board: MockState

    def _in_use(self, device_id: str) -> bool:
        parts = [p for p, (parent, _) in self.board.hardware.partitions.items() if parent == device_id]
        return any(self.board.hardware.in_use.get(name) for name in (device_id, *parts))

    def _free(self, device_id: str) -> None:
        if self._in_use(device_id):
            raise Conflict(f"the device {device_id} is in use")

    @_changing
    def partition_profiles(self, device: MockDevice) -> Sequence[PartitionProfile]:
        return [
            PartitionProfile(
                name=p.name,
                slot_name=self.board.slot_name(slice_of(p.memory_size)),
                memory_size=p.memory_size,
                available=self._room(device, p.name),
            )
            for p in device.partitions
        ]

    def _room(self, device: MockDevice, profile: str) -> int:
        """Returns how many more of a profile fit: by their number, and by the memory that others have taken."""
        sizes = {p.name: p for p in device.partitions}
        made = [name for parent, name in self.board.hardware.partitions.values() if parent == device.mother_uuid]
        remaining = device.memory_size - sum(sizes[name].memory_size for name in made if name in sizes)
        size = sizes[profile]
        return max(0, min(size.max - made.count(profile), remaining // size.memory_size))

    @_changing
    def create_partition(self, device: MockDevice, profile: str) -> DeviceId:
        if all(p.name != profile for p in device.partitions):
            raise NotFound(f"the device {device.mother_uuid} has no profile {profile}")
        if self.board.hardware.in_use.get(device.mother_uuid):
            raise Conflict(f"the device {device.mother_uuid} is in use")
        if self._room(device, profile) < 1:
            raise Conflict(f"the device {device.mother_uuid} has no room for another {profile}")
        names = (f"{device.mother_uuid}/{profile}/{n}" for n in range(64))
        made = DeviceId(next(name for name in names if name not in self.board.hardware.partitions))
        self.board.hardware.partitions[made] = [device.mother_uuid, profile]
        return made

    @faulted
    async def destroy_partition(self, partition_id: DeviceId) -> None:
        if self.board.hardware.in_use.get(partition_id):
            raise Conflict(f"the partition {partition_id} is in use")
        self.board.hardware.partitions.pop(partition_id, None)
        self.board.save()

    @_changing
    def program(self, device: MockDevice, image: str) -> None:
        if not image.startswith("/") or not image.endswith(".bit"):
            raise InvalidInput(f"{image!r:.200} is no image for the mock accelerator; it takes /....bit")
        self.board.hardware.images[device.mother_uuid] = image

    @_changing
    def programmed_image(self, device: MockDevice) -> str | None:
        return self.board.hardware.images.get(device.mother_uuid)

    @_changing
    def power_on(self, device: MockDevice) -> None:
        self.board.hardware.off = [d for d in self.board.hardware.off if d != device.mother_uuid]

    @_changing
    def power_off(self, device: MockDevice) -> None:
        self._free(device.mother_uuid)
        self.board.hardware.off = sorted({*self.board.hardware.off, device.mother_uuid})

    @_changing
    def reset(self, device: MockDevice) -> None:
        self._free(device.mother_uuid)
        self.board.hardware.images.pop(device.mother_uuid, None)
        self.board.hardware.resets[device.mother_uuid] = self.board.hardware.resets.get(device.mother_uuid, 0) + 1

    @faulted
    async def attachable_devices(self) -> Sequence[DeviceId]:
        attached = self.board.hardware.attached
        return [DeviceId(i) for i, d in self.board.devices.items() if not d.is_attached and i not in attached]

    @_changing
    def attach(self, device: MockDevice) -> None:
        if not device.is_attached:
            self.board.hardware.attached = sorted({*self.board.hardware.attached, device.mother_uuid})

    @faulted
    async def detach(self, device_id: DeviceId) -> None:
        device = self.board.devices.get(device_id)
        if device is None:
            return
        self._free(device_id)
        if device.is_attached:
            raise Conflict(f"the device {device_id} is built in")
        self.board.hardware.attached = [d for d in self.board.hardware.attached if d != device_id]
        self.board.save()

    async def watch_health(self) -> AsyncIterator[DeviceHealthChange]:
        fault = self.board.panel.faults.pick("watch_health")
        if fault is not None:
            if fault.behaviour == "end":
                return
            if fault.behaviour == "unknown-device":
                yield DeviceHealthChange(device_id=STRANGER, health=DeviceHealth.UNHEALTHY, reason=fault.message)
            else:
                await act(fault)
        reported = {d.device_id: (d.health, d.health_reason) for d in self.board.present()}
        while True:
            await asyncio.sleep(WATCH_S)
            self.board.panel.refresh()
            now = {d.device_id: (d.health, d.health_reason) for d in self.board.present()}
            for device_id, (health, reason) in now.items():
                if reported.get(device_id) != (health, reason):
                    yield DeviceHealthChange(device_id=device_id, health=health, reason=reason)
            reported = now

    @faulted
    async def cdi_spec(self) -> Mapping[str, Any]:
        devices = [d for d in self.board.present() if d.health is DeviceHealth.HEALTHY]
        return {
            "cdiVersion": "0.6.0",
            "kind": CDI_KIND,
            "devices": [
                {
                    "name": d.device_id.replace("/", "_"),
                    "containerEdits": {
                        "deviceNodes": [{"path": f"/dev/mock/{d.hw_location[5:]}", "hostPath": "/dev/null"}]
                    },
                }
                for d in devices
            ],
        }
