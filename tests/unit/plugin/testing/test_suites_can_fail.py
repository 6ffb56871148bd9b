"""The contract suites notice plugins and runtimes that break their promises."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal

import pytest

from ai.backend.accelerator.mock.declaration import default_declaration
from ai.backend.accelerator.mock.plugin import MockHook, MockPlugin
from ai.backend.common.devices import ComputeDevice, DeviceAllocation
from ai.backend.common.errors import BackendError
from ai.backend.common.ids import SlotName
from ai.backend.plugin.accelerator import (
    AbstractAllocMap,
    AbstractLifecycleHook,
    DiscreteAllocMap,
    HookContext,
    Measurement,
    StatContext,
    Workload,
    WorkloadConfig,
)
from ai.backend.plugin.runtime import WorkloadExit, WorkloadKey, WorkloadSpec, WorkloadView
from ai.backend.plugin.testing.accelerator_contract import ComputePluginContract, check_config
from ai.backend.plugin.testing.fake_runtime import FAKE_IMAGE, FakeRuntime
from ai.backend.plugin.testing.runtime_contract import RuntimeContract


class LyingSlots(MockPlugin):
    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        return {SlotName("mock.device"): Decimal(99)}


class TwinDevices(MockPlugin):
    async def list_devices(self) -> Sequence[ComputeDevice]:
        devices = await super().list_devices()
        return [devices[0], devices[0]]


class NegativeDevices(MockPlugin):
    async def list_devices(self) -> Sequence[ComputeDevice]:
        first, *_ = await super().list_devices()
        slot = dataclasses.replace(first.slots[0], amount=Decimal(-1))
        return [dataclasses.replace(first, slots=(slot,), numa_node=-1)]


class LyingAllocMap(DiscreteAllocMap):
    def free(self, allocation: DeviceAllocation) -> None:
        """Forgets to."""


class LyingMap(MockPlugin):
    async def create_alloc_map(self) -> AbstractAllocMap:
        return LyingAllocMap(await self.list_devices())


class ForgetfulHook(MockHook):
    count = 0

    async def pre_create(self) -> WorkloadConfig:
        ForgetfulHook.count += 1
        return WorkloadConfig(env_vars={"TOKEN": str(self.count)})


class Forgetful(MockPlugin):
    def create_lifecycle_hook(
        self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext
    ) -> AbstractLifecycleHook:
        return ForgetfulHook(workload, device_alloc, context, self)


class NotANumber(MockPlugin):
    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        return [Measurement(key="mock_util", value=float("nan"), unit_hint="percent")]


class OddUnit(MockPlugin):
    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        return [Measurement(key="mock_util", value=1.0, unit_hint="furlongs")]


SUITE = ComputePluginContract()


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (LyingSlots, SUITE.test_the_totals_are_those_of_the_devices),
        (LyingSlots, SUITE.test_the_alloc_map_covers_the_slots),
        (TwinDevices, SUITE.test_device_ids_are_unique_and_survive_a_restart),
        (NegativeDevices, SUITE.test_devices_are_well_formed),
        (NegativeDevices, SUITE.test_slots_are_well_formed),
        (LyingMap, SUITE.test_allocate_free_and_apply_keep_the_books),
        (Forgetful, SUITE.test_pre_create_may_be_repeated),
        (NotANumber, SUITE.test_node_metrics_are_well_formed),
        (OddUnit, SUITE.test_node_metrics_are_well_formed),
    ],
)
async def test_a_bad_plugin_fails(kind: type[MockPlugin], test: Callable[[MockPlugin], Awaitable[None]]) -> None:
    plugin = kind(declaration=default_declaration())
    await plugin.init()
    with pytest.raises((AssertionError, BackendError)):
        await test(plugin)


@pytest.mark.parametrize(
    "config",
    [
        WorkloadConfig(env_vars={"A": "two\nlines"}),
        WorkloadConfig(cpuset=(1, 1)),
        WorkloadConfig(memory_limit_bytes=0),
    ],
)
def test_a_bad_config_fails(config: WorkloadConfig) -> None:
    with pytest.raises(AssertionError):
        check_config(config)


class TwiceRuntime(FakeRuntime):
    """Starts a second workload for the same key."""

    async def create(self, spec: WorkloadSpec) -> WorkloadView:
        return await self._create(spec)


class ImmortalRuntime(FakeRuntime):
    """Says that it stopped what it did not."""

    async def stop(self, key: WorkloadKey, *, grace_s: float) -> WorkloadExit | None:
        return WorkloadExit(code=0)


class LeakyRuntime(FakeRuntime):
    """Leaves the record behind."""

    async def remove(self, key: WorkloadKey, *, keep_home: bool = False) -> None:
        return


class Impatient(RuntimeContract):
    image = FAKE_IMAGE
    patience_s = 0.2


RUNTIMES = Impatient()


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (TwiceRuntime, RUNTIMES.test_create_is_idempotent),
        (ImmortalRuntime, RUNTIMES.test_stop_ends_it_and_the_channel_says_so),
        (LeakyRuntime, RUNTIMES.test_remove_leaves_nothing_and_may_be_repeated),
    ],
)
async def test_a_bad_runtime_fails(kind: type[FakeRuntime], test: Callable[[FakeRuntime], Awaitable[None]]) -> None:
    runtime = kind()
    await runtime.setup()
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await test(runtime)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
