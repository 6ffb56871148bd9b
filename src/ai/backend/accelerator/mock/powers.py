"""The optional powers, simulated: so that the conformance kit and the agent can be tried on each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

from ai.backend.accelerator.mock.declaration import MockDevice
from ai.backend.accelerator.mock.faults import act
from ai.backend.accelerator.mock.state import MockState, slice_of
from ai.backend.common.devices import DeviceHealth
from ai.backend.common.errors import Conflict, InvalidInput, NotFound
from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import DeviceHealthChange, PartitionProfile

R = TypeVar("R")
WATCH_S = 0.05
"""How often the watch looks at the control file."""
CDI_KIND = "backend.ai/mock"
STRANGER = DeviceId("no-such-device")


class SimulatedPowers:
    """Partitionable, Programmable, PowerControllable, Attachable, HealthWatching, CdiProvider."""

    board: MockState

    def _device(self, device_id: str) -> MockDevice:
        device = self.board.devices.get(device_id)
        if device is None:
            raise NotFound(f"the mock accelerator has no device {device_id}")
        return device

    def _in_use(self, device_id: str) -> bool:
        parts = [p for p, (parent, _) in self.board.hardware.partitions.items() if parent == device_id]
        return any(self.board.hardware.in_use.get(name) for name in (device_id, *parts))

    def _free(self, device_id: str) -> None:
        if self._in_use(device_id):
            raise Conflict(f"the device {device_id} is in use")

    async def _change(self, call: str, device_id: str, change: Callable[[MockDevice], R]) -> R:
        """Changes a device and records its new state."""

        async def make() -> R:
            result = change(self._device(device_id))
            self.board.save()
            return result

        return await self.board.faulted(call, make)

    async def partition_profiles(self, device_id: DeviceId) -> Sequence[PartitionProfile]:
        def profiles(device: MockDevice) -> list[PartitionProfile]:
            return [
                PartitionProfile(
                    name=p.name,
                    slot_name=self.board.slot_name(slice_of(p.memory_size)),
                    memory_size=p.memory_size,
                    available=self._room(device, p.name),
                )
                for p in device.partitions
            ]

        return await self._change("partition_profiles", device_id, profiles)

    def _room(self, device: MockDevice, profile: str) -> int:
        """How many more of a profile fit: by their number, and by the memory that others have taken."""
        sizes = {p.name: p for p in device.partitions}
        made = [name for parent, name in self.board.hardware.partitions.values() if parent == device.mother_uuid]
        remaining = device.memory_size - sum(sizes[name].memory_size for name in made if name in sizes)
        size = sizes[profile]
        return max(0, min(size.max - made.count(profile), remaining // size.memory_size))

    async def create_partition(self, device_id: DeviceId, profile: str) -> DeviceId:
        def create(device: MockDevice) -> DeviceId:
            if all(p.name != profile for p in device.partitions):
                raise NotFound(f"the device {device_id} has no profile {profile}")
            if self.board.hardware.in_use.get(device_id):
                raise Conflict(f"the device {device_id} is in use")
            if self._room(device, profile) < 1:
                raise Conflict(f"the device {device_id} has no room for another {profile}")
            names = (f"{device_id}/{profile}/{n}" for n in range(64))
            made = DeviceId(next(name for name in names if name not in self.board.hardware.partitions))
            self.board.hardware.partitions[made] = [device_id, profile]
            return made

        return await self._change("create_partition", device_id, create)

    async def destroy_partition(self, partition_id: DeviceId) -> None:
        async def destroy() -> None:
            if self.board.hardware.in_use.get(partition_id):
                raise Conflict(f"the partition {partition_id} is in use")
            self.board.hardware.partitions.pop(partition_id, None)
            self.board.save()

        await self.board.faulted("destroy_partition", destroy)

    async def program(self, device_id: DeviceId, image: str) -> None:
        def load(_: MockDevice) -> None:
            if not image.startswith("/") or not image.endswith(".bit"):
                raise InvalidInput(f"{image!r:.200} is no image for the mock accelerator; it takes /....bit")
            self.board.hardware.images[device_id] = image

        await self._change("program", device_id, load)

    async def programmed_image(self, device_id: DeviceId) -> str | None:
        return await SimulatedPowers._change(
            self, "programmed_image", device_id, lambda _: self.board.hardware.images.get(device_id)
        )

    async def power_on(self, device_id: DeviceId) -> None:
        def switch(_: MockDevice) -> None:
            self.board.hardware.off = [d for d in self.board.hardware.off if d != device_id]

        await self._change("power_on", device_id, switch)

    async def power_off(self, device_id: DeviceId) -> None:
        def switch(_: MockDevice) -> None:
            self._free(device_id)
            self.board.hardware.off = sorted({*self.board.hardware.off, device_id})

        await self._change("power_off", device_id, switch)

    async def reset(self, device_id: DeviceId) -> None:
        def reset(_: MockDevice) -> None:
            self._free(device_id)
            self.board.hardware.images.pop(device_id, None)
            self.board.hardware.resets[device_id] = self.board.hardware.resets.get(device_id, 0) + 1

        await self._change("reset", device_id, reset)

    async def attachable_devices(self) -> Sequence[DeviceId]:
        async def elsewhere() -> list[DeviceId]:
            attached = self.board.hardware.attached
            return [DeviceId(i) for i, d in self.board.devices.items() if not d.is_attached and i not in attached]

        return await self.board.faulted("attachable_devices", elsewhere)

    async def attach(self, device_id: DeviceId) -> None:
        def attach(device: MockDevice) -> None:
            if not device.is_attached:
                self.board.hardware.attached = sorted({*self.board.hardware.attached, device_id})

        await self._change("attach", device_id, attach)

    async def detach(self, device_id: DeviceId) -> None:
        async def detach() -> None:
            device = self.board.devices.get(device_id)
            if device is None:
                return
            self._free(device_id)
            if device.is_attached:
                raise Conflict(f"the device {device_id} is built in")
            self.board.hardware.attached = [d for d in self.board.hardware.attached if d != device_id]
            self.board.save()

        await self.board.faulted("detach", detach)

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

    async def cdi_spec(self) -> Mapping[str, Any]:
        async def make() -> dict[str, Any]:
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

        return await self.board.faulted("cdi_spec", make)
