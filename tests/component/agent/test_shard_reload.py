"""A shard takes over changed drivers and counted resources in the agents of its nodes; their sessions go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import Any, cast

import pytest

from ai.backend.agent.config.kubernetes import CountedSettings, DriverSettings, KubernetesSettings
from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.shard.devices import device_name_of, numbered_devices, slot_of
from ai.backend.agent.shard.inventory import NodeInventory
from ai.backend.agent.shard.nodes import NodeFacts
from ai.backend.agent.shard.shard import Shard
from ai.backend.common.devices import ComputeDevice, DeviceSlot
from ai.backend.common.errors import Unavailable
from ai.backend.common.ids import DeviceId
from ai.backend.common.states import KernelStatus, SlotType
from ai.backend.common.wire.agent import CreateKernels, DestroyKernel, KernelSpec
from tests.component.agent.conftest import Bench
from tests.support.agent_fakes import FakeRuntime

GPU, NPU = "gpu.example.com", "npu.example.com"
NODES = ("n1", "n2")


class Nodes:
    """Two nodes with two devices of each driver, and four of each counted resource."""

    def __init__(self) -> None:
        self.settings = KubernetesSettings(drivers={GPU: DriverSettings()})
        self.is_away = False

    async def reconfigure(self, settings: KubernetesSettings) -> None:
        if self.is_away:
            raise Unavailable("this cluster has no resource.k8s.io/v1")
        self.settings = settings

    def names(self) -> Iterator[str]:
        yield from NODES

    def facts(self, name: str) -> NodeFacts:
        devices: dict[str, tuple[ComputeDevice, ...]] = {}
        for driver, named in self.settings.drivers.items():
            slot = DeviceSlot(slot_name=slot_of(driver, named), slot_type=SlotType.COUNT, amount=Decimal(1))
            devices[driver] = tuple(
                ComputeDevice(
                    device_name=device_name_of(driver, named), device_id=DeviceId(device), hw_location="", slots=(slot,)
                )
                for device in ("D0", "D1")
            )
        for resource, counted in self.settings.counted.items():
            devices[resource] = numbered_devices(4, resource, counted, "H")
        return NodeFacts(
            name=name, uid=name, agent_id=f"c.{name}", architecture="x86_64", cores=8, memory_bytes=8 << 30, pods=9,
            devices=devices,
        )  # fmt: skip


class Site:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.nodes = Nodes()
        self.runtimes: dict[str, FakeRuntime] = {name: FakeRuntime() for name in NODES}
        self.shard = Shard(self.settings(GPU), self.runtimes.__getitem__, bench.manager)

    def settings(self, *drivers: str, **counted: CountedSettings) -> AgentSettings:
        kubernetes = {
            "drivers": {driver: {} for driver in drivers},
            "counted": {f"example.com/{name}": each.model_dump() for name, each in counted.items()},
        }
        raw = {"agent": {"data-dir": str(self.bench.data_dir)}, "kubernetes": kubernetes}
        return AgentSettings.model_validate(raw)

    async def reload(self, *drivers: str, **counted: CountedSettings) -> dict[str, str]:
        return await self.shard.reload(self.settings(*drivers, **counted), cast("NodeInventory", self.nodes))

    async def offers(self, *slots: str) -> None:
        """Waits until both agents offer these slots besides cores and memory."""
        async with asyncio.timeout(20):
            while True:
                await self.bench.manager.next_heartbeat()
                newest = {report.agent_id: report for report in self.bench.manager.heartbeats}
                offered = [
                    {s.slot_name for s in report.slots if Decimal(s.amount)} - {"cpu", "mem"}
                    for report in newest.values()
                ]
                if offered == [set(slots)] * len(NODES):
                    return

    async def start_session(self, **slots: str) -> KernelSpec:
        spec = self.bench.spec(slots={name.replace("__", "-").replace("_", "."): n for name, n in slots.items()})
        await self.shard.agents["c.n1"].create_kernels(CreateKernels(kernels=[spec]))
        await self.bench.until(spec, KernelStatus.RUNNING)
        return spec


@pytest.fixture
async def site(bench: Bench) -> AsyncIterator[Site]:
    made = Site(bench)
    following = asyncio.create_task(made.shard.run(cast("Any", made.nodes)))
    async with asyncio.timeout(20):
        while len({report.agent_id for report in bench.manager.heartbeats}) < len(NODES):
            await bench.manager.next_heartbeat()
    yield made
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await made.shard.close()


async def test_drivers_come_and_go_on_every_node(site: Site) -> None:
    await site.offers("gpu-example-com.device")
    spec = await site.start_session(cpu="1")
    assert await site.reload(GPU, NPU, fpga=CountedSettings(device_name="fpga")) == {}
    await site.offers("gpu-example-com.device", "npu-example-com.device", "fpga.device")
    await site.start_session(fpga_device="2")
    assert await site.reload(NPU) == {"c.n1 fpga": "it is allowed no more, and 1 kernels hold its devices"}
    assert list(site.nodes.settings.counted) == ["example.com/fpga"], "its devices do not vanish under the session"
    assert site.bench.statuses(spec)[-1] is KernelStatus.RUNNING


async def test_names_of_a_driver_change_while_it_runs(site: Site) -> None:
    changed = site.settings(GPU)
    named = {GPU: DriverSettings(slot="gpu-example-com.whole")}
    kubernetes = changed.kubernetes.model_copy(update={"drivers": named})
    changed = changed.model_copy(update={"kubernetes": kubernetes})
    assert await site.shard.reload(changed, cast("NodeInventory", site.nodes)) == {}
    await site.offers("gpu-example-com.whole")


async def test_a_cluster_that_lacks_what_a_driver_needs_changes_nothing(site: Site) -> None:
    await site.offers("gpu-example-com.device")
    site.nodes.is_away = True
    with pytest.raises(Unavailable):
        await site.reload(GPU, NPU)
    spec = await site.start_session(gpu__example__com_device="1")
    await site.shard.agents["c.n1"].destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1, forced=True))
    await site.bench.until(spec, KernelStatus.TERMINATED)
