"""What every accelerator plugin promises, as a suite.

A test file of a plugin is::

    class TestMine(ComputePluginContract):
        @pytest.fixture
        async def plugin(self):
            return MyPlugin(MySettings())

The suite calls ``init`` and ``cleanup`` itself. A second instance for "after a restart" comes from ``remake``, which by
default constructs the same class with the same settings.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import msgspec
import pytest

from ai.backend.common.devices import ComputeDevice, DeviceAllocation
from ai.backend.common.errors import BackendError, InsufficientResource, ResourceError, UnsupportedResource
from ai.backend.common.ids import DeviceId, KernelId, SessionId, SlotName
from ai.backend.common.names import check_slot_name
from ai.backend.common.states import SlotType
from ai.backend.plugin.accelerator import (
    MANAGED_STATE_LIMIT,
    AbstractComputePlugin,
    AbstractLifecycleHook,
    HookContext,
    LifecycleCause,
    ManagedState,
    Measurement,
    MetricKind,
    StatContext,
    Workload,
    WorkloadConfig,
    build_alloc_map,
    slot_totals,
)

UNITS = frozenset({"bytes", "percent", "bps", "msec", "count", "celsius", "watt"})
STATS = frozenset({"min", "max", "sum", "avg", "diff", "rate"})
KERNEL = KernelId(UUID(int=1))
SESSION = SessionId(UUID(int=2))


class ComputePluginContract:
    """See the module. Covers version 30 of the accelerator SPI."""

    key_is_slot_prefix: ClassVar[bool] = True
    """Whether slot names begin with the plugin's key; a plugin whose slots are configured by name says no."""

    @pytest.fixture
    async def plugin(self) -> AbstractComputePlugin:
        pytest.fail("override the fixture `plugin`")

    def remake(self, plugin: AbstractComputePlugin) -> AbstractComputePlugin:
        """The plugin that the next agent process would make."""
        return type(plugin)(plugin.settings)

    # ---- helpers of the suite

    @pytest.fixture
    async def ready(self, plugin: AbstractComputePlugin) -> AsyncIterator[AbstractComputePlugin]:
        await plugin.init()
        yield plugin
        await plugin.cleanup()

    async def some_request(self, plugin: AbstractComputePlugin) -> dict[SlotName, Decimal]:
        """The smallest quantity of every slot that can be had now."""
        devices = await plugin.list_devices()
        smallest = {s.slot_name: s.quantum for d in devices for s in d.slots}
        return {slot: smallest[slot] for slot, total in (await plugin.available_slots()).items() if total}

    async def some_allocation(self, plugin: AbstractComputePlugin) -> DeviceAllocation:
        """One slot's smallest quantity, bound; skips where the node has no device."""
        request = await self.some_request(plugin)
        if not request:
            pytest.skip("capability: this node offers no device of the plugin")
        slot, quantity = next(iter(request.items()))
        return (await plugin.create_alloc_map()).allocate({slot: quantity})

    def hook(
        self, plugin: AbstractComputePlugin, allocation: DeviceAllocation, state: ManagedState, **changes: Any
    ) -> AbstractLifecycleHook:
        context = HookContext(cause=LifecycleCause.CREATE, attempt=1, state=state)
        workload = Workload(id="", type="process_tree", kernel_id=KERNEL, session_id=SESSION)
        return plugin.create_lifecycle_hook(workload, allocation, dataclasses.replace(context, **changes))

    # ---- the plugin itself

    async def test_its_key_is_a_slot_name(self, plugin: AbstractComputePlugin) -> None:
        assert check_slot_name(plugin.key) == plugin.key
        assert "." not in plugin.key
        assert plugin.spi_version == 30
        assert plugin.version

    async def test_cleanup_is_safe_without_init(self, plugin: AbstractComputePlugin) -> None:
        await plugin.cleanup()

    async def test_settings_have_defaults_and_refuse_unknown_keys(self, plugin: AbstractComputePlugin) -> None:
        model = plugin.settings_model
        if model is None:
            return
        assert model.model_config.get("extra") == "forbid", "a misspelt key must be an error"
        assert model.model_json_schema()["type"] == "object"
        undescribed = [name for name, field in model.model_fields.items() if not field.description]
        assert undescribed == []

    # ---- devices and slots

    async def test_device_ids_are_unique_and_survive_a_restart(self, ready: AbstractComputePlugin) -> None:
        devices = await ready.list_devices()
        ids = [d.device_id for d in devices]
        assert len(set(ids)) == len(ids)
        again = self.remake(ready)
        await again.init()
        try:
            assert [d.device_id for d in await again.list_devices()] == ids
        finally:
            await again.cleanup()

    async def test_devices_are_well_formed(self, ready: AbstractComputePlugin) -> None:
        for device in await ready.list_devices():
            assert isinstance(device, ComputeDevice)
            assert device.device_name == ready.key
            assert device.device_id
            assert device.hw_location
            assert device.memory_size >= 0
            assert device.processing_units >= 0
            assert device.numa_node is None or device.numa_node >= 0, "an unknown node is None, not -1"
            assert device.slots, "a device offers something"
            names = [s.slot_name for s in device.slots]
            assert len(set(names)) == len(names)
            peers = {d.device_id for d in await ready.list_devices()} - {device.device_id}
            assert {link.peer for link in device.links} <= peers

    async def test_slots_are_well_formed(self, ready: AbstractComputePlugin) -> None:
        known = {s.slot_name: s for s in await ready.configurable_slots()}
        for device in await ready.list_devices():
            for slot in device.slots:
                assert check_slot_name(slot.slot_name) == slot.slot_name
                assert slot.slot_name in known, "every slot offered is configurable"
                assert slot.slot_type is known[slot.slot_name].slot_type
                assert isinstance(slot.amount, Decimal)
                assert isinstance(slot.quantum, Decimal)
                assert slot.amount.is_finite()
                assert slot.amount >= 0
                assert slot.quantum > 0
                if slot.slot_type is not SlotType.COUNT:
                    assert slot.quantum == 1, "only counts have fractions"
                if self.key_is_slot_prefix:
                    assert slot.slot_name.split(".")[0] == ready.key

    async def test_the_totals_are_those_of_the_devices(self, ready: AbstractComputePlugin) -> None:
        available = dict(await ready.available_slots())
        assert all(isinstance(total, Decimal) for total in available.values())
        assert {k: v for k, v in available.items() if v} == {
            k: v for k, v in slot_totals(await ready.list_devices()).items() if v
        }

    async def test_devices_travel_as_data(self, ready: AbstractComputePlugin) -> None:
        for device in await ready.list_devices():
            sent = msgspec.to_builtins(device)
            assert (
                msgspec.convert(msgspec.json.decode(msgspec.json.encode(sent)), ComputeDevice, strict=False) == device
            )

    async def test_slots_can_be_shown(self, ready: AbstractComputePlugin) -> None:
        slots = await ready.configurable_slots()
        assert len({s.slot_name for s in slots}) == len(slots)
        for slot in slots:
            assert slot.human_readable_name
            assert slot.display_unit
            assert slot.number_round_length >= 0

    # ---- allocation

    async def test_the_alloc_map_covers_the_slots(self, ready: AbstractComputePlugin) -> None:
        alloc_map = await ready.create_alloc_map()
        offered = {k: v for k, v in (await ready.available_slots()).items() if v}
        assert {k: v for k, v in alloc_map.totals.items() if v} == offered
        assert alloc_map.available() == alloc_map.totals, "a fresh map has nothing allocated"

    async def test_the_described_map_is_the_map(self, ready: AbstractComputePlugin) -> None:
        spec = ready.alloc_map_spec()
        if spec is None:
            return
        stock = build_alloc_map(spec, await ready.list_devices())
        request = await self.some_request(ready)
        assert stock.allocate(request) == (await ready.create_alloc_map()).allocate(request)

    async def test_allocate_free_and_apply_keep_the_books(self, ready: AbstractComputePlugin) -> None:
        alloc_map = await ready.create_alloc_map()
        for slot, quantity in (await self.some_request(ready)).items():
            before = dict(alloc_map.available())
            held: list[DeviceAllocation] = []
            try:
                while len(held) < 50:
                    held.append(alloc_map.allocate({slot: quantity}))
            except InsufficientResource as e:
                assert e.data["slot"] == slot  # noqa: PT017  # the loop ends in this way or by its bound
            assert held
            for allocation in held:
                assert allocation.total(slot) == quantity
            if len(held) > 1:
                assert alloc_map.available()[slot] == before[slot] - quantity * len(held)
            alloc_map.free(held[-1])
            alloc_map.apply(held[-1])
            for allocation in held:
                alloc_map.free(allocation)
            assert alloc_map.available() == before

    async def test_more_than_everything_is_refused_and_changes_nothing(self, ready: AbstractComputePlugin) -> None:
        alloc_map = await ready.create_alloc_map()
        before = alloc_map.snapshot()
        for slot, total in (await ready.available_slots()).items():
            for quantity in (total + 1, Decimal(-1), Decimal("Infinity"), Decimal("NaN")):
                with pytest.raises(BackendError):
                    alloc_map.allocate({slot: quantity})
        with pytest.raises(UnsupportedResource):
            alloc_map.allocate({SlotName("no-such.slot"): Decimal(1)})
        assert alloc_map.snapshot() == before
        assert not alloc_map.allocate({SlotName("no-such.slot"): Decimal(0)}).slots, (
            "zero of an unknown slot is nothing"
        )

    async def test_a_wrong_allocation_is_refused(self, ready: AbstractComputePlugin) -> None:
        alloc_map = await ready.create_alloc_map()
        for slot in await ready.available_slots():
            wrong = DeviceAllocation(slots={slot: {DeviceId("no such device"): Decimal(1)}})
            for call in (alloc_map.apply, alloc_map.free):
                with pytest.raises(ResourceError):
                    call(wrong)

    # ---- hooks

    async def test_pre_create_may_be_repeated(self, ready: AbstractComputePlugin) -> None:
        allocation = await self.some_allocation(ready)
        state = ManagedState()
        first = await self.hook(ready, allocation, state).pre_create()
        saved = dict(state.data)
        second = await self.hook(ready, allocation, ManagedState(saved)).pre_create()
        assert first == second, "a crash after pre_create must not change the workload"
        check_config(first)

    async def test_every_call_may_be_repeated_by_another_instance(self, ready: AbstractComputePlugin) -> None:
        allocation = await self.some_allocation(ready)
        state = ManagedState()
        for name in ("pre_create", "post_create", "pre_terminate", "post_terminate"):
            for _ in range(2):
                await getattr(self.hook(ready, allocation, state), name)()
        assert len(msgspec.json.encode(state.data)) <= MANAGED_STATE_LIMIT

    async def test_the_end_is_safe_without_a_beginning(self, ready: AbstractComputePlugin) -> None:
        allocation = await self.some_allocation(ready)
        await self.hook(ready, allocation, ManagedState()).post_terminate()

    async def test_a_restart_and_a_recovery_are_served(self, ready: AbstractComputePlugin) -> None:
        allocation = await self.some_allocation(ready)
        state = ManagedState()
        config = await self.hook(ready, allocation, state).pre_create()
        for cause in (LifecycleCause.RESTART_IN_PLACE, LifecycleCause.RECOVER):
            again = self.hook(ready, allocation, state, cause=cause, attempt=2, previous_allocation=allocation)
            assert await again.pre_create() == config

    async def test_a_workload_without_devices_gets_nothing(self, ready: AbstractComputePlugin) -> None:
        assert await self.hook(ready, DeviceAllocation(), ManagedState()).pre_create() == WorkloadConfig()
        assert list(await ready.alloc_to_devices(DeviceAllocation())) == []

    async def test_attached_devices_are_those_of_the_allocation(self, ready: AbstractComputePlugin) -> None:
        allocation = await self.some_allocation(ready)
        attached = await ready.alloc_to_devices(allocation)
        assert {a.device_id for a in attached} == allocation.device_ids()
        for device in attached:
            assert device.model_name
            msgspec.json.encode(dict(device.data))

    # ---- metrics

    async def test_node_metrics_are_well_formed(self, ready: AbstractComputePlugin) -> None:
        ids = {d.device_id for d in await ready.list_devices()}
        for at in (1000.0, 1005.0):
            check_measurements(await ready.gather_node_metrics(StatContext(at=at)), ids)

    async def test_workload_metrics_are_of_the_kernels_asked_for(self, ready: AbstractComputePlugin) -> None:
        allocation = await self.some_allocation(ready)
        ctx = StatContext(at=1000.0, allocations={KERNEL: allocation})
        found = await ready.gather_workload_metrics(ctx, [KERNEL])
        assert set(found) <= {KERNEL}
        for measurements in found.values():
            check_measurements(measurements, set(allocation.device_ids()))
        assert not await ready.gather_workload_metrics(ctx, [])

    async def test_node_info_is_text(self, ready: AbstractComputePlugin) -> None:
        info = await ready.get_node_info()
        assert all(isinstance(k, str) and isinstance(v, str) for k, v in info.extra.items())


