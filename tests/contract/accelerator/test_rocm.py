"""AMD's GPUs: four linked ones of which one is ill, one in partitions, and two without the marks of a data centre."""

from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.accelerator.rocm import RocmPlugin
from ai.backend.accelerator.rocm.plugin import RocmSettings
from ai.backend.plugin.accelerator import AbstractComputePlugin
from ai.backend.plugin.testing.accelerator.contract import ComputePluginContract
from tests.support.trees import roots


class TestRocm(ComputePluginContract):
    has_device_files = False

    @pytest.fixture(params=["rocm-mi300x", "rocm-mi300x-cpx", "rocm-w7900"])
    async def plugin(self, request: pytest.FixtureRequest, tmp_path: Path) -> AbstractComputePlugin:
        return RocmPlugin(RocmSettings(**roots(request.param, tmp_path)))


class TestNoGpu(ComputePluginContract):
    @pytest.fixture
    async def plugin(self, tmp_path: Path) -> AbstractComputePlugin:
        return RocmPlugin(RocmSettings(sysfs_root=tmp_path / "sys", dev_root=tmp_path / "dev"))
