"""What every driver of accelerators keeps: its operations are safe to repeat, and its errors name the cause."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from ai.backend.common.device_operations import OperationVerb as V
from ai.backend.common.errors import InvalidInput, NotFound
from ai.backend.kubeacc.crd.vocabulary import AttachState, PowerState
from ai.backend.kubeacc.drivers.spi import AbstractAcceleratorDriver, DriverDevice

Calls = Mapping[V, Callable[[], Awaitable[object]]]


class DriverContract(ABC):
    """A suite gives a driver, the ids of an attached and of a detached device, a node, a profile, and an image."""

    node = "node1"
    profile = ""

    @pytest.fixture
    @abstractmethod
    async def driver(self) -> AbstractAcceleratorDriver: ...

    @property
    @abstractmethod
    def attached_id(self) -> str: ...

    @property
    def detached_id(self) -> str:
        return ""

    @pytest.fixture
    def image(self, tmp_path: Path) -> Path:
        path = tmp_path / "image.bit"
        path.write_bytes(b"bits")
        return path

    async def device(self, driver: AbstractAcceleratorDriver, device_id: str) -> DriverDevice | None:
        return next((device for device in await driver.discover() if device.device_id == device_id), None)

    def needs(self, driver: AbstractAcceleratorDriver, verb: V) -> None:
        if verb not in driver.operations:
            pytest.skip(f"capability: the driver {driver.name} cannot {verb}")

    async def test_devices_have_unique_ids_and_stay(self, driver: AbstractAcceleratorDriver) -> None:
        first = [device.device_id for device in await driver.discover()]
        assert len(set(first)) == len(first)
        assert sorted(device.device_id for device in await driver.discover()) == sorted(first)
        found = await self.device(driver, self.attached_id)
        assert found is not None
        assert (found.attach_state, found.node_name) == (AttachState.ATTACHED, self.node)

    async def test_diagnosis_changes_nothing(self, driver: AbstractAcceleratorDriver) -> None:
        before = await driver.discover()
        facts = await driver.diagnose(self.attached_id)
        assert facts
        assert all(isinstance(value, str) for value in facts.values())
        assert await driver.discover() == before

    async def test_what_it_cannot_do_is_refused_with_what_it_can(
        self, driver: AbstractAcceleratorDriver, image: Path
    ) -> None:
        device_id = self.attached_id
        calls: Calls = {
            V.ATTACH: lambda: driver.attach(device_id, self.node),
            V.DETACH: lambda: driver.detach(device_id),
            V.PROGRAM: lambda: driver.program(device_id, image),
            V.POWER: lambda: driver.power(device_id, PowerState.ON),
            V.RESET: lambda: driver.reset(device_id),
            V.PARTITION: lambda: driver.create_partition(device_id, "x"),
        }
        for verb, call in calls.items():
            if verb not in driver.operations:
                with pytest.raises(InvalidInput, match=f"cannot {verb}"):
                    await call()

    async def test_unknown_devices_are_named(self, driver: AbstractAcceleratorDriver, image: Path) -> None:
        calls: Calls = {
            V.ATTACH: lambda: driver.attach("no-such", self.node),
            V.PROGRAM: lambda: driver.program("no-such", image),
            V.POWER: lambda: driver.power("no-such", PowerState.OFF),
            V.RESET: lambda: driver.reset("no-such"),
            V.PARTITION: lambda: driver.create_partition("no-such", self.profile),
        }
        for verb, call in calls.items():
            if verb in driver.operations:
                with pytest.raises(NotFound, match="no-such"):
                    await call()

    async def test_a_device_is_attached_and_detached_again(self, driver: AbstractAcceleratorDriver) -> None:
        self.needs(driver, V.ATTACH)
        for _ in range(2):
            await driver.attach(self.detached_id, self.node)
        attached = await self.device(driver, self.detached_id)
        assert attached is not None
        assert (attached.attach_state, attached.node_name) == (AttachState.ATTACHED, self.node)
        for _ in range(2):
            await driver.detach(self.detached_id)
        detached = await self.device(driver, self.detached_id)
        assert detached is not None
        assert (detached.attach_state, detached.node_name) == (AttachState.DETACHED, None)

    async def test_an_image_is_loaded(self, driver: AbstractAcceleratorDriver, image: Path) -> None:
        self.needs(driver, V.PROGRAM)
        for _ in range(2):
            await driver.program(self.attached_id, image)
        programmed = await self.device(driver, self.attached_id)
        assert programmed is not None
        assert programmed.program == str(image)

    async def test_power_and_reset_are_safe_to_repeat(self, driver: AbstractAcceleratorDriver) -> None:
        self.needs(driver, V.POWER)
        for state in (PowerState.OFF, PowerState.OFF, PowerState.ON, PowerState.ON):
            await driver.power(self.attached_id, state)
        await driver.reset(self.attached_id)
        await driver.reset(self.attached_id)

    async def test_a_partition_is_a_device_until_it_is_destroyed(self, driver: AbstractAcceleratorDriver) -> None:
        self.needs(driver, V.PARTITION)
        partition_id = await driver.create_partition(self.attached_id, self.profile)
        assert await self.device(driver, partition_id) is not None
        for _ in range(2):
            await driver.destroy_partition(partition_id)
        assert await self.device(driver, partition_id) is None
