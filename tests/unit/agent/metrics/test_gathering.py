"""Rounds of statistics over scripted sources: exact numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar, cast
from uuid import UUID

import pytest

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import KernelRecord
from ai.backend.agent.metrics import statistics as module
from ai.backend.agent.metrics.statistics import Statistics
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import Unavailable
from ai.backend.common.ids import DeviceId, KernelId, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import KernelStatus, SessionType
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.common.wire.reports import MetricFamily
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.plugin.accelerator import (
    AbstractComputePlugin,
    ExportedName,
    Measurement,
    MetricKind,
    PluginCapabilities,
    StatContext,
)
from ai.backend.plugin.discovery import PluginSource
from ai.backend.plugin.runtime import AbstractRuntime, ProcessView, WorkloadKey
from ai.backend.pluginhost.handle import PluginHandle
from tests.support.agent_fakes import FakePlugin

ALL = frozenset({"min", "max", "sum", "avg", "diff", "rate"})


def _m(key: str, value: Any, unit: str = "bytes", **kw: Any) -> Measurement:
    return Measurement(key=key, value=value, unit_hint=unit, **kw)


def _on(device: str, key: str, value: float, unit: str, capacity: float, **kw: Any) -> Measurement:
    return _m(key, value, unit, capacity=capacity, device_id=DeviceId(device), **kw)


class ScriptedRuntime:
    """Says what the test put into ``found``."""

    def __init__(self) -> None:
        self.found: dict[WorkloadKey, list[Measurement]] = {}
        self.during: Any = None
        self.looks: list[list[ProcessView]] = []

    async def measure(self, keys: Sequence[WorkloadKey]) -> Mapping[WorkloadKey, Sequence[Measurement]]:
        if self.during is not None:
            self.during()
        return {key: self.found[key] for key in keys if key in self.found}

    async def pids(self, key: WorkloadKey) -> tuple[int, ...]:
        return (4711,)

    async def measure_processes(self, key: WorkloadKey) -> Sequence[ProcessView]:
        return self.looks.pop(0)


class ScriptedHost:
    found: Sequence[Measurement] = ()

    def measure(self) -> Sequence[Measurement]:
        return self.found


class Gpu(FakePlugin):
    """Two devices, ``0`` and ``1``; says what the test put into its class."""

    key: ClassVar[Any] = "gpu"
    of_node: ClassVar[Any] = ()
    of_workloads: ClassVar[Any] = ()
    of_processes: ClassVar[Any] = {}
    told: ClassVar[Any] = None
    hangs: ClassVar[bool] = False
    capabilities = PluginCapabilities(process_metrics=True)

    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        if self.hangs:
            await asyncio.Event().wait()
        return cast("Sequence[Measurement]", self.of_node)

    async def gather_workload_metrics(
        self, ctx: Any, kernels: Sequence[KernelId]
    ) -> Mapping[KernelId, Sequence[Measurement]]:
        type(self).told = ctx
        return dict.fromkeys(kernels, self.of_workloads)

    async def gather_process_metrics(
        self, ctx: StatContext, pids: Mapping[int, KernelId]
    ) -> Mapping[int, Sequence[Measurement]]:
        self.asked = (ctx.pids, dict(pids))
        return cast("Mapping[int, Sequence[Measurement]]", self.of_processes)


class Scene:
    """A statistics service with a clock of its own."""

    def __init__(self, statistics: Statistics, inventory: Inventory, plugins: PluginSet, gpu: type[Gpu]) -> None:
        self.statistics = statistics
        self.inventory = inventory
        self.plugins = plugins
        self.gpu = gpu
        self.runtime = ScriptedRuntime()
        self.host = ScriptedHost()
        self.now = 1000.0

    def family(self, name: str) -> dict[tuple[str, ...], float]:
        """Samples by the values of their labels."""
        found = self.found(name)
        return {} if found is None else {tuple(s.labels.values()): s.value for s in found.samples}

    def found(self, name: str) -> MetricFamily | None:
        return next((f for f in self.statistics.families if f.name == name), None)

    def kernel(self, number: int, **changes: Any) -> Kernel:
        record = KernelRecord(
            spec=KernelSpec(
                session_id=str(UUID(int=99)),
                kernel_id=str(UUID(int=number)),
                attempt=1,
                session_name="s",
                session_type=SessionType.INTERACTIVE,
                image="python",
                architecture="x86_64",
                access_key="AK",
                user_id=str(UUID(int=5)),
                user_email="user@example.com",
                slots={},
            ),
            status=KernelStatus.RUNNING,
            **{"created_at": 4e9, "phase": Phase.RUNNING, **changes},
        )
        return Kernel(record, cast("Any", None))

    def give_gpus(self, kernel: Kernel) -> None:
        slots = {SlotName("gpu"): {DeviceId("0"): Decimal(1), DeviceId("1"): Decimal(1)}}
        self.inventory.bind(kernel.id, ResourceSlot({"gpu": Decimal(2)}), DeviceAllocation(slots=slots), 0)

    async def round(self, *kernels: Kernel, after_s: float = 5.0) -> None:
        self.now += after_s
        await self.statistics.gather(kernels)

    @property
    def gpu_asked(self) -> dict[int, KernelId]:
        """What the plugin was asked for last."""
        return getattr(self.plugins.get("gpu").plugin, "asked", ({}, {}))[1]

    @property
    def complaint(self) -> str | None:
        return self.plugins.get("gpu").reason


@pytest.fixture
async def scene() -> Scene:
    gpu = type("OneGpu", (Gpu,), {})
    plugins = PluginSet([PluginSource("gpu", partial(lambda cls: cls, gpu))], AgentSettings())
    inventory = Inventory(plugins, 1)
    await inventory.refresh(0.0)
    runtime, host = ScriptedRuntime(), ScriptedHost()
    statistics = Statistics(cast("AbstractRuntime", runtime), plugins, inventory, host, clock=lambda: made.now)
    made = Scene(statistics, inventory, plugins, gpu)
    made.runtime, made.host = runtime, host
    return made


async def test_every_number_of_a_series(scene: Scene) -> None:
    kernel = scene.kernel(1)
    for value in (30.0, 10.0, 50.0):
        scene.runtime.found = {kernel.key: [_m("mem", value, capacity=100.0, stats=ALL)]}
        await scene.round(kernel)
    assert {kernel.id: scene.statistics.of_kernel(kernel.id)} == {
        kernel.id: {
            "mem": {
                "current": "50",
                "capacity": "100",
                "pct": "50.00",
                "unit_hint": "bytes",
                "stats.min": "10",
                "stats.max": "50",
                "stats.sum": "90",
                "stats.avg": "30",
                "stats.diff": "40",
                "stats.rate": "8",
            }
        }
    }


async def test_a_rate_is_shown_instead_of_the_counter_behind_it(scene: Scene) -> None:
    kernel = scene.kernel(1)
    seen = []
    for value, after_s in ((1000.0, 5.0), (1500.0, 5.0), (200.0, 5.0), (250.0, 5.0), (950.0, -3.0)):
        scene.runtime.found = {kernel.key: [_m("net_rx", value, "bps", kind=MetricKind.RATE)]}
        await scene.round(kernel, after_s=after_s)
        metric = scene.statistics.of_kernel(kernel.id)["net_rx"]
        assert metric["current"] == metric["stats.rate"]
        seen.append(metric["current"])
    assert seen == ["0", "100", "0", "10", "0"], "a reset counter and a clock that goes back give no negative rate"


async def test_devices_of_one_workload_are_added_up(scene: Scene) -> None:
    kernel = scene.kernel(1)
    scene.give_gpus(kernel)
    scene.gpu.of_workloads = [
        _on("0", "gpu_mem", 10.0, "bytes", 100.0),
        _on("1", "gpu_mem", 30.0, "bytes", 100.0),
        _on("0", "gpu_util", 20.0, "percent", 100.0),
        _on("1", "gpu_util", 90.0, "percent", 100.0),
        _on("0", "gpu_temperature", 60.0, "celsius", 95.0),
        _on("1", "gpu_temperature", 40.0, "celsius", 90.0),
        _on("0", "gpu_power", 60.0, "watt", 300.0),
        _m("gpu_power", 100.0, "watt", capacity=600.0),
    ]
    await scene.round(kernel)
    metrics = scene.statistics.of_kernel(kernel.id)
    seen = {key: (m["current"], m["capacity"], m["pct"]) for key, m in metrics.items()}
    assert seen == {
        "gpu_mem": ("40", "200", "20.00"),
        "gpu_util": ("110", "200", "55.00"),
        "gpu_temperature": ("60", "95", "63.16"),
        "gpu_power": ("100", "600", "16.67"),
    }


async def test_a_plugin_is_told_of_the_holders_of_its_devices_alone(scene: Scene) -> None:
    holder, other = scene.kernel(1), scene.kernel(2)
    scene.give_gpus(holder)
    scene.gpu.of_workloads = [_m("gpu_mem", 1.0)]
    await scene.round(holder, other)
    context = scene.gpu.told
    assert set(context.allocations) == set(context.pids) == {holder.record.kernel_id}
    assert context.pids[holder.record.kernel_id] == (4711,)
    assert scene.statistics.of_kernel(other.id) == {}


async def test_a_plugin_without_measurements_is_not_called(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    call = PluginHandle.call

    async def counted(handle: PluginHandle, kind: str, *args: Any, **options: Any) -> Any:
        calls.append(kind)
        return await call(handle, kind, *args, **options)

    monkeypatch.setattr(PluginHandle, "call", counted)
    await scene.round()
    assert calls == ["gather_node_metrics"]
    for method in ("gather_node_metrics", "gather_workload_metrics"):
        setattr(scene.gpu, method, getattr(AbstractComputePlugin, method))
    kernel = scene.kernel(1)
    scene.give_gpus(kernel)
    scene.runtime.found = {kernel.key: [_m("mem", 5)]}
    await scene.round(kernel)
    assert calls == ["gather_node_metrics"]
    assert scene.statistics.of_kernel(kernel.id).keys() == {"mem"}


async def test_the_node_has_each_device_and_their_sum(scene: Scene) -> None:
    scene.gpu.of_node = [_on("0", "gpu_mem", 10.0, "bytes", 100.0), _on("1", "gpu_mem", 30.0, "bytes", 100.0)]
    await scene.round()
    assert {d: m["current"] for d, m in scene.statistics.devices["gpu_mem"].items()} == {"0": "10", "1": "30"}
    assert scene.statistics.node["gpu_mem"]["current"] == "40"


async def test_a_metric_belongs_to_the_source_that_told_it_first(scene: Scene) -> None:
    kernel = scene.kernel(1)
    scene.give_gpus(kernel)
    scene.runtime.found = {kernel.key: [_m("mem", 1.0)]}
    scene.gpu.of_workloads = [_m("mem", 2.0)]
    await scene.round(kernel)
    assert scene.statistics.of_kernel(kernel.id)["mem"]["current"] == "1"


async def test_nonsense_is_left_out_and_told_until_it_stops(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.gpu.of_node = [
        _on("0", "gpu_mem", float("nan"), "bytes", 100.0),
        _on("7", "gpu_mem", 1.0, "bytes", 100.0),
        _on("1", "gpu_mem", 30.0, "bytes", 100.0),
    ]
    for _ in range(3):
        await scene.round()
    assert list(scene.statistics.devices["gpu_mem"]) == ["1"]
    assert scene.complaint == "statistics: gpu_mem is nan, not a finite number from 0 on"
    assert sum("gpu_mem is nan" in record.message for record in caplog.records) == 1, "it is logged once"
    scene.gpu.of_node = [_on("0", "gpu_mem", 1.0, "bytes", 100.0)]
    await scene.round()
    assert scene.complaint is None


@pytest.mark.parametrize("answer", [None, 5, {"gpu_mem": 3}, ["x"]])
async def test_an_answer_of_the_wrong_shape_costs_only_itself(scene: Scene, answer: Any) -> None:
    scene.host.found = [_m("disk", 5.0, capacity=10.0)]
    scene.gpu.of_node = answer
    await scene.round()
    assert scene.statistics.node["disk"]["current"] == "5"
    assert str(scene.complaint).startswith("statistics: ")


async def test_one_that_hangs_does_not_hold_up_the_others(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    scene.host.found = [_m("disk", 5.0, capacity=10.0)]
    scene.gpu.hangs = True
    async with asyncio.timeout(30):
        await scene.round()
    assert scene.statistics.node["disk"]["current"] == "5"
    assert scene.complaint == "statistics: it took longer than 0.05 s"


async def test_a_workload_that_ends_meanwhile_is_not_counted_again(scene: Scene) -> None:
    kernel = scene.kernel(1)
    scene.runtime.found = {kernel.key: [_m("cpu_used", 4000.0, "msec", kind=MetricKind.ACCUMULATED)]}
    await scene.round(kernel)
    await scene.statistics.final_metrics(kernel)

    def ends() -> None:
        kernel.record = scene.kernel(1, phase=Phase.TERMINATING).record

    scene.runtime.during = ends
    await scene.round(kernel)
    assert scene.statistics.kernels == {}
    assert scene.family("backendai_workloads_cpu_used_seconds_total") == {(): 4.0}


async def test_what_earlier_attempts_used_is_carried_over(scene: Scene) -> None:
    kernel = scene.kernel(1)

    def uses(cpu: float, mem: float, net: float) -> None:
        scene.runtime.found = {
            WorkloadKey(kernel_id=kernel.key.kernel_id, attempt=kernel.attempt): [
                _m("cpu_used", cpu, "msec", kind=MetricKind.ACCUMULATED),
                _m("mem", mem, stats=frozenset({"max"})),
                _m("net_rx", net, "bps", kind=MetricKind.RATE),
            ]
        }

    uses(1000.0, 9000.0, 10.0)
    await scene.round(kernel)
    uses(1500.0, 100.0, 30.0)
    carried = await scene.statistics.measure_carried_counters(kernel, 1)
    assert carried == {"cpu_used": 1500.0, "mem": 9000.0, "net_rx": 30.0}
    spec = replace(kernel.record.spec, attempt=2)
    kernel.record = replace(kernel.record, spec=spec, carried=carried, carried_until=1)
    uses(200.0, 50.0, 5.0)
    await scene.round(kernel)
    metrics = scene.statistics.of_kernel(kernel.id)
    assert metrics["cpu_used"]["current"] == "1700"
    assert (metrics["mem"]["current"], metrics["mem"]["stats.max"]) == ("50", "9000")
    assert metrics["net_rx"]["stats.total"] == "35"
    total = scene.family("backendai_workloads_cpu_used_seconds_total")
    assert total == {(): 1.7}
    last = await scene.statistics.final_metrics(kernel)
    assert last is not None
    assert last["cpu_used"]["current"] == "1700"
    assert await scene.statistics.measure_carried_counters(kernel, 2) == {
        "cpu_used": 1700.0,
        "mem": 9000.0,
        "net_rx": 35.0,
    }


async def test_a_runtime_that_does_not_answer_loses_no_use_at_a_restart(scene: Scene) -> None:
    kernel = scene.kernel(1)
    scene.runtime.found = {
        kernel.key: [
            _m("cpu_used", 1500.0, "msec", kind=MetricKind.ACCUMULATED),
            _m("mem", 100.0, stats=frozenset({"max"})),
        ]
    }
    await scene.round(kernel)

    def refuses() -> None:
        raise Unavailable("the engine is away")

    scene.runtime.during = refuses
    assert await scene.statistics.measure_carried_counters(kernel, kernel.attempt) == {"cpu_used": 1500.0}


async def test_a_round_while_a_kernel_restarts_loses_no_use(scene: Scene) -> None:
    kernel, other = scene.kernel(1), scene.kernel(2)
    scene.runtime.found = {kernel.key: [_m("cpu_used", 1500.0, "msec", kind=MetricKind.ACCUMULATED)]}
    await scene.round(kernel, other)
    await scene.round(other)
    scene.runtime.found = {}
    assert await scene.statistics.measure_carried_counters(kernel, kernel.attempt) == {"cpu_used": 1500.0}


async def test_sums_over_workloads_count_on_when_one_ends(scene: Scene) -> None:
    one, two, adopted = scene.kernel(1), scene.kernel(2), scene.kernel(3, created_at=1.0)

    def used(**values: float) -> None:
        of = {"one": one, "two": two, "adopted": adopted}
        scene.runtime.found = {
            of[name].key: [
                _m("cpu_used", value, "msec", kind=MetricKind.ACCUMULATED),
                _m("mem", value, capacity=10_000.0),
            ]
            for name, value in values.items()
        }

    used(one=1000.0, two=2000.0, adopted=500_000.0)
    await scene.round(one, two, adopted)
    assert scene.family("backendai_workloads_cpu_used_seconds_total") == {(): 3.0}, "of an adopted one only what comes"
    assert scene.family("backendai_workloads_mem_bytes") == {(): 503_000.0}
    assert scene.family("backendai_workloads_mem_capacity_bytes") == {(): 30_000.0}
    used(one=1500.0, two=2000.0, adopted=501_000.0)
    await scene.round(one, two, adopted)
    assert scene.family("backendai_workloads_cpu_used_seconds_total") == {(): 4.5}
    used(one=1700.0)
    assert await scene.statistics.final_metrics(one) is not None
    scene.runtime.found = {}
    await scene.round()
    assert scene.family("backendai_workloads_cpu_used_seconds_total") == {(): 4.7}
    assert scene.found("backendai_workloads_mem_bytes") is None, "a sum of nothing is not told"


async def test_what_prometheus_sees_of_devices(scene: Scene) -> None:
    dcgm = ExportedName(name="DCGM_FI_DEV_FB_USED", help="Frame buffer used (in MiB).", factor=2**-20)
    scene.gpu.of_node = [
        _on("0", "gpu_mem", 2.0**30, "bytes", 2.0**31, exported=dcgm),
        _on("1", "gpu_mem", 2.0**20, "bytes", 2.0**31, exported=dcgm),
        _on("0", "gpu_util", 50.0, "percent", 100.0),
        _m("gpu_energy", 7.0, "joule", kind=MetricKind.ACCUMULATED, device_id=DeviceId("1")),
    ]
    await scene.round()
    assert scene.family("backendai_device_gpu_mem_bytes") == {("gpu", "0", "0"): 2.0**30, ("gpu", "1", "1"): 2.0**20}
    assert scene.family("backendai_device_gpu_mem_capacity_bytes") == {
        ("gpu", "0", "0"): 2.0**31,
        ("gpu", "1", "1"): 2.0**31,
    }
    assert scene.family("DCGM_FI_DEV_FB_USED") == {("gpu", "0", "0"): 1024.0, ("gpu", "1", "1"): 1.0}
    assert scene.family("backendai_device_gpu_util_ratio") == {("gpu", "0", "0"): 0.5}
    assert scene.family("backendai_device_gpu_energy_joules_total") == {("gpu", "1", "1"): 7.0}
    assert scene.family("backendai_node_gpu_mem_bytes") == {(): 2.0**30 + 2.0**20}
    scene.gpu.of_node = []
    await scene.round()
    assert scene.found("DCGM_FI_DEV_FB_USED") is None, "what is not measured any more is not told any more"


async def test_labels_are_bounded_whatever_workloads_there_are(scene: Scene) -> None:
    kernels = [scene.kernel(n) for n in range(1, 51)]
    scene.runtime.found = {k.key: [_m("mem", 1.0)] for k in kernels}
    scene.gpu.of_node = [_on("0", "gpu_util", 50.0, "percent", 100.0)]
    await scene.round(*kernels)
    labels = {name for f in scene.statistics.families for s in f.samples for name in s.labels}
    assert labels <= {"device_name", "device_id", "index"}
    assert sum(len(f.samples) for f in scene.statistics.families) == 5


async def test_nothing_is_kept_of_workloads_that_ended(scene: Scene) -> None:
    kernel = scene.kernel(1)
    scene.runtime.found = {kernel.key: [_m("mem", 1.0)]}
    await scene.round(kernel)
    await scene.statistics.final_metrics(kernel)
    await scene.round()
    assert scene.statistics._of_workloads == {}  # that it does not grow is not seen otherwise
    assert scene.statistics.kernels == {}


def _process(pid: int, cpu_ms: float, mem: float, *, started: int = 1) -> ProcessView:
    return ProcessView(
        pid=pid,
        started=started,
        shown_pid=pid - 1000,
        command=f"p{pid}",
        measurements=[_m("cpu_used", cpu_ms, "msec", kind=MetricKind.ACCUMULATED), _m("mem", mem)],
    )


async def _processes(scene: Scene, kernel: Kernel, monkeypatch: pytest.MonkeyPatch, limit: int = 20) -> Any:
    """Half a second of the scene's clock lies between the two looks."""

    async def sleep(seconds: float) -> None:
        scene.now += 0.5

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return await scene.statistics.busiest_processes(kernel, limit=limit)


