"""A plugin in a host process of its own keeps every promise that it keeps in the agent's process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ai.backend.plugin.accelerator import AbstractComputePlugin
from ai.backend.plugin.testing.accelerator.contract import ComputePluginContract
from ai.backend.pluginhost import HostedPlugin, launch

TWO_KINDS = """
slot_name = "cuda"
device_plugin_name = "CUDADevice"
topology = "nvlink-pairs"
devices = [
  { mother_uuid = "a", model_name = "A100", memory_size = "40g", subproc_count = 108, numa_node = 0 },
  { mother_uuid = "b", model_name = "A100", numa_node = 1, is_healthy = false },
  { mother_uuid = "c", model_name = "A100 slice", memory_size = "10g", is_mig_device = true },
]
"""


class HostedContract(ComputePluginContract):
    """Each plugin that a test makes has its own process; none is there after the test."""

    reference: ClassVar[str] = "ai.backend.accelerator.mock"
    settings: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    async def plugin(self, tmp_path: Path) -> AsyncIterator[AbstractComputePlugin]:
        self.folder, self.made = tmp_path, list[HostedPlugin]()
        yield await self.launch(tmp_path)
        for made in self.made:
            await made.close()
            assert not Path(f"/proc/{made.host.pid}").exists()  # noqa: ASYNC240  # procfs does not block

    async def remake(self, plugin: AbstractComputePlugin) -> AbstractComputePlugin:
        return await self.launch(self.folder)

    async def launch(self, folder: Path) -> HostedPlugin:
        settings = self.given(folder)
        plugin = await launch(self.reference, lambda _: settings, deadline_s=10.0, on_ended=pytest.fail)
        assert plugin.host.pid != os.getpid()
        self.made.append(plugin)
        return plugin

    def given(self, folder: Path) -> Mapping[str, Any]:
        return self.settings


class TestWholeDevices(HostedContract):
    settings: ClassVar[Mapping[str, Any]] = {"default-devices": 3}


class TestSharesSlicesAndABrokenDevice(HostedContract):
    """What quantities, types of slots, links and health must not lose on the way."""

    def given(self, folder: Path) -> Mapping[str, Any]:
        path = folder / "mock-accelerator.toml"
        path.write_text(TWO_KINDS)
        return {"config-path": str(path), "allocation-mode": "fractional", "unit-mem": "1g", "unit-proc": 4}
