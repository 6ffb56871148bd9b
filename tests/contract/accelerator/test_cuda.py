"""The cuda plugin, over recorded answers of NVML; on real hardware where there is some."""

from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.accelerator.cuda.plugin import CudaPlugin
from ai.backend.accelerator.cuda.replay import Recording, ReplayHost, ReplayNvml
from ai.backend.accelerator.cuda.settings import CudaSettings
from ai.backend.plugin.accelerator import AbstractComputePlugin
from ai.backend.plugin.testing.accelerator.contract import ComputePluginContract

FIXTURES = Path(__file__).parents[2] / "data" / "nvml"


class ReplayedContract(ComputePluginContract):
    """On every fixture that there is: a recording needs only to be put beside the others."""

    has_device_files = False

    settings = CudaSettings()

    @pytest.fixture(params=sorted(FIXTURES.glob("*.json")), ids=lambda path: path.stem)
    async def plugin(self, request: pytest.FixtureRequest) -> AbstractComputePlugin:
        self.path: Path = request.param
        return self.make()

    def make(self) -> CudaPlugin:
        recording = Recording.load(self.path)
        return CudaPlugin(self.settings, nvml=ReplayNvml(recording), host=ReplayHost(recording))

    def remake(self, plugin: AbstractComputePlugin) -> AbstractComputePlugin:
        return self.make()


class TestWhole(ReplayedContract):
    pass


class TestShares(ReplayedContract):
    settings = CudaSettings(allocation_mode="fractional", unit_mem=10 * 2**30, unit_proc=16)


class TestWhicheverIsAskedFirst(ReplayedContract):
    settings = CudaSettings(allocation_mode="either", mount_libraries=True)


@pytest.mark.needs("nvidia")
class TestRealHardware(ComputePluginContract):
    """On a machine with a driver and a GPU. Reads only."""

    may_alter = False

    @pytest.fixture
    async def plugin(self) -> AbstractComputePlugin:
        return CudaPlugin(CudaSettings())


@pytest.mark.needs("nvidia")
class TestSharesOfRealHardware(ComputePluginContract):
    may_alter = False

    @pytest.fixture
    async def plugin(self) -> AbstractComputePlugin:
        return CudaPlugin(CudaSettings(allocation_mode="fractional"))
