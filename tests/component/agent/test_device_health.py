"""Devices that fail under running kernels: taken out at once, told, and given back."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar

import pytest

from ai.backend.agent.lifecycle.device_failures import HealthLoop
from ai.backend.common.devices import ComputeDevice, DeviceHealth
from ai.backend.common.ids import DeviceId
from ai.backend.common.states import KernelStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import CreateKernels, KernelSpec, RestartKernel
from ai.backend.common.wire.reports import AgentReport, KernelObservation
from ai.backend.plugin.accelerator import DeviceHealthChange, PluginCapabilities
from tests.component.agent.conftest import Bench
from tests.support.agent_fakes import FakePlugin

S = KernelStatus


class Watched(FakePlugin):
    """Two devices of two units each, and a health watch that a test writes to: a change, or an error to raise."""

    capabilities = PluginCapabilities(health_watching=True)
    news: ClassVar[asyncio.Queue[Any]]
    watches: ClassVar[list[float]]
    reasons: ClassVar[dict[str, str]]

    async def list_devices(self) -> Sequence[ComputeDevice]:
        return [replace(d, health_reason=self.reasons.get(d.device_id, "")) for d in await super().list_devices()]

    async def watch_health(self) -> AsyncIterator[DeviceHealthChange]:
        self.watches.append(asyncio.get_running_loop().time())
        while True:
            item = await self.news.get()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item

    @classmethod
    def fail(cls, device: str = "1", reason: str = "Xid 79") -> None:
        cls.unhealthy.add(device)
        cls.reasons[device] = reason
        cls.tell(device, DeviceHealth.UNHEALTHY, reason)

    @classmethod
    def heal(cls, device: str = "1") -> None:
        cls.unhealthy.discard(device)
        cls.reasons.pop(device, None)
        cls.tell(device, DeviceHealth.HEALTHY, "")

    @classmethod
    def tell(cls, device: str, health: DeviceHealth, reason: str) -> None:
        cls.news.put_nowait(DeviceHealthChange(device_id=DeviceId(device), health=health, reason=reason))


@pytest.fixture
def plugin(bench: Bench) -> type[Watched]:
    own = {"journal": [], "unhealthy": set(), "reasons": {}, "news": asyncio.Queue(), "watches": []}
    made = type("Made", (Watched,), own)
    bench.plugins = [made]
    return made


async def report(bench: Bench, amount: str) -> AgentReport:
    """The first heartbeat that offers this much."""
    async with asyncio.timeout(30):
        while True:
            if bench.manager.heartbeats and bench.manager.heartbeats[-1].slots[0].amount == amount:
                return bench.manager.heartbeats[-1]
            await bench.manager.next_heartbeat()


def told(bench: Bench, spec: KernelSpec) -> list[list[tuple[str, str]]]:
    """What was said of the kernel's devices, in order, without what RUNNING says of all being well."""
    found = [o.unhealthy_devices for o in bench.manager.observations if o.kernel_id == spec.kernel_id]
    said = [[(d.device_id, d.reason) for d in devices] for devices in found if devices is not None]
    return said[1:] if said and not said[0] else said


async def until_told(bench: Bench, spec: KernelSpec, *expected: list[tuple[str, str]]) -> None:
    def is_told(_: KernelObservation) -> bool:
        return told(bench, spec) == list(expected)

    await bench.manager.wait_for(is_told)


async def on_device(bench: Bench, agent: Any, device: str = "1") -> KernelSpec:
    return await bench.run(agent, slots={"cpu": "2"}, devices={"cpu": {device: "2"}})


async def test_a_failure_is_seen_at_once_and_a_recovery_once_it_lasts(bench: Bench, plugin: type[Watched]) -> None:
    bench.options = {"intervals": {"heartbeat": 60, "inventory": 60}}
    agent = await bench.start()
    spec, other = await on_device(bench, agent), await on_device(bench, agent, "0")
    loop = asyncio.get_running_loop()
    start = loop.time()
    plugin.fail()
    seen = await report(bench, "2")
    assert loop.time() - start < 0.5
    await until_told(bench, spec, [("1", "Xid 79")])
    assert loop.time() - start < 0.5
    assert [(d["health"], d["health_reason"]) for d in seen.devices] == [("healthy", ""), ("unhealthy", "Xid 79")]
    assert bench.statuses(spec)[-1] is S.RUNNING, "the session runs on"
    plugin.heal()
    await report(bench, "4")
    await until_told(bench, spec, [("1", "Xid 79")], [])
    assert told(bench, other) == []


async def test_nothing_new_lands_on_a_failed_device(bench: Bench, plugin: type[Watched]) -> None:
    agent = await bench.start()
    before = await report(bench, "4")
    plugin.fail()
    await report(bench, "2")
    planned = bench.spec(slots={"cpu": "1"}, devices={"cpu": {"1": "1"}}, generation=before.generation)
    await agent.commands.create_kernels(CreateKernels(kernels=[planned]))
    assert (await bench.until(planned, S.RUNNING)).devices == {"cpu": {"0": "1"}}


