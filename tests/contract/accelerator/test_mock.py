"""The mock accelerator: discrete, fractional, slices, a broken device, and nothing at all."""

from __future__ import annotations

import pytest

from ai.backend.accelerator.mock.declaration import Declaration, MockDevice, default_declaration
from ai.backend.accelerator.mock.plugin import MockPlugin, MockSettings
from ai.backend.plugin.accelerator import AbstractComputePlugin
from ai.backend.plugin.testing.accelerator.contract import ComputePluginContract


class MockContract(ComputePluginContract):
    declaration = default_declaration()
    settings = MockSettings()

    @pytest.fixture
    async def plugin(self) -> AbstractComputePlugin:
        return MockPlugin(self.settings, declaration=self.declaration)

    def remake(self, plugin: AbstractComputePlugin) -> AbstractComputePlugin:
        return MockPlugin(self.settings, declaration=self.declaration)


class TestDiscrete(MockContract):
    pass


class TestFractional(MockContract):
    settings = MockSettings(allocation_mode="fractional", unit_mem=2**30, unit_proc=4)


class TestSlicesAndABrokenDevice(MockContract):
    declaration = Declaration(
        slot_name="cuda",
        device_plugin_name="CUDADevice",
        devices=(
            MockDevice(mother_uuid="a", model_name="A100", memory_size=40 * 2**30, subproc_count=108, numa_node=0),
            MockDevice(mother_uuid="b", model_name="A100", numa_node=1, is_healthy=False),
            MockDevice(mother_uuid="c", model_name="A100 slice", memory_size=10 * 2**30, is_mig_device=True),
            MockDevice(mother_uuid="d", model_name="A100 slice", memory_size=10 * 2**30, is_mig_device=True),
        ),
    )


class TestFractionalSlices(TestSlicesAndABrokenDevice):
    settings = MockSettings(allocation_mode="fractional")


class TestNothing(MockContract):
    declaration = default_declaration(0)
