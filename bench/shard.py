"""Measures a shard: what the agents of many nodes cost in one process. No cluster takes part: nodes are given, no
workload runs, and the manager is in memory."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from ai.backend.agent.config.kubernetes import DriverSettings
from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.shard.devices import compute_devices
from ai.backend.agent.shard.inventory import NodeInventory
from ai.backend.agent.shard.nodes import NodeFacts
from ai.backend.agent.shard.shard import Shard
from ai.backend.common.wire.reports import (
    AgentReport,
    BeatReply,
    BeatReport,
    HeartbeatReply,
    KeptDevices,
    KeptDevicesOf,
    ObservationReport,
    StatReport,
)
from ai.backend.infra.process.memory import collect_rarely
from ai.backend.infra.rpc.beats import ChangedReports
from ai.backend.manager.agents.settings import AgentSettings as ManagerAgentSettings
from ai.backend.node.kube_api.objects import Device, DeviceAttribute, DeviceCapacity
from ai.backend.plugin.testing.runtime.fake_runtime import FakeNode, FakeRuntime
from bench.figures import Figure, benchmark

NODES, DEVICES = 1000, 8
MAX_BYTES = 1 << 30
MAX_CORE = 0.10
DRIVER = "gpu.example.com"
_SETTLE_S, _IDLE_S = 10.0, 60.0
"""The idle time has a round of each loop that an agent has."""
BEATS_GATHER_S = 0.5
_INTERVAL_S = ManagerAgentSettings().speaker_interval_s


class CountingManager:
    """Takes reports and counts their calls."""

    def __init__(self) -> None:
        self.whole = self.beats = self.calls = 0

    async def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        self.whole += 1
        return HeartbeatReply(interval_s=_INTERVAL_S)

    async def beat(self, report: BeatReport) -> BeatReply:
        self.calls += 1
        self.beats += len(report.beats)
        return BeatReply(interval_s=_INTERVAL_S)

    async def observe(self, report: ObservationReport) -> int:
        return report.observations[-1].seq

    async def report_stats(self, report: StatReport) -> None: ...

    async def kept_devices(self, req: KeptDevicesOf) -> KeptDevices:
        return KeptDevices()


class _Nodes:
    """Stands for the inventory of a cluster that does not change."""

    def __init__(self) -> None:
        self._facts = {f"node-{i}": _node(i) for i in range(NODES)}

    def names(self) -> Iterator[str]:
        return iter(self._facts)

    def facts(self, name: str) -> NodeFacts:
        return self._facts[name]


def _node(number: int) -> NodeFacts:
    devices = [
        Device(
            name=f"gpu-{i}",
            attributes={
                "uuid": DeviceAttribute(string=f"GPU-{number:016x}{i:016x}"),
                "productName": DeviceAttribute(string="H100"),
                "linkGroup": DeviceAttribute(string="a"),
            },
            capacity={"memory": DeviceCapacity(value="80Gi")},
        )
        for i in range(DEVICES)
    ]
    return NodeFacts(
        name=f"node-{number}",
        uid=str(number),
        agent_id=f"prod.node-{number}",
        architecture="x86_64",
        cores=64,
        memory_bytes=1 << 38,
        pods=110,
        resource_group="default",
        devices={DRIVER: compute_devices(devices, DRIVER, DriverSettings(device_name="cuda"))},
    )


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@benchmark("kubernetes-shard", "the agents of 1,000 nodes of 8 devices in one process: memory, and processor when idle")
def kubernetes_shard() -> Sequence[Figure]:
    return asyncio.run(_measured())


async def _measured() -> Sequence[Figure]:
    collect_rarely()  # as the daemon does
    nodes = _Nodes()
    before_bytes, manager = resident_bytes(), CountingManager()
    with tempfile.TemporaryDirectory() as folder:
        values: dict[str, Any] = {
            "agent": {"data-dir": folder},
            "kubernetes": {"cluster": "prod", "drivers": {DRIVER: {"device-name": "cuda"}}},
        }
        settings = AgentSettings.model_validate(values)
        shard = Shard(settings, lambda _: FakeRuntime(FakeNode()), ChangedReports(manager, gather_s=BEATS_GATHER_S))
        started_cpu_s = time.process_time()
        task = asyncio.create_task(shard.run(cast(NodeInventory, nodes)))
        while len(shard.agents) < NODES:  # noqa: ASYNC110  # a mapping has no event
            await asyncio.sleep(0.2)
        start_cpu_s = time.process_time() - started_cpu_s
        await asyncio.sleep(_SETTLE_S)
        manager.whole = manager.beats = manager.calls = 0
        idle_at, idle_cpu_s = time.monotonic(), time.process_time()
        await asyncio.sleep(_IDLE_S)
        elapsed_s = time.monotonic() - idle_at
        core = (time.process_time() - idle_cpu_s) / elapsed_s
        used_bytes = resident_bytes() - before_bytes
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await shard.close()
    calls = {"calls_per_s": manager.calls / elapsed_s, "beats": float(manager.beats), "whole": float(manager.whole)}
    return [
        Figure(
            name="kubernetes-shard-memory",
            value=used_bytes / 2**20,
            unit="MiB",
            target=f"<= {MAX_BYTES >> 20} MiB for {NODES} nodes of {DEVICES} devices",
            holds=used_bytes <= MAX_BYTES,
            detail={"start_ms_per_node": 1000 * start_cpu_s / NODES},
        ),
        Figure(
            name="kubernetes-shard-idle",
            value=core,
            unit="cores",
            target=f"<= {MAX_CORE:g} of a core",
            holds=core <= MAX_CORE,
            detail=calls,
        ),
    ]