async def test_a_recovered_device_is_allocated_although_a_full_disk_cut_its_recovery_off(
    bench: Bench, plugin: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await bench.start()
    plugin.fail()
    await report(bench, "2")
    with monkeypatch.context() as full_disk:

        def fail(_: HealthLoop) -> None:
            raise OSError(errno.ENOSPC, "no space left")

        full_disk.setattr(HealthLoop, "report", fail)
        plugin.heal()
        healed = await report(bench, "4")
    await bench.manager.next_heartbeat()
    spec = bench.spec(slots={"cpu": "2"}, devices={"cpu": {"1": "2"}}, generation=healed.generation)
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    assert (await bench.until(spec, S.RUNNING)).devices == {"cpu": {"1": "2"}}


async def test_a_device_that_fails_while_its_kernel_waits_sends_it_back(bench: Bench, plugin: type[Watched]) -> None:
    bench.options = {"agent": {"kernel-creation-concurrency": 1}}
    agent = await bench.start()
    release = bench.runtime.create_gate = asyncio.Event()
    first = bench.spec(slots={"cpu": "2"}, devices={"cpu": {"0": "2"}})
    second = bench.spec(slots={"cpu": "2"}, devices={"cpu": {"1": "2"}})
    await agent.commands.create_kernels(CreateKernels(kernels=[first]))
    await agent.commands.create_kernels(CreateKernels(kernels=[second]))
    plugin.fail()
    await report(bench, "2")
    release.set()
    ended = await bench.until(second, S.PENDING)
    assert "Xid 79" in (ended.message or "")
    await bench.until(first, S.RUNNING)


async def test_a_flapping_device_is_one_failure_and_one_recovery(bench: Bench, plugin: type[Watched]) -> None:
    agent = await bench.start()
    spec = await on_device(bench, agent)
    beats = len({b.generation for b in bench.manager.heartbeats})
    for n in range(150):
        plugin.fail(reason=f"flip {n}")
        plugin.heal()
        await asyncio.sleep(0.01)
    await report(bench, "4")
    await until_told(bench, spec, [("1", "flip 0")], [])
    assert len({b.generation for b in bench.manager.heartbeats}) <= beats + 2


async def test_an_agent_that_starts_again_tells_only_what_is_new(bench: Bench, plugin: type[Watched]) -> None:
    agent = await bench.start()
    spec = await on_device(bench, agent)
    plugin.fail()
    await until_told(bench, spec, [("1", "Xid 79")])
    await agent.stop()
    plugin.heal()
    plugin.news = asyncio.Queue()
    await bench.start()
    await until_told(bench, spec, [("1", "Xid 79")], [])


async def test_a_manager_that_was_away_is_told_later(bench: Bench, plugin: type[Watched]) -> None:
    agent = await bench.start()
    spec = await on_device(bench, agent)
    bench.manager.deaf = True
    plugin.fail()
    await asyncio.sleep(0.3)
    assert told(bench, spec) == []
    bench.manager.deaf = False
    await until_told(bench, spec, [("1", "Xid 79")])


async def test_a_restart_in_place_tells_the_new_attempt(bench: Bench, plugin: type[Watched]) -> None:
    agent = await bench.start()
    spec = await on_device(bench, agent)
    plugin.fail()
    await until_told(bench, spec, [("1", "Xid 79")])
    await agent.commands.restart_kernel(RestartKernel(kernel_id=spec.kernel_id, attempt=2))

    def is_it(o: KernelObservation) -> bool:
        return (o.kernel_id, o.attempt, o.status) == (spec.kernel_id, 2, S.RUNNING)

    again = await bench.manager.wait_for(is_it)
    assert [d.device_id for d in again.unhealthy_devices] == ["1"]


@pytest.mark.parametrize("end", [OSError("the driver is gone"), None, "nonsense"])
async def test_a_watch_that_breaks_begins_again_and_loses_nothing(
    bench: Bench, plugin: type[Watched], end: object
) -> None:
    bench.options = {"intervals": {"inventory": 60}}
    agent = await bench.start()
    spec = await on_device(bench, agent)
    plugin.unhealthy.add("1")  # while nobody listens
    plugin.news.put_nowait(end)
    await until_told(bench, spec, [("1", "")])
    async with asyncio.timeout(30):
        while len(plugin.watches) < 2:
            await bench.manager.next_heartbeat()
    assert plugin.watches[1] - plugin.watches[0] >= 0.5
    assert "watch_health" in (bench.manager.heartbeats[-1].plugins[0].reason or "")
    plugin.heal()
    await until_told(bench, spec, [("1", "")], [])
    async with asyncio.timeout(30):
        while bench.manager.heartbeats[-1].plugins[0].reason is not None:
            await bench.manager.next_heartbeat()


async def test_news_of_unknown_devices_are_void(bench: Bench, plugin: type[Watched]) -> None:
    agent = await bench.start()
    spec = await on_device(bench, agent)
    for n in range(1000):
        plugin.tell(f"stranger-{n}", DeviceHealth.UNHEALTHY, "?")
    plugin.tell("1", DeviceHealth.UNHEALTHY, "Xid 79")
    await until_told(bench, spec, [("1", "Xid 79")])
    assert [d["device_id"] for d in bench.manager.heartbeats[-1].devices] == ["0", "1"]


async def test_without_a_watch_the_next_look_tells(bench: Bench, plugin: type[Watched]) -> None:
    plugin.capabilities = PluginCapabilities()
    bench.options = {"intervals": {"inventory": 0.05}}
    agent = await bench.start()
    spec = await on_device(bench, agent)
    plugin.unhealthy.add("1")
    await until_told(bench, spec, [("1", "")])
    assert plugin.watches == []
