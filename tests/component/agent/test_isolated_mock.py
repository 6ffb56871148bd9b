"""The mock accelerator in a process of its own: it fails on command, blocks and dies, and the agent goes on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest_asyncio

from ai.backend.agent.composition import Agent
from ai.backend.common.states import KernelStatus
from ai.backend.common.wire.agent import CreateKernels
from ai.backend.common.wire.reports import AgentReport, KernelObservation
from ai.backend.plugin.discovery import find_plugins
from tests.component.agent.conftest import Bench

S = KernelStatus
DECLARED = '[[devices]]\nmother_uuid = "g"\ncount = 2\nmodel_name = "m"\n'


def offered(report: AgentReport) -> str | None:
    """How much of ``mock.device`` a heartbeat offers."""
    return {slot.slot_name: slot.amount for slot in report.slots}.get("mock.device")


class Mocked:
    """An agent whose mock has a process of its own."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.bench = bench
        self._control = folder / "mock-control.toml"
        declared = folder / "mock-accelerator.toml"
        declared.write_text(DECLARED)
        bench.options = {
            "plugins": {"mock": {"config-path": str(declared)}},
            "kernel-lifecycles": {"plugin-timeout": 5.0},
            "intervals": {"inventory": 0.2},
        }
        sources = find_plugins(["ai.backend.accelerator.mock.isolated"], (), ())
        self.agent = Agent(bench.settings(), bench.runtime, bench.manager, plugins=sources)

    def switch(self, text: str) -> None:
        new = self._control.with_suffix(".new")
        new.write_text(text)
        new.replace(self._control)

    def fault(self, call: str, behaviour: str, **more: object) -> None:
        lines = [f"{key} = {value!r}" for key, value in {"call": call, "behaviour": behaviour, **more}.items()]
        self.switch("[[faults]]\n" + "\n".join(lines))

    async def until(self, reached: Callable[[AgentReport], bool]) -> AgentReport:
        async with asyncio.timeout(20):
            while not (self.bench.manager.heartbeats and reached(self.bench.manager.heartbeats[-1])):
                await self.bench.manager.next_heartbeat()
        return self.bench.manager.heartbeats[-1]


@pytest_asyncio.fixture
async def mocked(bench: Bench, tmp_path: Path) -> AsyncIterator[Mocked]:
    made = Mocked(bench, tmp_path)
    await made.agent.start()
    await made.until(lambda r: offered(r) == "2")
    yield made
    await made.agent.stop()


async def test_health_is_watched_across_the_process(mocked: Mocked, bench: Bench) -> None:
    spec = await bench.run(mocked.agent, slots={"mock.device": "1"}, devices={"mock.device": {"g-0": "1"}})
    loop = asyncio.get_running_loop()
    start = loop.time()
    mocked.switch('[unhealthy]\ng-0 = "Xid 79"')

    def is_told(o: KernelObservation) -> bool:
        return o.kernel_id == spec.kernel_id and bool(o.unhealthy_devices)

    told = await bench.manager.wait_for(is_told)
    assert loop.time() - start < 1.0
    assert [(d.device_id, d.reason) for d in told.unhealthy_devices] == [("g-0", "Xid 79")]
    await mocked.until(lambda r: offered(r) == "1")


async def test_a_plugin_that_dies_in_a_hook_takes_nothing_down(mocked: Mocked, bench: Bench) -> None:
    running = await bench.run(mocked.agent, slots={"mock.device": "1"})
    mocked.fault("pre_create", "exit")
    doomed = bench.spec(slots={"mock.device": "1"})
    await mocked.agent.commands.create_kernels(CreateKernels(kernels=[doomed]))
    report = await mocked.until(lambda r: not r.plugins[0].healthy)
    assert "host process" in (report.plugins[0].reason or "")
    mocked.switch("")
    await mocked.until(lambda r: r.plugins[0].healthy and offered(r) == "2")
    assert bench.statuses(running)[-1] is S.RUNNING


async def test_a_plugin_that_blocks_does_not_block_the_agent(mocked: Mocked, bench: Bench) -> None:
    mocked.fault("list_devices", "block", seconds=3, times=1)
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0.3)
    longest, before, end = 0.0, loop.time(), loop.time() + 1.0
    while before < end:
        await asyncio.sleep(0.01)
        longest, before = max(longest, loop.time() - before), loop.time()
    assert longest < 0.5
    await mocked.until(lambda r: offered(r) == "2")


async def test_the_devices_of_a_host_that_died_count_as_failed_until_it_is_back(mocked: Mocked) -> None:
    for pid in _hosts():
        os.kill(pid, signal.SIGKILL)
    report = await mocked.until(lambda r: not r.plugins[0].healthy)
    assert offered(report) == "0"
    assert {d["health"] for d in report.devices} == {"unhealthy"}
    assert {d["health_reason"] for d in report.devices} == {"its host process ended: it was killed by SIGKILL"}
    report = await mocked.until(lambda r: offered(r) == "2")
    assert {d["health"] for d in report.devices} == {"healthy"}


def _hosts() -> list[int]:
    """The plugin hosts that this process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid() and b"ai.backend.pluginhost" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found
