"""Whatever one attribute says, every plugin over sysfs goes on: devices are well formed, others are not hurt."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from ai.backend.accelerator.rocm import RocmPlugin
from ai.backend.accelerator.rocm.plugin import RocmSettings
from ai.backend.accelerator.sysfs import SysfsPlugin, families
from ai.backend.accelerator.sysfs.plugin import SysfsSettings
from ai.backend.common.devices import DeviceHealth
from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import StatContext
from ai.backend.plugin.sysfs import TreePlugin
from ai.backend.plugin.testing.accelerator.checks.metrics import check_measurements
from tests.support.trees import TREES, roots

GARBAGE = (
    b"",
    b"-1",
    b"\xff\x00\xfe",
    b"99999999999999999999999",
    b"a b\nc: d",
    b"../../x",
    b"0x",
    b"\xd9\xa3",
    b"nan",
)


def plugin_on(name: str, place: Path) -> TreePlugin:
    if name.startswith("rocm"):
        return RocmPlugin(RocmSettings(**roots(name, place)))
    made: type[SysfsPlugin] = getattr(families, name.replace("-", "_"))
    return made(SysfsSettings(**roots(name, place)))


async def look(plugin: TreePlugin, at: float) -> dict[DeviceId, bool]:
    """Everything that the agent asks for in a round; which devices there are, and whether they are well."""
    devices = await plugin.list_devices()
    ids = [d.device_id for d in devices]
    assert len(ids) == len(set(ids))
    for device in devices:
        assert device.numa_node is None or device.numa_node >= 0
        assert 0 <= device.memory_size < 2**63
        assert device.processing_units >= 0
        assert device.device_id.isprintable()
        assert device.health_reason.isprintable()
        assert {link.peer for link in device.links} <= set(ids)
        assert all(link.bandwidth_gib_s is None or math.isfinite(link.bandwidth_gib_s) for link in device.links)
    check_measurements("gather_node_metrics", await plugin.gather_node_metrics(StatContext(at=at)), set(ids))
    await plugin.get_node_info()
    return {d.device_id: d.health is DeviceHealth.HEALTHY for d in devices}


@pytest.mark.parametrize("name", sorted(tree.stem for tree in TREES.glob("*.tree")))
async def test_garbage_in_one_attribute_hurts_nobody_else(name: str, tmp_path: Path) -> None:
    plugin = plugin_on(name, tmp_path)
    whole = await look(plugin, 0.0)
    well = {device_id for device_id, is_well in whole.items() if is_well}
    assert well
    files = sorted(f for f in (tmp_path / "sys").rglob("*") if f.is_file() and not f.is_symlink())
    assert len(files) > 8
    files = files[:: 1 + len(files) // 40]
    for at, (file, garbage) in enumerate(zip(files, itertools.cycle(GARBAGE), strict=False), 1):
        before = file.read_bytes()
        file.write_bytes(garbage)
        found = await look(plugin, float(at))
        assert well <= found.keys(), f"{file} hid a device that was well"
        now_well = {device_id for device_id, is_well in found.items() if is_well}
        assert now_well <= whole.keys(), f"{file} made up a device"
        assert len(well - now_well) <= 1, f"{file} hurt others"
        file.write_bytes(before)
        await plugin.list_devices()
    await plugin.cleanup()


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", ["gaudi2", "warboy", "rocm-mi300x"])
async def test_garbage_everywhere_is_survived(name: str, garbage: bytes, tmp_path: Path) -> None:
    plugin = plugin_on(name, tmp_path)
    for file in (tmp_path / "sys").rglob("*"):
        if file.is_file() and not file.is_symlink():
            file.write_bytes(garbage)
    await look(plugin, 0.0)
    await plugin.cleanup()
