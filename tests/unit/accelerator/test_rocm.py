"""AMD's GPUs as the trees of `tests/data/sysfs` show them."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest

from ai.backend.accelerator.rocm import RocmPlugin
from ai.backend.accelerator.rocm.plugin import RocmSettings
from ai.backend.accelerator.rocm.scan import gfx_name
from ai.backend.common.devices import ComputeDevice, DeviceAllocation, DeviceHealth, LinkKind
from ai.backend.common.errors import CreationDeferred
from ai.backend.common.ids import KernelId, SessionId, SlotName
from ai.backend.plugin.accelerator import StatContext, Workload, WorkloadConfig
from ai.backend.plugin.accelerator.hooks import check_config
from ai.backend.plugin.sysfs.record import plugin_named, record
from ai.backend.plugin.sysfs.tree import unpack
from tests.support.trees import roots

NODES = "sys/class/kfd/kfd/topology/nodes"
KERNEL = KernelId(UUID(int=1))


def plugin_on(name: str, place: Path, **settings: Any) -> RocmPlugin:
    return RocmPlugin(RocmSettings(**roots(name, place), **settings))


def held(*devices: ComputeDevice) -> DeviceAllocation:
    return DeviceAllocation(slots={SlotName("rocm.device"): {d.device_id: Decimal(1) for d in devices}})


async def configure(
    plugin: RocmPlugin, *devices: ComputeDevice, kind: Literal["container", "process_tree"] = "process_tree"
) -> WorkloadConfig:
    workload = Workload(id="", type=kind, kernel_id=KERNEL, session_id=SessionId(UUID(int=2)))
    return await plugin.configure(workload, held(*devices))


def spoil(path: Path) -> None:
    """From now on the attribute answers EIO."""
    path.unlink()
    path.symlink_to("/proc/self/mem")


async def test_devices_are_described(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("6.2.1-113\n")
    plugin = plugin_on("rocm-mi300x", tmp_path, rocm_version_file=tmp_path / "version")
    devices = await plugin.list_devices()
    assert [d.device_id for d in devices] == [f"GPU-{9895604649984 + n:016x}" for n in range(4)]
    first = devices[0]
    assert (first.model_name, first.hw_location, first.numa_node) == ("AMD Instinct MI300X OAM", "0000:19:00.0", 0)
    assert (first.processing_units, first.memory_size) == (304, 206141652992)
    assert first.memory_spec is not None
    assert first.memory_spec.memory_type == "HBM3"
    assert {(p.technology, p.max_partitions) for p in first.partitioning_support} == {
        ("SPX", 1),
        ("DPX", 2),
        ("QPX", 4),
        ("CPX", 8),
    }
    said = {str(p) for p in first.variant_properties}
    assert {"amd::gfx_arch::gfx942", "amd::rocm_version::6.2.1", "amd::memory_gib::191", "amd::precision::FP8"} <= said
    node = await plugin.get_node_info()
    assert (node.driver_version, node.runtime_version) == ("6.8.5", "6.2.1")
    assert node.extra["compute_partition.0000:19:00.0"] == "SPX"
    await plugin.cleanup()


async def test_xgmi_is_direct_and_known_by_its_bandwidth(tmp_path: Path) -> None:
    plugin = plugin_on("rocm-mi300x", tmp_path)
    first = (await plugin.list_devices())[0]
    assert [(link.kind, link.bandwidth_gib_s) for link in first.links] == [(LinkKind.DIRECT, 44.7)] * 3
    spoil(tmp_path / NODES / "2/io_links/1/properties")
    first = (await plugin.list_devices())[0]
    assert [link.kind for link in first.links] == [LinkKind.PCIE_SWITCH, LinkKind.DIRECT, LinkKind.DIRECT]
    await plugin.cleanup()


async def test_uncorrectable_errors_make_a_gpu_ill(tmp_path: Path) -> None:
    plugin = plugin_on("rocm-mi300x", tmp_path)
    devices = await plugin.list_devices()
    assert [d.health_reason for d in devices] == ["", "", "umc: 3 uncorrectable errors", ""]
    assert await plugin.available_slots() == {"rocm.device": 3}
    with pytest.raises(CreationDeferred, match="3 uncorrectable errors"):
        await configure(plugin, devices[2])
    await plugin.cleanup()
    settings = plugin.settings
    assert settings is not None
    patient = RocmPlugin(settings.model_copy(update={"max_uncorrectable_errors": 3}))
    assert all(d.health is DeviceHealth.HEALTHY for d in await patient.list_devices())
    await patient.cleanup()


async def test_a_workload_gets_its_gpus_by_their_ids(tmp_path: Path) -> None:
    plugin = plugin_on("rocm-mi300x", tmp_path)
    devices = await plugin.list_devices()
    config = await configure(plugin, devices[1], devices[3])
    assert check_config(config) == config, "the agent takes it"
    assert [n.source for n in config.devices] == ["/dev/kfd", "/dev/dri/renderD136", "/dev/dri/renderD152"]
    assert config.env_vars == {
        "ROCR_VISIBLE_DEVICES": f"{devices[1].device_id},{devices[3].device_id}",
        "HIP_VISIBLE_DEVICES": "0,1",
    }
    assert config.resource_data == {
        "ROCM_GLOBAL_DEVICE_IDS": f"0:{devices[1].device_id},1:{devices[3].device_id}",
    }
    await plugin.cleanup()


async def test_partitions_are_devices_named_by_number(tmp_path: Path) -> None:
    plugin = plugin_on("rocm-mi300x-cpx", tmp_path)
    devices = await plugin.list_devices()
    assert [d.device_id for d in devices[:3]] == [f"GPU-{9895604649984:016x}{end}" for end in ("", ".1", ".2")]
    assert [d.processing_units for d in devices] == [38] * 8 + [304]
    assert sum(d.memory_size for d in devices[:8]) == 8 * 24 << 30
    config = await configure(plugin, devices[2], devices[5])
    assert config.env_vars["ROCR_VISIBLE_DEVICES"] == "2,5"
    assert [n.source for n in config.devices] == ["/dev/kfd", "/dev/dri/renderD130", "/dev/dri/renderD133"]
    inside = await configure(plugin, devices[2], devices[5], kind="container")
    assert inside.env_vars["ROCR_VISIBLE_DEVICES"] == "0,1", "ROCr counts what it can open"
    measured = await plugin.gather_node_metrics(StatContext(at=1.0))
    assert {m.device_id for m in measured if m.key == "rocm_util"} == {
        None,
        devices[0].device_id,
        devices[8].device_id,
    }, "the sensors are the GPU's"
    await plugin.cleanup()


async def test_gpus_without_an_id_are_named_by_place_and_number(tmp_path: Path) -> None:
    plugin = plugin_on("rocm-w7900", tmp_path)
    devices = await plugin.list_devices()
    assert [d.device_id for d in devices] == [f"GPU-{1234567890123:016x}", "0000:9a:00.0"]
    assert [d.model_name for d in devices] == ["AMD gfx1100"] * 2
    assert devices[0].processing_units == 96
    assert (await configure(plugin, devices[1])).env_vars["ROCR_VISIBLE_DEVICES"] == "1"
    assert (await configure(plugin, devices[0])).env_vars["ROCR_VISIBLE_DEVICES"] == devices[0].device_id
    await plugin.cleanup()


async def test_metrics_of_node_workload_and_process(tmp_path: Path) -> None:
    plugin = plugin_on("rocm-mi300x", tmp_path)
    devices = await plugin.list_devices()
    found = {(m.key, m.device_id): m for m in await plugin.gather_node_metrics(StatContext(at=1.0))}
    one = devices[1].device_id
    assert (found["rocm_util", one].value, found["rocm_util", one].capacity) == (97, 100)
    assert (found["rocm_mem", one].value, found["rocm_mem", one].capacity) == (595591168, 206141652992)
    assert (found["rocm_power", one].value, found["rocm_power", one].capacity) == (138, 750)
    assert found["rocm_power", devices[0].device_id].value == 138, "power1_input where there is no average"
    assert (found["rocm_temperature", one].value, found["rocm_temperature", None].value) == (43, 43)
    assert found["rocm_util", None].capacity == 400
    ctx = StatContext(at=1.0, allocations={KERNEL: held(devices[1], devices[3])})
    (mine,) = (await plugin.gather_workload_metrics(ctx, [KERNEL])).values()
    assert {m.key: m.value for m in mine}["rocm_util"] == 100
    processes = await plugin.gather_process_metrics(ctx, {4242: KERNEL, 1: KERNEL})
    assert {pid: [(m.key, m.value) for m in ms] for pid, ms in processes.items()} == {4242: [("rocm_mem", 3 << 30)]}
    await plugin.cleanup()


async def test_what_cannot_be_read_hurts_its_gpu_alone(tmp_path: Path) -> None:
    plugin = plugin_on("rocm-mi300x", tmp_path)
    before = await plugin.list_devices()
    assert await plugin.gather_node_metrics(StatContext(at=0.0))
    spoil(tmp_path / "sys/bus/pci/devices/0000:19:00.0/mem_info_vram_total")
    spoil(tmp_path / "sys/bus/pci/devices/0000:1a:00.0/ras/gfx_err_count")
    (tmp_path / "sys/bus/pci/devices/0000:9b:00.0/gpu_busy_percent").write_text("busy")
    (tmp_path / "dev/dri/renderD152").unlink()
    after = await plugin.list_devices()
    assert [d.device_id for d in after] == [d.device_id for d in before]
    reasons = [d.health_reason for d in after]
    assert "mem_info_vram_total: Input/output error" in reasons[0]
    assert "gfx_err_count: Input/output error" in reasons[1]
    assert reasons[3] == "there is no device node /dev/dri/renderD152"
    keys = {m.key for m in await plugin.gather_node_metrics(StatContext(at=1.0)) if m.device_id == after[3].device_id}
    assert keys == {"rocm_mem", "rocm_power", "rocm_temperature"}
    await plugin.cleanup()


async def test_a_gpu_that_falls_off_the_bus_is_told_and_numbers_stay(tmp_path: Path) -> None:
    plugin = plugin_on("rocm-mi300x", tmp_path)
    before = await plugin.list_devices()
    (tmp_path / "sys/bus/pci/devices/0000:19:00.0").unlink()
    assert (await plugin.list_devices())[0].health_reason == "the GPU fell off the PCI bus"
    spoil(tmp_path / NODES / "3/properties")
    after = {d.device_id: d.health_reason for d in await plugin.list_devices()}
    assert after[before[1].device_id] == "the device is gone"
    shutil.rmtree(tmp_path / "sys/class/kfd")
    assert {d.health_reason for d in await plugin.list_devices()} == {"the device is gone"}
    assert await plugin.available_slots() == {"rocm.device": 0}
    await plugin.cleanup()


async def test_garbage_in_the_topology_is_passed_over(tmp_path: Path) -> None:
    plugin = plugin_on("rocm-mi300x", tmp_path)
    place = tmp_path / NODES
    (place / "2/properties").write_text("simd_count many\n\x00\xff\ngfx_target_version -1\nunique_id " + "9" * 400)
    (place / "4/gpu_id").write_text("none")
    (place / "self").symlink_to(".")
    found = plugin.scan()
    assert [f.device.hw_location for f in found] == ["0000:1a:00.0", "0000:9a:00.0", "0000:9b:00.0"]
    assert [f.fields["rank"] for f in found] == ["1", "2", "3"], "the numbers of ROCr stay"
    await plugin.cleanup()


def test_names_of_instruction_sets() -> None:
    known = {90402: "gfx942", 90010: "gfx90a", 90500: "gfx950", 110000: "gfx1100", 120001: "gfx1201", 90006: "gfx906"}
    assert {version: gfx_name(version) for version in known} == known


async def test_a_recording_is_all_that_the_plugin_needs(tmp_path: Path) -> None:
    settings = RocmSettings(**roots("rocm-mi300x", tmp_path / "a"))
    named = plugin_named("rocm", settings.model_dump())
    unpack("\n".join(await record(named)), tmp_path / "b")
    again = RocmPlugin(RocmSettings(sysfs_root=tmp_path / "b/sys", dev_root=tmp_path / "b/dev"))
    first = RocmPlugin(settings)
    devices = await first.list_devices()
    assert await again.list_devices() == devices
    ctx = StatContext(at=1.0)
    assert await again.gather_node_metrics(ctx) == await first.gather_node_metrics(ctx)
    assert await configure(again, devices[0]) == await configure(first, devices[0])
    for plugin in (again, first):
        await plugin.cleanup()
