"""When the cuda plugin takes a GPU out of use, and when it brings it back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from ai.backend.accelerator.cuda import plugin as module
from ai.backend.accelerator.cuda.health import CriticalErrors
from ai.backend.accelerator.cuda.nvml import DOUBLE_BIT_ECC, XID_CRITICAL, Code, NvmlEvent, NvmlFailure
from ai.backend.accelerator.cuda.plugin import CudaPlugin
from ai.backend.accelerator.cuda.settings import CudaSettings
from ai.backend.accelerator.cuda.tables import XIDS, Blame
from ai.backend.common.devices import DeviceHealth
from ai.backend.common.errors import PluginError
from ai.backend.plugin.accelerator import DeviceHealthChange, StatContext
from tests.support.cuda import A100, T4, Machine, plugin_on

MOTHER, SLICE = "GPU-a1000000-0000-4000-8000-000000000001", "MIG-a1000000-0000-4000-8000-000000000011"
A, B = "GPU-74000000-0000-4000-8000-000000000001", "GPU-74000001-0000-4000-8000-000000000002"


@contextlib.asynccontextmanager
async def running(machine: Machine, **settings: Any) -> AsyncIterator[CudaPlugin]:
    plugin = plugin_on(machine, CudaSettings(**settings))
    await plugin.init()
    try:
        yield plugin
    finally:
        await plugin.cleanup()


@contextlib.asynccontextmanager
async def watching(plugin: CudaPlugin) -> AsyncIterator[AsyncGenerator[DeviceHealthChange, None]]:
    watch = plugin.watch_health()
    assert isinstance(watch, AsyncGenerator)
    async with contextlib.aclosing(watch):
        yield watch


async def faults(plugin: CudaPlugin) -> dict[str, str]:
    devices = await plugin.list_devices()
    assert all(bool(d.health_reason) is (d.health is DeviceHealth.UNHEALTHY) for d in devices)
    return {d.device_id: d.health_reason for d in devices if d.health is DeviceHealth.UNHEALTHY}


def xid(number: int, uuid: str = A, gpu_instance: int | None = None) -> NvmlEvent:
    return NvmlEvent(uuid=uuid, kind=XID_CRITICAL, value=number, gpu_instance=gpu_instance)


async def news(plugin: CudaPlugin, count: int) -> list[DeviceHealthChange]:
    found: list[DeviceHealthChange] = []
    async with watching(plugin) as watch:
        async for change in watch:
            found.append(change)
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize(
    ("key", "answer", "reason"),
    [
        ("nvmlDeviceGetTotalEccErrors * 1 0", 2, "2 uncorrectable memory errors since the last reset"),
        ("nvmlDeviceGetRemappedRows *", [0, 9, 0, 1], "could not be remapped"),
        ("nvmlDeviceGetRetiredPagesPendingStatus *", 1, "needs a reset"),
        (f"nvmlDeviceGetMemoryInfo {A}", {"nvml_error": Code.GPU_IS_LOST}, "fell off the bus"),
        (f"nvmlDeviceGetMemoryInfo {A}", {"nvml_error": Code.RESET_REQUIRED}, "needs a reset"),
        (f"nvmlDeviceGetMemoryInfo {A}", {"nvml_error": Code.UNKNOWN}, "failed with error 999"),
    ],
)
async def test_a_gpu_says_itself_that_it_failed_and_that_it_is_well(key: str, answer: object, reason: str) -> None:
    machine = Machine(T4)
    async with running(machine) as plugin:
        assert await faults(plugin) == {}
        before = machine.recording.answers[key]
        machine.say(key, answer)
        assert reason in (await faults(plugin))[A]
        machine.say(key, before)
        assert await faults(plugin) == {}


async def test_remapped_rows_are_no_failure() -> None:
    machine = Machine(T4)
    machine.say("nvmlDeviceGetRemappedRows *", [3, 1, 1, 0])
    async with running(machine) as plugin:
        assert await faults(plugin) == {}


async def test_as_many_ecc_errors_as_are_tolerated_are_no_failure() -> None:
    machine = Machine(T4)
    machine.say("nvmlDeviceGetTotalEccErrors * 1 0", 2)
    async with running(machine, tolerated_ecc_errors=2) as plugin:
        assert await faults(plugin) == {}


async def test_an_xid_of_the_device_is_told_at_once() -> None:
    machine = Machine(T4)
    machine.pending.append(xid(119))
    async with running(machine) as plugin:
        (change,) = await asyncio.wait_for(news(plugin, 1), 30)
        assert (change.device_id, change.health) == (A, DeviceHealth.UNHEALTHY)
        assert change.reason == "Xid 119: timeout of a call to the GPU system processor"
        assert await faults(plugin) == {A: change.reason}
        (metric,) = [
            m for m in await plugin.gather_node_metrics(StatContext(at=0)) if m.key == "cuda_xid" and m.device_id == A
        ]
        assert metric.value == 119


async def test_the_programs_fault_and_notices_leave_the_device_in_use() -> None:
    machine = Machine(T4)
    quiet = [n for n, (blame, _) in XIDS.items() if blame is not Blame.DEVICE]
    assert {13, 31, 43, 45, 68, 63, 94} <= set(quiet)
    ecc = NvmlEvent(uuid=A, kind=DOUBLE_BIT_ECC, value=0)
    machine.pending += [*(xid(number) for number in quiet), ecc, xid(62, B), xid(79)]
    async with running(machine, ignored_xids=(62,)) as plugin:
        (change,) = await asyncio.wait_for(news(plugin, 1), 30)
        assert change.reason == "Xid 79: GPU has fallen off the bus"


def test_an_unknown_xid_counts_as_the_devices() -> None:
    assert CriticalErrors().on_event(xid(4711)) == "Xid 4711: unknown to this version"


async def test_an_xid_of_an_instance_is_its_own() -> None:
    machine = Machine(A100)
    machine.pending.append(xid(95, MOTHER, gpu_instance=3))
    async with running(machine) as plugin:
        (change,) = await asyncio.wait_for(news(plugin, 1), 30)
        assert change.device_id == SLICE
        assert set(await faults(plugin)) == {SLICE}


async def test_an_xid_of_a_gpu_takes_its_instances_along() -> None:
    machine = Machine(A100)
    machine.pending.append(xid(95, MOTHER))
    async with running(machine) as plugin:
        assert len(await asyncio.wait_for(news(plugin, 4), 30)) == 4
        assert {d for d in await faults(plugin) if d.startswith("MIG-")} == {
            f"MIG-a1000000-0000-4000-8000-00000000001{n}" for n in range(3)
        }


@pytest.mark.parametrize("how", ["away and back", "energy counter"])
async def test_a_reset_makes_an_xid_good(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.0)
    machine = Machine(T4)
    machine.pending.append(xid(48))
    async with running(machine) as plugin:
        async with watching(plugin) as watch:
            assert (await anext(watch)).health is DeviceHealth.UNHEALTHY
            assert A in await faults(plugin), "time alone heals nothing"
            if how == "away and back":
                machine.lost.add(A)
                assert "fell off" in (await faults(plugin))[A]
                machine.lost.clear()
            else:
                machine.say(f"nvmlDeviceGetTotalEnergyConsumption {A}", 5)
            back = await asyncio.wait_for(anext(watch), 30)
            assert (back.device_id, back.health, back.reason) == (A, DeviceHealth.HEALTHY, "")
        assert await faults(plugin) == {}


async def test_what_the_devices_say_is_told_without_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.0)
    machine = Machine(T4)
    async with running(machine) as plugin, watching(plugin) as watch:
        machine.say(f"nvmlDeviceGetTotalEccErrors {B} 1 0", 1)
        assert (await asyncio.wait_for(anext(watch), 30)).device_id == B


async def test_a_watch_that_fails_tells_what_it_knows_and_ends() -> None:
    machine = Machine(T4)
    machine.pending.append(NvmlFailure(Code.GPU_IS_LOST))
    async with running(machine) as plugin, watching(plugin) as watch:
        machine.lost.add(B)
        assert (await asyncio.wait_for(anext(watch), 30)).device_id == B
        with pytest.raises(PluginError, match="tells no events any more"):
            await asyncio.wait_for(anext(watch), 30)


@pytest.mark.parametrize("code", [Code.TIMEOUT, Code.UNKNOWN])
async def test_an_answer_that_failed_once_is_no_reset(code: Code) -> None:
    machine = Machine(T4)
    machine.pending.append(xid(119))
    async with running(machine) as plugin:
        await asyncio.wait_for(news(plugin, 1), 30)
        before = machine.recording.answers[f"nvmlDeviceGetMemoryInfo {A}"]
        machine.fail(f"nvmlDeviceGetMemoryInfo {A}", code)
        assert A in await faults(plugin)
        machine.say(f"nvmlDeviceGetMemoryInfo {A}", before)
        assert (await faults(plugin))[A].startswith("Xid 119")


async def test_an_instance_that_is_gone_takes_its_xid_along() -> None:
    machine = Machine(A100)
    machine.pending.append(xid(95, MOTHER, gpu_instance=3))
    place = f"nvmlDeviceGetMigDeviceHandleByIndex {MOTHER} 1"
    async with running(machine) as plugin:
        await asyncio.wait_for(news(plugin, 1), 30)
        machine.fail(place, Code.NOT_FOUND)
        assert await faults(plugin) == {}
        machine.say(place, SLICE)
        assert await faults(plugin) == {}, "cut anew at the same place"


async def test_a_watch_ends_when_another_gpu_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.0)
    machine = Machine(T4)
    machine.lost.add(B)
    async with running(machine) as plugin, watching(plugin) as watch:
        machine.lost.clear()
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(watch), 30)
        assert len(await plugin.list_devices()) == 2
