"""Plugins that misbehave take nothing else down."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from ai.backend.agent.main import Agent
from ai.backend.agent.services.plugins import PluginSource
from ai.backend.common.states import KernelStatus
from ai.backend.common.wire.agent import AgentReport, CreateKernels
from ai.backend.plugin.accelerator import AbstractComputePlugin
from tests.component.agent.conftest import Bench
from tests.support.agent_fakes import fake_plugin

S = KernelStatus


async def _report(bench: Bench) -> AgentReport:
    await bench.manager.next_heartbeat()
    return bench.manager.heartbeats[-1]


async def _fail(self: Any) -> None:
    raise OSError("no driver")


async def _hang(self: Any) -> None:
    await asyncio.Event().wait()


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    count: int = 1


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"init": _fail}, "OSError: no driver"),
        ({"init": _hang}, "init took longer than 0.2 s"),
        ({"settings_model": _Strict}, "plugins.bad.count: Input should be a valid integer"),
    ],
)
async def test_a_plugin_that_does_not_start_is_named(bench: Bench, attributes: dict[str, Any], reason: str) -> None:
    bench.plugins.append(fake_plugin("bad", **attributes))
    bench.options = {"kernel-lifecycles": {"plugin-timeout": 0.2}, "plugins": {"bad": {"count": "many"}}}
    agent = await bench.start()
    reports = {plugin.name: plugin for plugin in (await _report(bench)).plugins}
    assert reports["cpu"].healthy
    assert not reports["bad"].healthy
    assert reason in (reports["bad"].reason or "")
    await bench.run(agent)


async def test_a_plugin_that_cannot_be_imported_is_named(bench: Bench) -> None:
    def load() -> type[AbstractComputePlugin]:
        raise ImportError("no libvendor")

    sources = [PluginSource("cpu", lambda: bench.plugins[0]), PluginSource("vendor", load)]
    agent = Agent(bench.settings(), bench.runtime, bench.manager, plugins=sources)
    await agent.start()
    try:
        reports = {plugin.name: plugin for plugin in (await _report(bench)).plugins}
        assert "no libvendor" in (reports["vendor"].reason or "")
        await bench.run(agent)
    finally:
        await agent.stop()


async def test_two_plugins_of_one_slot_are_not_both_used(bench: Bench) -> None:
    bench.plugins = [fake_plugin("cpu"), fake_plugin("cpu")]
    await bench.start()
    report = await _report(bench)
    assert [slot.slot_name for slot in report.slots] == ["cpu"]
    assert sorted(plugin.healthy for plugin in report.plugins) == [False, True]


async def test_a_hook_that_hangs_fails_its_kernel_only(bench: Bench) -> None:
    class Hanging(fake_plugin("mem")):  # type: ignore[misc]  # made for this test
        def create_lifecycle_hook(self, workload: Any, device_alloc: Any, context: Any) -> Any:
            hook = super().create_lifecycle_hook(workload, device_alloc, context)
            hook.pre_create = lambda: _hang(hook)
            return hook

    bench.plugins = [fake_plugin("cpu"), Hanging]
    bench.options = {"kernel-lifecycles": {"plugin-timeout": 0.2}}
    agent = await bench.start()
    spec = bench.spec(slots={"cpu": "1", "mem": "1"})
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    assert "pre_create took longer" in ((await bench.until(spec, S.ERROR)).message or "")
    reports = {plugin.name: plugin for plugin in (await _report(bench)).plugins}
    assert "pre_create took longer" in (reports["mem"].reason or "")
    await bench.run(agent, slots={"cpu": "1"})


async def test_a_device_that_fails_is_offered_no_more(bench: Bench) -> None:
    bench.options = {"intervals": {"inventory": 0.05}}
    agent = await bench.start()
    before = await _report(bench)
    spec = await bench.run(agent, slots={"cpu": "2"}, devices={"cpu": {"1": "2"}}, generation=before.generation)
    bench.plugins[0].unhealthy.add("1")
    async with asyncio.timeout(5):
        while (report := await _report(bench)).generation == before.generation:
            pass
    assert report.slots[0].amount == "2"
    assert [device["health"] for device in report.devices] == ["healthy", "unhealthy"]
    assert report.kernels[0].kernel_id == spec.kernel_id
    planned = bench.spec(slots={"cpu": "2"}, devices={"cpu": {"1": "2"}}, generation=before.generation)
    await agent.commands.create_kernels(CreateKernels(kernels=[planned]))
    assert (await bench.until(planned, S.RUNNING)).devices == {"cpu": {"0": "2"}}
