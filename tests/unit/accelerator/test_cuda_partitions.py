"""Cutting GPUs into MIG instances through the plugin."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ai.backend.accelerator.cuda.nvml import Code
from ai.backend.accelerator.cuda.plugin import CudaPlugin
from ai.backend.accelerator.cuda.settings import CudaSettings
from ai.backend.common.errors import Conflict, Forbidden, InvalidInput, NotFound
from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import POWERS, Partitionable
from tests.support.cuda import A100, Machine, plugin_on

MOTHER = DeviceId("GPU-a1000000-0000-4000-8000-000000000001")
PLAIN = DeviceId("GPU-a1000001-0000-4000-8000-000000000002")
SLICE = DeviceId("MIG-a1000000-0000-4000-8000-000000000011")


@pytest.fixture
def machine() -> Machine:
    return Machine(A100)


@pytest.fixture
async def plugin(machine: Machine) -> AsyncIterator[CudaPlugin]:
    plugin = plugin_on(machine, CudaSettings(manage_partitions=True))
    await plugin.init()
    yield plugin
    await plugin.cleanup()


async def ids(plugin: CudaPlugin) -> list[str]:
    return [d.device_id for d in await plugin.list_devices()]


def test_every_flag_keeps_its_promise() -> None:
    plugin = CudaPlugin()
    assert isinstance(plugin, Partitionable)
    for flag, power in POWERS.items():
        assert getattr(CudaPlugin.capabilities, flag) is isinstance(plugin, power)
    assert CudaPlugin.capabilities.blocking


async def test_profiles_say_what_fits_now(plugin: CudaPlugin) -> None:
    profiles = await plugin.partition_profiles(MOTHER)
    assert [(p.name, p.slot_name, p.available) for p in profiles] == [
        ("1g.5gb", "cuda.device:5g-mig", 1),
        ("2g.10gb", "cuda.device:10g-mig", 0),
        ("3g.20gb", "cuda.device:20g-mig", 0),
        ("4g.20gb", "cuda.device:20g-mig", 0),
        ("7g.40gb", "cuda.device:40g-mig", 0),
    ]
    assert {p.available for p in await plugin.partition_profiles(PLAIN)} == {0}, "its MIG mode is off"
    with pytest.raises(NotFound):
        await plugin.partition_profiles(DeviceId("GPU-none"))


async def test_an_instance_is_made_listed_and_undone(plugin: CudaPlugin) -> None:
    before = await ids(plugin)
    made = await plugin.create_partition(MOTHER, "1g.5gb")
    assert set(await ids(plugin)) - set(before) == {made}
    with pytest.raises(Conflict, match="no room"):
        await plugin.create_partition(MOTHER, "1g.5gb")
    await plugin.destroy_partition(made)
    assert await ids(plugin) == before
    await plugin.destroy_partition(made)


async def test_what_cannot_be_cut_is_refused(plugin: CudaPlugin) -> None:
    with pytest.raises(Conflict, match="is off; switch it on"):
        await plugin.create_partition(PLAIN, "1g.5gb")
    with pytest.raises(InvalidInput, match=r"has no profile '9g\.9gb'; it has 1g\.5gb"):
        await plugin.create_partition(MOTHER, "9g.9gb")
    with pytest.raises(NotFound):
        await plugin.create_partition(DeviceId("GPU-none"), "1g.5gb")


async def test_an_instance_in_use_stays(plugin: CudaPlugin, machine: Machine) -> None:
    machine.say(f"nvmlDeviceGetComputeRunningProcesses {SLICE}", [{"pid": 1, "usedGpuMemory": 0}])
    with pytest.raises(Conflict, match="programs run"):
        await plugin.destroy_partition(SLICE)
    machine.say(f"nvmlDeviceGetComputeRunningProcesses {SLICE}", [])
    machine.running.add(3)
    with pytest.raises(Conflict, match="in use"):
        await plugin.destroy_partition(SLICE)
    assert SLICE in await ids(plugin)


async def test_it_must_be_allowed_by_settings_and_by_the_system(machine: Machine) -> None:
    plugin = plugin_on(machine)
    with pytest.raises(Forbidden, match="manage-partitions"):
        await plugin.create_partition(MOTHER, "1g.5gb")
    with pytest.raises(Forbidden, match="manage-partitions"):
        await plugin.destroy_partition(SLICE)

    class Unprivileged(Machine):
        def create_instance(self, uuid: str, profile: int) -> None:
            self.fail("create", Code.NO_PERMISSION)
            self.ask("create")

    plugin = plugin_on(Unprivileged(A100), CudaSettings(manage_partitions=True))
    await plugin.init()
    try:
        with pytest.raises(Forbidden, match="only root"):
            await plugin.create_partition(MOTHER, "1g.5gb")
    finally:
        await plugin.cleanup()


async def test_profiles_tell_their_compute_slices_and_instances_their_gpu(plugin: CudaPlugin) -> None:
    assert [p.slices for p in await plugin.partition_profiles(MOTHER)] == [1, 2, 3, 4, 7]
    parents = {d.device_id: d.parent_id for d in await plugin.list_devices()}
    assert parents[MOTHER] is None
    assert parents[SLICE] == MOTHER


@pytest.mark.parametrize(
    ("answer", "domain"),
    [
        ({"clusterUuid": "ab" * 16, "cliqueId": 7, "state": 3, "status": 0}, f"{'ab' * 16}.7"),
        ({"clusterUuid": "ab" * 16, "cliqueId": 7, "state": 2, "status": 0}, None),
        ({"clusterUuid": "00" * 16, "cliqueId": 0, "state": 3, "status": 0}, None),
        ({"nvml_error": 3}, None),
    ],
)
async def test_a_gpu_states_the_nvlink_domain_that_it_has_joined(
    machine: Machine, answer: dict[str, object], domain: str | None
) -> None:
    machine.say("nvmlDeviceGetGpuFabricInfoV *", answer)
    plugin = plugin_on(machine)
    await plugin.init()
    devices = {device.device_id: device for device in await plugin.list_devices()}
    stated = [p.value for p in devices[MOTHER].variant_properties if (p.namespace, p.feature) == ("fabric", "domain")]
    assert stated == ([domain] if domain else [])
    await plugin.cleanup()
