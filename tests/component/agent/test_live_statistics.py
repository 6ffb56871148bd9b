"""Statistics of real processes through a real agent."""
# ruff: noqa: F811  # the fixture `real` comes by import

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from ai.backend.agent.composition import Agent
from ai.backend.common.wire.agent import KernelSpec, RestartKernel
from ai.backend.common.wire.execution import ListProcesses
from ai.backend.common.wire.reports import StatReport
from tests.component.agent.test_process_runtime import RealBench, real  # noqa: F401  # `real` is a fixture

BUSY = """
import subprocess, sys
held = bytearray(64 * 2**20)
print(subprocess.Popen([sys.executable, "-c", "while True: pass"]).pid)
"""
# Past the page cache: version 1 of the control groups does not know whose the buffered writes are.
WRITE = """
import mmap, os
fd = os.open("big", os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
os.write(fd, mmap.mmap(-1, 8 * 2**20)); os.close(fd)
"""


async def report(real: RealBench, is_it: Callable[[StatReport], Any]) -> StatReport:
    """The first report from now on that fits."""
    seen = len(real.manager.stats)
    async with asyncio.timeout(30):
        while True:
            for told in real.manager.stats[seen:]:
                if is_it(told):
                    return told
            real.manager.news.clear()
            await real.manager.news.wait()


async def busy_kernel(real: RealBench) -> tuple[Agent, KernelSpec, int]:
    agent = await real.start()
    spec = await real.run(agent)
    result = await real.say(agent, spec, BUSY)
    return agent, spec, int(result.console[0][1])


async def test_a_busy_workload_is_seen_busy(real: RealBench) -> None:
    real.options["runtime"] = {"network": "host"}
    _, spec, _ = await busy_kernel(real)

    def number(told: StatReport, key: str, field: str = "current") -> float:
        return float((told.of_kernel(spec.kernel_id) or {}).get(key, {}).get(field) or 0)

    told = await report(real, lambda r: number(r, "cpu_util") > 10)
    assert number(told, "cpu_util") <= 100 * (os.cpu_count() or 1)
    assert number(told, "cpu_util", "stats.max") >= number(told, "cpu_util", "stats.avg") > 0
    assert number(told, "cpu_used", "stats.rate") > 100, "of 1000 ms in a second"
    assert number(told, "mem") > 64 * 2**20
    assert number(told, "mem", "capacity") == 256 * 2**20
    assert number(told, "pids") >= 2
    assert "net_rx" not in (told.of_kernel(spec.kernel_id) or {}), "it shares the host's network"
    assert {"cpu_util", "mem", "disk", "net_rx", "net_tx"} <= told.node.keys()
    assert set(told.devices["cpu_util"]) <= {str(n) for n in range(4096)}
    families = {f.name: f for f in told.families}
    (used,) = families["backendai_workloads_cpu_used_seconds_total"].samples
    assert used.value > 0.1
    assert families["backendai_workloads_mem_capacity_bytes"].samples[0].value == 256 * 2**20
    later = await report(real, lambda r: True)
    assert number(later, "cpu_used") > number(told, "cpu_used")


async def test_what_it_writes_is_counted(real: RealBench) -> None:
    agent = await real.start()
    spec = await real.run(agent)
    result = await real.say(agent, spec, WRITE)
    assert not [text for kind, text in result.console if kind == "stderr"]
    await report(real, lambda r: float((r.of_kernel(spec.kernel_id) or {})["io_write"]["current"]) >= 8 * 2**20)


async def test_the_busiest_process_comes_first(real: RealBench) -> None:
    agent, spec, pid = await busy_kernel(real)
    first, *others = await agent.commands.list_processes(ListProcesses(kernel_id=spec.kernel_id))
    assert first.pid == pid, "as the session itself knows it"
    assert "while True: pass" in first.command
    assert float(first.metrics["cpu_util"]["current"] or 0) > 10
    assert first.metrics["cpu_used"]["unit_hint"] == "msec"
    assert any(float(o.metrics["mem"]["current"] or 0) > 64 * 2**20 for o in others)
    assert len(await agent.commands.list_processes(ListProcesses(kernel_id=spec.kernel_id, limit=1))) == 1


class TestWithANetworkOfItsOwn:
    @pytest.mark.needs("bwrap")
    async def test_its_traffic_is_told(self, real: RealBench) -> None:
        real.options["runtime"] = {"network": "none"}
        agent = await real.start()
        spec = await real.run(agent)
        told = await report(real, lambda r: spec.kernel_id in r.kernels)
        metrics = told.of_kernel(spec.kernel_id)
        assert metrics is not None
        assert (metrics["net_rx"]["current"], metrics["net_rx"]["unit_hint"]) == ("0", "bps")


async def test_a_restart_goes_on_counting(real: RealBench) -> None:
    agent, spec, _ = await busy_kernel(real)

    def used(told: StatReport) -> float:
        return float((told.of_kernel(spec.kernel_id) or {}).get("cpu_used", {}).get("current") or 0)

    before = used(await report(real, lambda told: used(told) > 500))
    await agent.commands.restart_kernel(RestartKernel(kernel_id=spec.kernel_id, attempt=2))
    assert agent.supervisor is not None
    kernel = agent.supervisor.get(spec.kernel_id)
    after = await report(real, lambda told: kernel.status == "RUNNING" and told.of_kernel(spec.kernel_id))
    carried = round(kernel.carried["cpu_used"], 3)  # a busy machine may have run nothing since, and reports are rounded
    assert (kernel.attempt, carried >= before) == (2, True)
    assert used(after) >= before
