"""The driver of a node's own devices, with every power and with none."""

from __future__ import annotations

import pytest

from ai.backend.accelerator.mock.declaration import Declaration, MockDevice, Partition
from ai.backend.accelerator.mock.plugin import MockPlugin, MockSettings
from ai.backend.common.errors import InvalidInput
from ai.backend.common.structs import replace
from ai.backend.kubeacc.drivers.bare_metal import BareMetalDriver
from ai.backend.kubeacc.drivers.spi import AbstractAcceleratorDriver
from ai.backend.plugin.accelerator import PluginCapabilities
from tests.contract.kubeacc.contract import DriverContract

DECLARATION = Declaration(
    slot_name="mock",
    device_plugin_name="MockDevice",
    devices=(
        MockDevice(
            mother_uuid="built-in",
            model_name="M1",
            memory_size=8 << 30,
            partitions=(Partition(name="half", memory_size=4 << 30, max=2),),
        ),
        MockDevice(mother_uuid="remote", model_name="M1", is_attached=False),
    ),
)


class TestBareMetal(DriverContract):
    profile = "half"
    attached_id = "built-in"
    detached_id = "remote"

    @pytest.fixture
    async def driver(self) -> AbstractAcceleratorDriver:
        plugin = MockPlugin(MockSettings(), declaration=DECLARATION)
        await plugin.init()
        return BareMetalDriver(lambda: plugin, self.node)

    async def test_it_attaches_to_its_own_node_only(self, driver: AbstractAcceleratorDriver) -> None:
        with pytest.raises(InvalidInput, match="its own node only"):
            await driver.attach("remote", "node2")


class PowerlessPlugin(MockPlugin):
    capabilities = replace(PluginCapabilities())


class TestWithoutPowers(DriverContract):
    attached_id = "built-in"

    @pytest.fixture
    async def driver(self) -> AbstractAcceleratorDriver:
        plugin = PowerlessPlugin(MockSettings(), declaration=DECLARATION)
        await plugin.init()
        return BareMetalDriver(lambda: plugin, self.node)