def check_config(config: WorkloadConfig) -> None:
    """What a runtime relies on in a WorkloadConfig."""
    for mount in config.mounts:
        assert mount.source.startswith("/")
        assert mount.target.startswith("/")
    for device in config.devices:
        assert device.source.startswith("/dev/") or device.cdi_name
        assert set(device.permissions) <= set("rwm")
    texts: Mapping[str, str]
    for texts in (config.env_vars, config.resource_data):
        assert all(isinstance(k, str) and isinstance(v, str) and "\n" not in k + v for k, v in texts.items())
    assert all(core >= 0 for core in config.cpuset)
    assert len(set(config.cpuset)) == len(config.cpuset)
    assert config.cpu_limit is None or config.cpu_limit > 0
    assert config.memory_limit_bytes is None or config.memory_limit_bytes > 0


def check_measurements(measurements: Sequence[Measurement], device_ids: set[DeviceId]) -> None:
    """Units, ranges, and one value for each key and device."""
    seen = [(m.key, m.device_id) for m in measurements]
    assert len(set(seen)) == len(seen)
    for m in measurements:
        assert m.unit_hint in UNITS
        assert m.stats <= STATS
        assert math.isfinite(m.value)
        assert m.value >= 0
        assert m.device_id is None or m.device_id in device_ids
        if m.capacity is not None:
            assert math.isfinite(m.capacity)
            if m.kind is MetricKind.GAUGE:
                assert m.value <= m.capacity * 1.001
