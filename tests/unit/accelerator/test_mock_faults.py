"""Faults of the mock accelerator: counted, switched while it runs, and never able to hurt the agent."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ai.backend.accelerator.mock.declaration import Declaration, MockDevice, default_declaration, read_table
from ai.backend.accelerator.mock.faults import BEHAVIOURS, CALLS, NEEDS_ISOLATION, Fault
from ai.backend.accelerator.mock.isolated import IsolatedMockPlugin
from ai.backend.accelerator.mock.metrics import Script
from ai.backend.accelerator.mock.plugin import MockPlugin, MockSettings
from ai.backend.common.devices import DeviceAllocation, DeviceHealth
from ai.backend.common.errors import CreationDeferred, CreationDenied, InvalidInput
from ai.backend.common.ids import DeviceId, KernelId, SessionId, SlotName
from ai.backend.plugin.accelerator import (
    HookContext,
    LifecycleCause,
    ManagedState,
    StatContext,
    TerminationDeferred,
    Workload,
)

FIRST = default_declaration().devices[0].mother_uuid
DECLARED = '[[devices]]\nmother_uuid = "a"\ncount = 2\nmodel_name = "m"\n'


async def ready(*faults: dict[str, Any]) -> MockPlugin:
    table = {"devices": default_declaration().devices, "faults": faults}
    plugin = MockPlugin(declaration=Declaration.model_validate(table))
    await plugin.init()
    return plugin


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    path = tmp_path / "mock-accelerator.toml"
    path.write_text(DECLARED)
    return path


def switch(declared: Path, text: str) -> None:
    path = declared.with_name("mock-control.toml")
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)  # as an editor does


def hook_of(plugin: MockPlugin, device: str = FIRST) -> Any:
    held = DeviceAllocation(slots={SlotName("mock.device"): {DeviceId(device): 1}})  # type: ignore[dict-item]  # exact
    workload = Workload(id="", type="container", kernel_id=KernelId(UUID(int=1)), session_id=SessionId(UUID(int=2)))
    context = HookContext(cause=LifecycleCause.CREATE, attempt=1, state=ManagedState())
    return plugin.create_lifecycle_hook(workload, held, context)


async def test_faults_are_counted() -> None:
    plugin = await ready({"call": "list_devices", "behaviour": "raise", "message": "boom", "after": 1, "times": 2})
    outcomes: list[object] = []
    for _ in range(5):
        try:
            outcomes.append(len(await plugin.list_devices()))
        except RuntimeError as e:
            outcomes.append(str(e))
    assert outcomes == [4, "boom", "boom", 4, 4]


@pytest.mark.parametrize(
    ("call", "behaviour", "error"),
    [
        ("pre_create", "deny", CreationDenied),
        ("pre_create", "defer", CreationDeferred),
        ("pre_create", "raise", RuntimeError),
        ("post_create", "raise", RuntimeError),
        ("pre_terminate", "defer", TerminationDeferred),
        ("post_terminate", "raise", RuntimeError),
    ],
)
async def test_hooks_go_wrong(call: str, behaviour: str, error: type[Exception]) -> None:
    plugin = await ready({"call": call, "behaviour": behaviour, "message": "as told", "seconds": 7, "times": 1})
    with pytest.raises(error, match="as told") as raised:
        await getattr(hook_of(plugin), call)()
    assert getattr(raised.value, "retry_after", 7) == 7
    await getattr(hook_of(plugin), call)()


async def test_a_fault_may_be_of_one_device() -> None:
    plugin = await ready({"call": "pre_create", "behaviour": "deny", "device": FIRST})
    await hook_of(plugin, plugin.declaration.devices[1].mother_uuid).pre_create()
    with pytest.raises(CreationDenied):
        await hook_of(plugin).pre_create()


async def test_hanging_and_slow_calls() -> None:
    plugin = await ready(
        {"call": "get_node_info", "behaviour": "hang"},
        {"call": "available_slots", "behaviour": "slow", "seconds": 0.05},
    )
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(plugin.get_node_info(), 0.05)
    start = asyncio.get_running_loop().time()
    assert await plugin.available_slots() == {"mock.device": 4}
    assert asyncio.get_running_loop().time() - start >= 0.05


async def test_lies() -> None:
    def lying(behaviour: str, call: str) -> Any:
        return ready({"call": call, "behaviour": behaviour})

    doubled = [d.device_id for d in await (await lying("duplicate-ids", "list_devices")).list_devices()]
    assert len(doubled) == 2 * len(set(doubled))
    changing = await lying("changed-ids", "list_devices")
    assert {d.device_id for d in await changing.list_devices()}.isdisjoint(
        {d.device_id for d in await changing.list_devices()}
    )
    assert set((await (await lying("negative", "available_slots")).available_slots()).values()) == {-1}
    assert "no-such.slot" in await (await lying("unknown-slot", "available_slots")).available_slots()
    measured = await (await lying("nan", "gather_node_metrics")).gather_node_metrics(StatContext(at=0.0))
    assert all(math.isnan(m.value) for m in measured)
    config = await hook_of(await lying("bad-config", "pre_create")).pre_create()
    assert not config.mounts[0].target.startswith("/")
    assert await (await lying("wrong-type", "list_devices")).list_devices() == 7


def test_every_call_can_go_wrong_and_every_line_of_the_table_can_be_told() -> None:
    for behaviour, calls in BEHAVIOURS.items():
        for call in calls:
            Fault(call=call, behaviour=behaviour)
    assert set().union(*BEHAVIOURS.values()) == set(CALLS)


async def test_the_control_file_is_read_when_it_changes(declared: Path) -> None:
    plugin = MockPlugin(MockSettings(config_path=declared))
    await plugin.init()
    assert await plugin.available_slots() == {"mock.device": 2}
    switch(declared, '[unhealthy]\na-1 = "Xid 79"')
    assert [(d.health.value, d.health_reason) for d in await plugin.list_devices()] == [
        ("healthy", ""),
        ("unhealthy", "Xid 79"),
    ]
    switch(declared, '[unhealthy]\n"*" = ""\n[[faults]]\ncall = "get_node_info"\nbehaviour = "raise"')
    assert await plugin.available_slots() == {"mock.device": 0}
    with pytest.raises(RuntimeError):
        await plugin.get_node_info()
    declared.with_name("mock-control.toml").unlink()
    assert await plugin.available_slots() == {"mock.device": 2}
    await plugin.get_node_info()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("= half", "TOML"),
        ('[unhealthy]\nother = "x"', "unhealthy.*'other'"),
        ('[[faults]]\ncall = "nothing"\nbehaviour = "raise"', "faults.0.*call"),
        ('[[faults]]\ncall = "init"\nbehaviour = "nothing"', "faults.0.*behaviour"),
        ('[[faults]]\ncall = "init"\nbehaviour = "deny"', "faults.0.*init cannot deny; it can raise"),
        ('[[faults]]\ncall = "init"\nbehaviour = "exit"', "process of its own"),
        ('[[faults]]\ncall = "init"\nbehaviour = "block"', "process of its own"),
        ('[[faults]]\ncall = "init"\nbehaviour = "raise"\ntimes = 0', "faults.0.times"),
        ("[[devices]]", "devices"),
    ],
)
async def test_a_bad_control_file_is_refused_at_the_start_and_ignored_later(
    declared: Path, text: str, names: str
) -> None:
    switch(declared, text)
    with pytest.raises(InvalidInput, match=f"mock-control.toml.*{names}"):
        await MockPlugin(MockSettings(config_path=declared)).init()
    switch(declared, '[unhealthy]\na-0 = "before"')
    plugin = MockPlugin(MockSettings(config_path=declared))
    await plugin.init()
    switch(declared, text)
    assert (await plugin.list_devices())[0].health_reason == "before"
    assert "mock-control.toml" in (await plugin.get_node_info()).extra["problem"]


async def test_blocking_and_dying_need_a_process_of_its_own(declared: Path) -> None:
    for behaviour in NEEDS_ISOLATION:
        switch(declared, f'[[faults]]\ncall = "list_devices"\nbehaviour = "{behaviour}"')
        await IsolatedMockPlugin(MockSettings(config_path=declared)).init()
    assert IsolatedMockPlugin.capabilities.blocking


async def test_the_watch_tells_what_the_control_file_says(declared: Path) -> None:
    plugin = MockPlugin(MockSettings(config_path=declared))
    await plugin.init()
    watch = plugin.watch_health()
    news = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    switch(declared, '[unhealthy]\na-1 = "Xid 79"')
    async with asyncio.timeout(30):
        change = await news
        assert (change.device_id, change.health, change.reason) == ("a-1", DeviceHealth.UNHEALTHY, "Xid 79")
        switch(declared, "")
        change = await anext(watch)
        assert (change.device_id, change.health, change.reason) == ("a-1", DeviceHealth.HEALTHY, "")
    await watch.aclose()  # type: ignore[attr-defined]  # an asynchronous generator


@pytest.mark.parametrize(("behaviour", "outcome"), [("raise", RuntimeError), ("end", StopAsyncIteration)])
async def test_the_watch_goes_wrong(behaviour: str, outcome: type[Exception]) -> None:
    plugin = await ready({"call": "watch_health", "behaviour": behaviour})
    with pytest.raises(outcome):
        await anext(plugin.watch_health())


async def test_the_watch_tells_of_unknown_devices() -> None:
    plugin = await ready({"call": "watch_health", "behaviour": "unknown-device"})
    assert (await anext(plugin.watch_health())).device_id not in {d.device_id for d in await plugin.list_devices()}


@pytest.mark.parametrize(
    ("script", "values"),
    [
        (5, [5, 5, 5, 5]),
        ([1, 2, 3, 4], [1, 2, 3, 4]),
        ({"kind": "ramp", "low": 10, "high": 50}, [10, 20, 30, 40]),
        ({"kind": "sine", "low": 0, "high": 10}, [5, 10, 5, 0]),
    ],
)
async def test_scripts(script: object, values: list[float]) -> None:
    made = Script.model_validate(script)
    assert [made.value_at(at) for at in (0, 15, 30, 45)] == pytest.approx(values)
    device = MockDevice.model_validate({"mother_uuid": "a", "model_name": "m", "metrics": {"power": script}})
    plugin = MockPlugin(declaration=Declaration(devices=(device,)))
    shown = {m.key: m.value for m in await plugin.gather_node_metrics(StatContext(at=15.0))}
    assert shown["mock_power"] == pytest.approx(values[1])
    assert shown["mock_util"] == 50.0


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('topology = "ring"', "topology"),
        ('[[links]]\na = "a-0"\nb = "z"\nkind = "direct"', "links: a-0 and z"),
        ('[[links]]\na = "a-0"\nb = "a-0"\nkind = "direct"', "links"),
        ('[[links]]\na = "a-0"\nb = "a-1"\nkind = "rope"', "links.0.kind"),
        ('[unhealthy]\nz = "x"', "unhealthy.*'z'"),
        ('[[devices]]\nmother_uuid = "b"\nmodel_name = "m"\nnuma_node = -1', "devices.1.numa_node"),
        ('[[devices]]\nmother_uuid = "b"\nmodel_name = "m"\ncount = 0', "devices.1.count"),
        ('[[devices]]\nmother_uuid = "b"\nmodel_name = "m"\noffers = ["half"]', "devices.1.offers"),
        ('[[devices]]\nmother_uuid = "b"\nmodel_name = "m"\nmetrics.noise = 1', "devices.1.metrics.noise"),
        ('[[devices]]\nmother_uuid = "b"\nmodel_name = "m"\nmetrics.util = nan', "devices.1.metrics.util"),
        ('[[devices]]\nmother_uuid = "b"\nmodel_name = "m"\nmetrics.util = []', "devices.1.metrics.util.*values"),
        ('[[devices]]\nmother_uuid = "a-1"\nmodel_name = "m"', "mother_uuid"),
    ],
)
def test_a_bad_declaration_names_file_and_key(declared: Path, text: str, names: str) -> None:
    declared.write_text(f"{text}\n{DECLARED}" if text.startswith("topology") else f"{DECLARED}{text}\n")
    with pytest.raises(InvalidInput, match=f"mock-accelerator.toml.*{names}"):
        asyncio.run(MockPlugin(MockSettings(config_path=declared)).init())


def test_the_example_can_be_read() -> None:
    found = read_table(Path(__file__).parents[3] / "docs" / "examples" / "mock-accelerator.toml", Declaration)
    assert len(found.single_devices()) == 8
