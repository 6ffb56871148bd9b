"""A shard takes over changed drivers and counted resources in the agents of its nodes; their sessions go on."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

import pytest

from ai.backend.agent.config.kubernetes import CountedSettings, DriverSettings, KubernetesSettings
from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.shard.composition import _Reloads
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
from tests.support.scripted_kube import ScriptedKube

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


async def test_a_shard_says_that_its_devices_cannot_be_diagnosed_and_withholds_nothing(site: Site) -> None:
    await site.offers("gpu-example-com.device")
    newest = site.bench.manager.heartbeats[-1]
    assert {plugin.name: plugin.diagnosable for plugin in newest.plugins if plugin.name != "cpu"} == {
        "gpu-example-com": False,
        "mem": False,
    }
    spec = site.bench.spec(slots={"cpu": "1"}, diagnosed_devices={"gpu-example-com": ["D0"]})
    await site.shard.agents["c.n1"].create_kernels(CreateKernels(kernels=[spec]))
    assert "shows no devices for a diagnosis" in str(await site.bench.until(spec, KernelStatus.ERROR))
    await site.start_session(gpu__example__com_device="2")  # a refused diagnosis holds neither of the two


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


def event(kind: str, **obj: Any) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


END = event("BOOKMARK", metadata={"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}})
NODE = event(
    "ADDED",
    metadata={"name": "n1", "uid": "u1", "resourceVersion": "1"},
    spec={"taints": [{"key": "backend.ai/dedicated", "value": "true", "effect": "NoSchedule"}]},
    status={
        "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "9"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
)


def slice_of(driver: str, *devices: str) -> bytes:
    described = [{"name": d.lower(), "attributes": {"uuid": {"string": d}}} for d in devices]
    pool = {"name": driver, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": "n1", "pool": pool, "devices": described}
    return event("ADDED", metadata={"name": f"n1-{driver}", "uid": driver, "resourceVersion": "2"}, spec=spec)


class ClusterApi(ScriptedKube):
    """Answers the watch of each kind of objects; what is ``silent`` says nothing until it speaks."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = {
            "nodes": [NODE, END],
            "pods": [END],
            "resourceslices": [slice_of(GPU, "D0", "D1"), slice_of(NPU, "N0"), END],
        }
        self.speaks = asyncio.Event()
        self.silent = ""
        self.watches: Counter[str] = Counter()

    async def is_served(self, resource: Any) -> bool:
        return True

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        kind = path.rsplit("/", 1)[-1]
        self.watches[kind] += 1

        async def chunks() -> AsyncIterator[bytes]:
            if kind == self.silent:
                await self.speaks.wait()
            for chunk in self.answers[kind]:
                yield chunk
            await asyncio.Event().wait()

        yield chunks()


@dataclass
class OnApi:
    """A shard of one node that reads the cluster's API."""

    bench: Bench
    kube: ClusterApi
    shard: Shard
    inventory: NodeInventory

    def settings(self, *drivers: str) -> AgentSettings:
        raw = {
            "agent": {"data-dir": str(self.bench.data_dir)},
            "kubernetes": {"drivers": {driver: {} for driver in drivers}, "cluster": "c"},
        }
        return AgentSettings.model_validate(raw)

    async def reload(self, *drivers: str) -> dict[str, str]:
        return await self.shard.reload(self.settings(*drivers), self.inventory)

    async def offers(self, *slots: str) -> None:
        """Waits until the node's agent offers these slots besides cores and memory."""
        async with asyncio.timeout(20):
            while True:
                await self.bench.manager.next_heartbeat()
                newest = self.bench.manager.heartbeats[-1]
                if {s.slot_name for s in newest.slots if Decimal(s.amount)} == {"cpu", "mem", *slots}:
                    return


