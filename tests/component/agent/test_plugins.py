"""Plugins that misbehave take nothing else down."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from ai.backend.agent.composition import Agent
from ai.backend.agent.devices import plugins as plugins_service
from ai.backend.common.devices import SlotDisplay, VariantFeature, VariantMatchMode, VariantNamespace, VariantProperty
from ai.backend.common.errors import InsufficientResource, UnsupportedResource
from ai.backend.common.ids import SlotName
from ai.backend.common.states import KernelEventReason, KernelStatus, SlotType
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import CreateKernels, DestroyKernel
from ai.backend.common.wire.reports import AgentReport
from ai.backend.plugin.accelerator import AbstractComputePlugin
from ai.backend.plugin.discovery import PluginSource
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


class _Lax(BaseModel):
    count: int = 1


@pytest.mark.parametrize(
    ("attributes", "given", "reason"),
    [
        ({"init": _fail}, {}, "OSError: no driver"),
        ({"init": _hang}, {}, "init took longer than 0.2 s"),
        ({"settings_model": _Strict}, {"count": "many"}, "plugins.bad.count: Input should be a valid integer"),
        ({"settings_model": _Strict}, {"coutn": 1}, "plugins.bad.coutn: there is no such key"),
        ({"settings_model": _Lax}, {"coutn": 1}, "plugins.bad.coutn: there is no such key"),
        ({}, {"coutn": 1}, "plugins.bad.coutn: there is no such key"),
    ],
)
async def test_a_plugin_that_does_not_start_is_named(
    bench: Bench, attributes: dict[str, Any], given: dict[str, Any], reason: str
) -> None:
    bench.plugins.append(fake_plugin("bad", **attributes))
    bench.options = {"kernel-lifecycles": {"plugin-timeout": 0.2}, "plugins": {"bad": given}}
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
    async with asyncio.timeout(30):
        while (report := await _report(bench)).generation == before.generation:
            pass
    assert report.slots[0].amount == "2"
    assert [device["health"] for device in report.devices] == ["healthy", "unhealthy"]
    assert report.kernels[0].kernel_id == spec.kernel_id
    planned = bench.spec(slots={"cpu": "2"}, devices={"cpu": {"1": "2"}}, generation=before.generation)
    await agent.commands.create_kernels(CreateKernels(kernels=[planned]))
    assert (await bench.until(planned, S.RUNNING)).devices == {"cpu": {"0": "2"}}


async def test_a_plugin_that_starts_slowly_holds_up_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins_service, "START_PATIENCE_S", 0.1)
    ready = asyncio.Event()

    async def init(self: Any) -> None:
        await ready.wait()

    bench.plugins.append(fake_plugin("slow", init=init))
    bench.options = {"kernel-lifecycles": {"plugin-timeout": 20.0}}
    async with asyncio.timeout(30):
        agent = await bench.start()
        await bench.run(agent)
        reports = {plugin.name: plugin for plugin in (await _report(bench)).plugins}
        assert (reports["slow"].healthy, reports["slow"].reason) == (False, "it is being started")
        ready.set()
        while "slow" not in {slot.slot_name for slot in (await _report(bench)).slots}:
            pass
        await bench.run(agent, slots={"slow": "1"})


async def test_a_plugin_that_is_not_there_yet_sends_sessions_back_to_the_scheduler(bench: Bench) -> None:
    """It was there when they were scheduled: the agent was started again since."""
    bench.plugins.append(fake_plugin("late", init=_fail))
    agent = await bench.start()
    spec = bench.spec(slots={"cpu": "1", "late": "1"})
    with pytest.raises(InsufficientResource, match="late: the plugin late is not available: OSError: no driver"):
        await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    with pytest.raises(UnsupportedResource):
        await agent.commands.create_kernels(CreateKernels(kernels=[bench.spec(slots={"other": "1"})]))


async def test_kernels_of_a_plugin_that_is_gone_are_kept_and_ended(bench: Bench) -> None:
    bench.plugins.append(fake_plugin("gone"))
    agent = await bench.start()
    spec = await bench.run(agent, slots={"cpu": "1", "gone": "2"})
    await agent.stop()
    del bench.plugins[1]
    bench.options = {"kernel-lifecycles": {"plugin-timeout": 0.3}}
    agent = await bench.start()
    report = await _report(bench)
    assert [slot.slot_name for slot in report.slots] == ["cpu"]
    assert [kernel.kernel_id for kernel in report.kernels] == [spec.kernel_id]
    found = await bench.manager.wait_for(lambda o: o.reason is KernelEventReason.RESUMING_AGENT_OPERATION)
    assert found.devices["gone"], "what it holds is shown as it is"
    refused = bench.spec(slots={"cpu": "1", "gone": "1"})
    with pytest.raises(UnsupportedResource) as error:
        await agent.commands.create_kernels(CreateKernels(kernels=[refused]))
    assert error.value.data == {"slot": "gone", "agent": "i-test"}
    assert error.value.message == "the agent i-test has no resource slot gone"
    await bench.run(agent, slots={"cpu": "1", "gone": "0"})
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    assert (await bench.until(spec, S.TERMINATED)).reason is KernelEventReason.USER_REQUESTED
    troubles = [t for o in bench.manager.observations for t in o.hook_troubles]
    assert {(t.plugin, t.method) for t in troubles} == {("gone", "pre_terminate"), ("gone", "post_terminate")}


async def test_nobody_takes_the_slots_of_another_plugin(bench: Bench) -> None:
    class Thief(fake_plugin("thief")):  # type: ignore[misc]  # made for this test
        async def configurable_slots(self) -> Any:
            return [SlotDisplay(slot_name=SlotName("cpu"), slot_type=SlotType.COUNT)]

    bench.plugins.insert(0, Thief)
    await bench.start()
    report = await _report(bench)
    assert [slot.slot_name for slot in report.slots] == ["cpu"]
    reasons = {plugin.name: plugin.reason for plugin in report.plugins}
    assert reasons["thief"] == "configurable_slots: entry 0 has the slot cpu, which belongs to the plugin cpu"
    assert reasons["cpu"] is None


async def test_requirements_bind_the_devices_that_satisfy_them(bench: Bench) -> None:
    class Varied(fake_plugin("gpu")):  # type: ignore[misc]  # made for this test
        async def list_devices(self) -> Any:
            variants = [VariantProperty(namespace="v", feature="gen", value=value) for value in ("7.5", "9.0")]
            found = await super().list_devices()
            return [replace(d, variant_properties=(v,)) for d, v in zip(found, variants, strict=True)]

        async def variant_namespaces(self) -> Any:
            feature = VariantFeature(name="gen", match_mode=VariantMatchMode.MINIMUM)
            return [VariantNamespace(namespace="v", features=(feature,))]

    bench.plugins.append(Varied)
    agent = await bench.start()
    spec = bench.spec(slots={"gpu": "2"}, variant_requirements=["v::gen::8.0"])
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    assert (await bench.until(spec, S.RUNNING)).devices == {"gpu": {"1": "2"}}
    more = bench.spec(slots={"gpu": "1"}, variant_requirements=["v::gen::8.0"])
    with pytest.raises(InsufficientResource):
        await agent.commands.create_kernels(CreateKernels(kernels=[more]))
    told = {p.name: p.variant_namespaces for p in (await _report(bench)).plugins}["gpu"]
    assert [space["namespace"] for space in told] == ["v"]


async def test_slots_that_settings_could_offer_are_reported(bench: Bench) -> None:
    """A slot is known before a device offers it (spec 01)."""

    async def configurable(self: Any) -> list[SlotDisplay]:
        names = (SlotName("gpu"), SlotName("gpu.shares"))
        return [SlotDisplay(slot_name=name, slot_type=SlotType.COUNT) for name in names]

    bench.plugins = [fake_plugin("gpu", configurable_slots=configurable)]
    await bench.start()
    await bench.manager.next_heartbeat()
    slots = {slot.slot_name: slot.amount for slot in bench.manager.heartbeats[-1].slots}
    assert slots == {"gpu": "4", "gpu.shares": "0"}
