"""What an agent offers while plugins are slow, answer anew, lose devices or rename slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar

import pytest

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    DeviceHealth,
    DeviceSlot,
    SlotDisplay,
)
from ai.backend.common.errors import InsufficientResource, PluginError, Unavailable
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SlotType
from ai.backend.plugin.accelerator import DeviceHealthChange, NodeInfo
from ai.backend.plugin.discovery import PluginSource
from tests.support.agent_fakes import FakePlugin

WELL, ILL = DeviceHealth.HEALTHY, DeviceHealth.UNHEALTHY
DEVICE, SHARES = SlotName("gpu.device"), SlotName("gpu.shares")


class Gpu(FakePlugin):
    """Devices by id, each with a slot; a call waits for ``gate`` where there is one."""

    key: ClassVar[Any] = DeviceName("gpu")
    slot: ClassVar[SlotName] = DEVICE
    ids: ClassVar[list[str]] = ["g-0", "g-1"]
    ill: ClassVar[set[str]] = set()
    driver: ClassVar[str] = "1"
    gate: ClassVar[asyncio.Event | None] = None
    gate_of_init: ClassVar[asyncio.Event | None] = None
    gate_of_info: ClassVar[asyncio.Event | None] = None
    init_error: ClassVar[Exception | None] = None

    async def init(self) -> None:
        if self.gate_of_init is not None:
            await self.gate_of_init.wait()
        if self.init_error is not None:
            raise self.init_error

    async def list_devices(self) -> Sequence[ComputeDevice]:
        if self.gate is not None:
            await self.gate.wait()
        quantum = Decimal("0.1") if self.slot == SHARES else Decimal(1)
        slot = DeviceSlot(slot_name=self.slot, slot_type=SlotType.COUNT, amount=Decimal(1), quantum=quantum)
        return [
            ComputeDevice(
                device_name=self.key,
                device_id=DeviceId(device_id),
                hw_location="",
                slots=(slot,),
                health=ILL if device_id in self.ill else WELL,
                health_reason="it is hot" if device_id in self.ill else "",
            )
            for device_id in self.ids
        ]

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        return [SlotDisplay(slot_name=slot, slot_type=SlotType.COUNT) for slot in (DEVICE, SHARES)]

    async def available_slots(self) -> Mapping[SlotName, Any]:
        return {}

    def alloc_map_spec(self) -> Any:
        return AllocMapSpec(kind="fractional" if self.slot == SHARES else "discrete")

    async def get_node_info(self) -> NodeInfo:
        if self.gate_of_info is not None:
            await self.gate_of_info.wait()
        return NodeInfo(driver_version=self.driver)


class Node:
    """An inventory over plugins of the test, of which ``gpu`` is one."""

    def __init__(self) -> None:
        self.gpu: Any = type("Made", (Gpu,), {})
        self.other: Any = type("Other", (FakePlugin,), {"key": DeviceName("cpu")})
        settings = AgentSettings.model_validate({"kernel-lifecycles": {"plugin-timeout": 60.0}})
        plugins: list[Any] = [self.gpu, self.other]
        sources = [PluginSource(plugin.key, partial(_same, plugin)) for plugin in plugins]
        self.plugins = PluginSet(sources, settings)
        self.inventory = Inventory(self.plugins, 0)
        self.changes = 0
        self.inventory.changed = self._count

    def _count(self) -> None:
        self.changes += 1

    async def refresh(self) -> bool:
        return await self.inventory.refresh(asyncio.get_running_loop().time())

    def health(self) -> dict[str, str]:
        return {d.device_id: d.health_reason if d.health is ILL else "" for d in self.inventory.kinds["gpu"].devices}

    def hold(self, kernel: str, slot: SlotName, amount: str, device: str = "g-0") -> None:
        self.inventory.adopt(kernel, DeviceAllocation(slots={slot: {DeviceId(device): Decimal(amount)}}))

    def bind(self, kernel: str, slot: SlotName, amount: int = 1) -> set[str]:
        request = ResourceSlot({slot: Decimal(amount)})
        self.inventory.bind(kernel, request, DeviceAllocation(), -1)
        return set(self.inventory.holding(kernel).device_ids())


def _same(plugin: type[FakePlugin]) -> type[FakePlugin]:
    return plugin


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr("ai.backend.agent.devices.queries.ANSWER_PATIENCE_S", 0.01)
    monkeypatch.setattr("ai.backend.agent.devices.plugins.START_PATIENCE_S", 0.01)
    made = Node()
    yield made
    await made.inventory.close()
    await made.plugins.stop()


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0)


async def test_a_device_that_fails_while_another_is_lost_stays_failed(node: Node) -> None:
    await node.refresh()
    node.hold("k", DEVICE, "1")
    node.gpu.ids, node.gpu.ill = ["g-1"], {"g-1"}
    assert await node.refresh()
    assert node.health() == {"g-0": "its plugin lists it no more", "g-1": "it is hot"}
    await node.refresh()
    assert node.health()["g-1"] == "it is hot", "the older, healthy answer does not win"
    with pytest.raises(InsufficientResource):
        node.bind("k2", DEVICE)


async def test_a_watched_failure_outlives_the_loss_of_another_device(node: Node) -> None:
    await node.refresh()
    node.hold("k", DEVICE, "1")
    node.gpu.ids, node.gpu.ill = ["g-1"], {"g-1"}
    change = DeviceHealthChange(device_id=DeviceId("g-1"), health=ILL, reason="Xid 79")
    assert node.inventory.on_health_changes("gpu", [change])
    for _ in range(2):
        await node.refresh()
        assert node.health()["g-1"] == "Xid 79"


async def test_devices_change_by_time_alone_when_one_recovers(node: Node) -> None:
    await node.refresh()
    now = asyncio.get_running_loop().time()
    assert not node.inventory.may_change_at("gpu", now + 3600.0)
    for health in (ILL, DeviceHealth.HEALTHY):
        node.inventory.on_health_changes("gpu", [DeviceHealthChange(device_id=DeviceId("g-1"), health=health)])
    recovers_at = node.inventory.next_recovery_at()
    assert recovers_at is not None
    assert not node.inventory.may_change_at("gpu", recovers_at - 0.1)
    assert node.inventory.may_change_at("gpu", recovers_at)


async def test_the_reason_names_the_kernel_that_holds_too_much_now(node: Node) -> None:
    await node.refresh()
    node.hold("k1", SHARES, "0.5")
    node.hold("k2", SHARES, "0.5")
    node.inventory.free("k2")
    assert "the kernel k1 holds" in node.health()["g-0"]


async def test_a_device_that_is_lost_but_not_held_is_not_offered(node: Node) -> None:
    await node.refresh()
    node.hold("k", DEVICE, "1")
    node.gpu.ids = []
    await node.refresh()
    assert set(node.health().values()) == {"its plugin lists it no more"}
    node.inventory.free("k")
    await node.refresh()
    assert node.health() == {}


async def test_versions_of_the_node_are_asked_for_in_each_round(node: Node) -> None:
    await node.refresh()
    assert node.inventory.kinds["gpu"].info == {"driver_version": "1"}
    node.gpu.driver, node.changes = "2", 0
    generation = node.inventory.generation
    assert not await node.refresh(), "no device has changed"
    assert node.inventory.kinds["gpu"].info == {"driver_version": "2"}
    assert (node.changes, node.inventory.generation) == (1, generation)


async def test_a_plugin_that_hangs_delays_no_other(node: Node) -> None:
    node.gpu.gate = asyncio.Event()
    await node.refresh()
    assert list(node.inventory.kinds) == ["cpu"]
    node.other.unhealthy = {"1"}
    assert await node.refresh()
    assert node.inventory.kinds["cpu"].slots == {SlotName("cpu"): Decimal(2)}
    node.changes = 0
    node.gpu.gate.set()
    await until(lambda: node.changes)
    assert list(node.inventory.kinds) == ["cpu", "gpu"]
    assert node.bind("k", DEVICE) == {"g-0"}


async def test_a_plugin_that_does_not_tell_versions_delays_nothing(node: Node) -> None:
    node.gpu.gate_of_info = asyncio.Event()
    await node.refresh()
    node.gpu.ill = {"g-0"}
    assert await node.refresh()
    assert node.health()["g-0"] == "it is hot"
    node.changes = 0
    node.gpu.gate_of_info.set()
    await until(lambda: node.changes)
    assert node.inventory.kinds["gpu"].info == {"driver_version": "1"}


async def test_a_plugin_that_starts_again_is_not_waited_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.gpu.init_error = RuntimeError("no driver")
    await node.refresh()
    handle = next(handle for handle in node.plugins.handles if handle.key == "gpu")
    monkeypatch.setattr("ai.backend.agent.devices.plugins.START_PATIENCE_S", 60.0)
    node.gpu.init_error, node.gpu.gate_of_init = None, asyncio.Event()
    async with asyncio.timeout(10):
        await node.inventory.refresh(handle._retry_at)
    assert not handle.started
    node.gpu.gate_of_init.set()
    await until(lambda: handle.started)


async def test_a_slot_of_two_plugins_belongs_to_the_first_in_order(node: Node) -> None:
    node.gpu.gate = node.gpu.gate_of_info = asyncio.Event()
    rival: Any = type("Rival", (Gpu,), {"key": DeviceName("rival"), "gate": None, "slot": SlotName("x.y")})

    async def _slots(self: Any) -> Sequence[SlotDisplay]:
        return [SlotDisplay(slot_name=SlotName("x.y"), slot_type=SlotType.COUNT)]

    for plugin in (node.gpu, rival):
        plugin.configurable_slots = _slots
        plugin.slot = SlotName("x.y")
    sources = [PluginSource(plugin.key, partial(_same, plugin)) for plugin in (node.gpu, rival)]
    plugins = PluginSet(sources, AgentSettings())
    inventory = Inventory(plugins, 0)
    node.gpu.gate.set()
    await inventory.refresh(0.0)
    assert inventory.owner_of("x.y") == "gpu"
    assert [handle.reason for handle in plugins.handles] == [
        None,
        "list_devices: x.y belongs to the plugin gpu",
    ]
    await inventory.close()
    await plugins.stop()


async def test_a_device_held_by_a_slot_of_another_name_is_withheld(node: Node) -> None:
    """Half of g-0 is held in shares; the agent restarts with whole devices (spec 01)."""
    await node.refresh()
    node.hold("k", SHARES, "0.5")
    assert node.health() == {
        "g-0": "the kernel k holds 0.5 gpu.shares of it, which it does not offer now",
        "g-1": "",
    }
    assert node.inventory.kinds["gpu"].slots == {DEVICE: Decimal(1)}
    assert node.inventory.unhealthy_devices("k") == [], "the device has not failed"
    assert node.inventory.is_stale
    await node.inventory.rebuild()
    assert node.bind("k2", DEVICE) == {"g-1"}
    with pytest.raises(InsufficientResource):
        node.bind("k3", DEVICE)
    node.inventory.free("k")
    node.inventory.on_health_changes("gpu")
    await until(lambda: node.inventory.next_recovery_at() is None or _recover(node))
    await node.inventory.rebuild()
    assert node.bind("k3", DEVICE) == {"g-0"}


def _recover(node: Node) -> bool:
    return not any(node.health().values()) or node.inventory.on_health_changes("gpu")


async def test_a_device_with_less_than_a_kernel_holds_is_withheld(node: Node) -> None:
    await node.refresh()
    node.hold("k", DEVICE, "2")
    assert node.health()["g-0"]
    assert node.inventory.unhealthy_devices("k") == []
    await node.inventory.rebuild()
    assert node.bind("k2", DEVICE) == {"g-1"}
    with pytest.raises(InsufficientResource):
        node.bind("k3", DEVICE)


async def test_a_slot_of_another_plugin_withholds_nothing(node: Node) -> None:
    await node.refresh()
    node.hold("k", SlotName("tpu.device"), "1", device="g-0")
    assert node.health() == {"g-0": "", "g-1": ""}


@pytest.mark.parametrize("error", [PluginError("no answer"), Unavailable("no answer"), ValueError("no answer")])
async def test_a_plugin_that_cannot_list_its_devices_is_degraded(error: Exception) -> None:
    async def fail(self: Any) -> Sequence[ComputeDevice]:
        raise error

    class Broken(Gpu):
        list_devices = fail

    plugins = PluginSet([PluginSource(Broken.key, partial(_same, Broken))], AgentSettings())
    inventory = Inventory(plugins, 0)
    await inventory.refresh(0.0)
    assert "list_devices failed" in (plugins.handles[0].reason or "")
    assert "no answer" in (plugins.handles[0].reason or "")
    await inventory.close()
    await plugins.stop()
