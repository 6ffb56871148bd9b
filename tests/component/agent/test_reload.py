"""Plugins and their settings are taken over from changed settings, and workloads notice nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ai.backend.agent.composition import Agent
from ai.backend.agent.config.settings import INTRINSIC_PLUGINS, AgentSettings
from ai.backend.common.states import KernelStatus
from ai.backend.common.wire.agent import DestroyKernel
from ai.backend.plugin.discovery import PluginSource, find_plugins
from ai.backend.pluginhost import HostedPlugin
from tests.component.agent.conftest import Bench
from tests.component.agent.test_hooks import acting

S = KernelStatus
MOCK, ISOLATED = "ai.backend.accelerator.mock", "ai.backend.accelerator.mock.isolated"


def settings_with(bench: Bench, **mock: Any) -> AgentSettings:
    bench.options = {"plugins": {"mock": mock}, "kernel-lifecycles": {"plugin-timeout": 20.0}}
    return bench.settings()


async def started(bench: Bench, reference: str, **mock: Any) -> Agent:
    agent = Agent(settings_with(bench, **mock), bench.runtime, bench.manager, plugins=sources(reference))
    bench.agents.append(agent)
    await agent.start()
    return agent


def sources(*references: str) -> list[PluginSource]:
    return find_plugins(references, (), INTRINSIC_PLUGINS)


async def offers(bench: Bench, slot: str, amount: str | None) -> None:
    """Waits until a heartbeat offers so much of a slot, or None of it."""
    async with asyncio.timeout(30):
        while True:
            await bench.manager.next_heartbeat()
            amounts = {item.slot_name: str(item.amount) for item in bench.manager.heartbeats[-1].slots}
            if amounts.get(slot) == amount:
                return


@pytest.mark.parametrize("reference", [MOCK, ISOLATED])
async def test_new_settings_are_taken_over_and_a_session_goes_on(bench: Bench, reference: str) -> None:
    agent = await started(bench, reference, **{"default-devices": 2})
    await offers(bench, "mock.device", "2")
    spec = await bench.run(agent, slots={"mock.device": "1"})
    handle = agent._reload._plugins.get("mock")  # type: ignore[union-attr]  # started above
    before = handle.plugin
    assert await agent.reload_plugins(settings_with(bench, **{"default-devices": 5}), sources(reference)) == {}
    await offers(bench, "mock.device", "5")
    assert handle.plugin is not before
    if reference == ISOLATED:
        assert isinstance(before, HostedPlugin)
        assert before.host._process is not None
        assert before.host._process.has_ended
    assert bench.statuses(spec)[-1] is S.RUNNING
    others = [await bench.run(agent, slots={"mock.device": "1"}) for _ in range(4)]
    assert len({d for s in (spec, *others) for d in agent._reload._inventory.holding(s.kernel_id).device_ids()}) == 5  # type: ignore[union-attr]  # as above
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    await bench.until(spec, S.TERMINATED)


@pytest.mark.parametrize("reference", [MOCK, ISOLATED])
async def test_wrong_settings_change_nothing(bench: Bench, reference: str) -> None:
    agent = await started(bench, reference, **{"default-devices": 2})
    await offers(bench, "mock.device", "2")
    wrong = settings_with(bench, **{"default-device": 5})
    refused = await agent.reload_plugins(wrong, sources(reference))
    assert "plugins.mock.default-device: there is no such key" in refused["mock"]
    await offers(bench, "mock.device", "2")
    await bench.run(agent, slots={"mock.device": "1"})
    report = next(plugin for plugin in bench.manager.heartbeats[-1].plugins if plugin.name == "mock")
    assert report.healthy


async def test_a_call_that_goes_on_is_answered_by_the_old_one(bench: Bench) -> None:
    release = asyncio.Event()

    async def wait(_: Any) -> None:
        await release.wait()

    plugin, calls = acting("acme", pre_create=wait)
    source = PluginSource("acme", lambda: plugin)
    bench.options = {"kernel-lifecycles": {"plugin-timeout": 20.0}}
    agent = Agent(bench.settings(), bench.runtime, bench.manager, plugins=[source])
    bench.agents.append(agent)
    await agent.start()
    creating = asyncio.create_task(bench.run(agent, slots={"acme": "1"}))
    async with asyncio.timeout(20):
        while not calls:
            await bench.manager.next_heartbeat()
    bench.options["plugins"] = {"acme": {}}
    handle = agent._reload._plugins.get("acme")  # type: ignore[union-attr]  # started above
    old = handle.plugin
    reloading = asyncio.create_task(handle.reload({"acme": {}}))
    async with asyncio.timeout(20):
        while handle.plugin is old:
            await bench.manager.next_heartbeat()
    assert not reloading.done(), "the old one waits for its call"
    release.set()
    await reloading
    spec = await creating
    assert bench.statuses(spec)[-1] is S.RUNNING


async def test_plugins_come_and_go_but_not_from_under_a_session(bench: Bench) -> None:
    agent = await started(bench, MOCK)
    spec = await bench.run(agent, slots={"mock.device": "1"})
    plugin, _ = acting("acme")
    added = [*sources(MOCK), PluginSource("acme", lambda: plugin)]
    assert await agent.reload_plugins(bench.settings(), added) == {}
    await offers(bench, "acme", "4")
    refused = await agent.reload_plugins(bench.settings(), sources())
    assert "1 kernels hold its devices" in refused["mock"]
    await offers(bench, "acme", None)
    await offers(bench, "mock.device", "4")
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    await bench.until(spec, S.TERMINATED)
    assert await agent.reload_plugins(bench.settings(), sources()) == {}
    await offers(bench, "mock.device", None)