@pytest.fixture
async def on_api(bench: Bench) -> AsyncIterator[OnApi]:
    kube, runtime = ClusterApi(), FakeRuntime()
    raw = {"agent": {"data-dir": str(bench.data_dir)}, "kubernetes": {"cluster": "c"}}
    settings = AgentSettings.model_validate(raw)
    shard = Shard(settings, lambda _name: runtime, bench.manager)
    inventory = NodeInventory(kube.api, settings.kubernetes, "default", shard.schedule_comparison)
    await inventory.start()
    following = asyncio.create_task(shard.run(inventory))
    made = OnApi(bench, kube, shard, inventory)
    await made.offers()
    yield made
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await inventory.close()
    await shard.close()


async def test_the_first_driver_begins_the_watch_of_slices_and_a_held_one_is_read_on(on_api: OnApi) -> None:
    assert on_api.kube.watches == {"nodes": 1, "pods": 1}, "nobody has asked for devices"
    assert await on_api.reload(GPU) == {}
    await on_api.offers("gpu-example-com.device")
    spec = on_api.bench.spec(slots={"gpu-example-com.device": "1"})
    (agent,) = on_api.shard.agents.values()
    await agent.create_kernels(CreateKernels(kernels=[spec]))
    await on_api.bench.until(spec, KernelStatus.RUNNING)
    refused = await on_api.reload(NPU)
    assert refused == {"c.n1 gpu-example-com": "it is allowed no more, and 1 kernels hold its devices"}
    assert set(on_api.inventory.settings.drivers) == {GPU, NPU}
    await on_api.offers("gpu-example-com.device", "npu-example-com.device")
    await agent.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1, forced=True))
    await on_api.bench.until(spec, KernelStatus.TERMINATED)
    assert await on_api.reload(NPU) == {}
    await on_api.offers("npu-example-com.device")
    assert on_api.kube.watches["resourceslices"] == 1


async def test_devices_are_not_taken_over_before_all_of_them_are_read(
    on_api: OnApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ai.backend.agent.shard.inventory.SYNC_TIMEOUT_S", 0.05)
    on_api.kube.silent = "resourceslices"
    for _ in range(2):  # the second one as well: the watch that the first began has still read nothing
        with pytest.raises(Unavailable, match="cannot be listed"):
            await on_api.reload(GPU)
        assert on_api.inventory.settings.drivers == {}
    on_api.kube.speaks.set()
    monkeypatch.undo()
    assert await on_api.reload(GPU) == {}
    await on_api.offers("gpu-example-com.device")


async def test_a_hang_up_reloads_what_may_change_and_the_next_term_begins_with_it(on_api: OnApi) -> None:
    newest = on_api.settings(GPU)
    other = newest.model_copy(update={"kubernetes": newest.kubernetes.model_copy(update={"cluster": "other"})})
    reloads = _Reloads(on_api.settings(), lambda: other)
    applied: asyncio.Queue[AgentSettings] = asyncio.Queue()

    async def apply(settings: AgentSettings) -> dict[str, str]:
        applied.put_nowait(settings)
        return await on_api.shard.reload(settings, on_api.inventory)

    reloads.apply = apply
    reloads.begin()
    async with asyncio.timeout(20):
        taken = await applied.get()
    assert (list(taken.kubernetes.drivers), taken.kubernetes.cluster) == ([GPU], "c")
    await on_api.offers("gpu-example-com.device")
    assert reloads.settings is taken


async def test_a_cluster_that_does_not_answer_is_logged_and_the_process_goes_on(
    on_api: OnApi, caplog: pytest.LogCaptureFixture
) -> None:
    reloads = _Reloads(on_api.settings(), lambda: on_api.settings(GPU))
    over = asyncio.Event()

    async def apply(settings: AgentSettings) -> dict[str, str]:
        over.set()
        raise Unavailable("no answer")

    reloads.apply = apply
    reloads.begin()
    async with asyncio.timeout(20):
        await over.wait()
    await asyncio.sleep(0)  # lets the task that failed end
    assert "plugins stay as they are: no answer" in caplog.text