async def test_processes_are_ranked_by_what_they_use_between_two_looks(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = scene.kernel(1)
    scene.runtime.looks = [
        [_process(1001, 9000.0, 5.0), _process(1002, 100.0, 7.0), _process(1003, 0.0, 1.0), _process(1004, 5.0, 1.0)],
        [_process(1001, 9000.0, 5.0), _process(1002, 350.0, 7.0), _process(1003, 40.0, 1.0, started=2)],
    ]
    found = await _processes(scene, kernel, monkeypatch)
    assert [(p.pid, p.command) for p in found] == [(2, "p1002"), (1, "p1001"), (3, "p1003")]
    assert found[0].metrics["cpu_util"]["current"] == "50"
    assert found[0].metrics["cpu_used"] == {
        "current": "350",
        "capacity": None,
        "pct": "0.00",
        "unit_hint": "msec",
        "stats.rate": "500",
    }
    assert found[2].metrics["cpu_util"]["current"] == "0", "a number that is another process's now tells nothing"


async def test_plugins_are_asked_for_the_processes_that_are_shown(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = scene.kernel(1)
    scene.give_gpus(kernel)
    scene.gpu.of_processes = {
        1001: [_on("0", "gpu_mem", 10.0, "bytes", 100.0), _on("1", "gpu_mem", 5.0, "bytes", 100.0)],
        1002: [_m("gpu_mem", float("nan"))],
        7777: [_m("gpu_mem", 1.0)],
    }
    scene.runtime.looks = [[_process(n, 0.0, 2000.0 - n) for n in (1001, 1002, 1003)]] * 2
    found = await _processes(scene, kernel, monkeypatch, limit=2)
    assert scene.gpu_asked == {1001: kernel.record.kernel_id, 1002: kernel.record.kernel_id}
    assert [p.metrics.get("gpu_mem", {}).get("current") for p in found] == ["15", None]
    assert scene.complaint == "statistics of processes: gpu_mem is nan, not a finite number from 0 on"


async def test_a_plugin_is_not_asked_for_the_processes_of_others(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.runtime.looks = [[_process(1001, 0.0, 1.0)]] * 2
    (found,) = await _processes(scene, scene.kernel(1), monkeypatch)
    assert scene.gpu_asked == {}
    assert "gpu_mem" not in found.metrics
