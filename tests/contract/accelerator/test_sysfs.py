"""Every family that comes with the package, and a family of one's own, on four devices of which one is ill."""

from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.accelerator.sysfs import SysfsPlugin, families
from ai.backend.accelerator.sysfs.family import packaged_names
from ai.backend.accelerator.sysfs.plugin import SysfsSettings
from ai.backend.plugin.accelerator import AbstractComputePlugin
from ai.backend.plugin.testing.accelerator.contract import ComputePluginContract
from tests.support.trees import roots

DATA = Path(families.__file__).parent / "data"


class TestFamilies(ComputePluginContract):
    has_device_files = False

    @pytest.fixture(params=packaged_names())
    async def plugin(self, request: pytest.FixtureRequest, tmp_path: Path) -> AbstractComputePlugin:
        made: type[SysfsPlugin] = getattr(families, request.param.replace("-", "_"))
        return made(SysfsSettings(**roots(request.param, tmp_path)))


class TestSeveralOwnFiles(ComputePluginContract):
    has_device_files = False

    @pytest.fixture
    async def plugin(self, tmp_path: Path) -> AbstractComputePlugin:
        return SysfsPlugin(SysfsSettings(**roots("rngd", tmp_path), families=(DATA / "ipu.toml", DATA / "rngd.toml")))


class TestNothingThere(ComputePluginContract):
    @pytest.fixture(params=["gaudi2", "tpu"])
    async def plugin(self, request: pytest.FixtureRequest, tmp_path: Path) -> AbstractComputePlugin:
        made: type[SysfsPlugin] = getattr(families, request.param)
        return made(SysfsSettings(sysfs_root=tmp_path / "sys", dev_root=tmp_path / "dev"))
