"""Every check of the conformance kit can fail: a plugin that breaks one promise fails that check, and no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from ai.backend.accelerator.mock.plugin import MockHook, MockPlugin, MockSettings
from ai.backend.common.devices import AllocationStrategy, AllocMapSpec, ComputeDevice, DeviceAllocation
from ai.backend.common.errors import Conflict, InsufficientResource, NotFound
from ai.backend.common.ids import DeviceId, KernelId
from ai.backend.common.structs import replace
from ai.backend.core.allocation.stock_maps import DiscreteAllocMap
from ai.backend.plugin.accelerator import (
    AbstractAllocMap,
    AbstractComputePlugin,
    DeviceMapping,
    LifecycleCause,
    Measurement,
    Mount,
    NodeInfo,
    StatContext,
    WorkloadConfig,
    build_alloc_map,
)
from ai.backend.plugin.testing.accelerator.checks import CHECKS, Outcome, Result, Subject, run_all
from ai.backend.plugin.testing.accelerator.checks.subject import OTHER_KERNEL

DECLARATION = """
slot_name = "gpu"
topology = "nvlink-pairs"
[variants.maker.generation]
match = "minimum"
[formats.device]
human_readable_name = "GPU"
display_unit = "GPU"
[[devices]]
mother_uuid = "a"
count = 4
model_name = "Model A"
numa_node = [0, 1]
memory_size = "40g"
variants.maker = { generation = "9" }
partitions = [{ name = "1g.10gb", memory_size = "10g", max = 2 }]
[[devices]]
mother_uuid = "sick"
model_name = "Model A"
is_healthy = false
[[devices]]
mother_uuid = "far"
model_name = "Model B"
is_attached = false
"""


class Sound(MockPlugin):
    """Keeps every promise. ``is_second``: made as after a restart."""

    is_second = False
    handle: int
    running: int


class Bare(BaseModel):
    """Takes any key."""


class Books(DiscreteAllocMap):
    """A map of the plugin's own that does as the stock one."""


def broken(**members: Any) -> type[Sound]:
    return type("Broken", (Sound,), members)


def hooked(**members: Any) -> type[Sound]:
    hook = type("BrokenHook", (MockHook,), members)
    return broken(create_lifecycle_hook=lambda self, workload, held, context: hook(workload, held, context, self))


def mapped(**members: Any) -> type[Sound]:
    """A plugin with a map of its own."""
    books = type("BrokenBooks", (Books,), members)

    async def create_alloc_map(self: Sound) -> AbstractAllocMap:
        made: AbstractAllocMap = books(self.mock_state.present_devices())
        return made

    return broken(alloc_map_spec=lambda self: None, create_alloc_map=create_alloc_map)


def fails(error: Exception, when: Callable[[Any], bool] = lambda _: True, super_: Any = None) -> Any:
    """A method that raises where ``when`` says so of its object."""

    async def method(self: Any, *arguments: Any) -> Any:
        if when(self):
            raise error
        return await super_(self, *arguments) if super_ else None

    return method


def changed(name: str, change: Callable[[Any, Any], Any]) -> type[Sound]:
    """A plugin whose ``name`` answers what ``change`` of the plugin and the true answer gives."""
    true = getattr(Sound, name)

    async def method(self: Sound, *arguments: Any) -> Any:
        return change(self, await true(self, *arguments))

    return broken(**{name: method})


def env(config: WorkloadConfig, text: str) -> WorkloadConfig:
    return replace(config, env_vars={**config.env_vars, "GPU_NOTE": text})


async def remembers_in_state(self: MockHook) -> WorkloadConfig:
    state, config = self.context.state.data, await MockHook.pre_create(self)
    repeated = state.get("seen") and self.context.cause is LifecycleCause.CREATE
    state["seen"] = True
    return env(config, "again") if repeated else config


async def diagnoses_with_a_reset(self: MockHook) -> WorkloadConfig:
    if self.context.is_diagnostic:
        self._plugin.mock_state.hardware.off = sorted(self.device_alloc.device_ids())
    return await MockHook.pre_create(self)


async def is_new_in_a_restart(self: MockHook) -> WorkloadConfig:
    config = await MockHook.pre_create(self)
    other = DeviceMapping(source="/dev/null", target="/dev/gpu1")
    return replace(config, devices=(other,)) if self.context.cause is LifecycleCause.RESTART_IN_PLACE else config


async def notes_in_state(self: MockHook) -> WorkloadConfig:
    self.context.state.data["begun"] = True
    return await MockHook.pre_create(self)


async def ends_only_what_began(self: MockHook) -> None:
    if not self.context.state.data:
        raise KeyError("begun")
    await MockHook.post_terminate(self)


async def created_once(self: MockHook) -> None:
    if self.context.state.data.setdefault("created", 0) and self.context.cause is LifecycleCause.CREATE:
        raise RuntimeError("it is created already")
    self.context.state.data["created"] = 1


async def keeps_too_much(self: MockHook) -> None:
    self.context.state.data["log"] = "x" * 70_000
    await MockHook.post_terminate(self)


class _Memory(MockHook):
    """Knows in memory what it prepared."""

    async def pre_create(self) -> WorkloadConfig:
        self._plugin.__dict__["prepared"] = True
        return await super().pre_create()

    async def post_create(self) -> None:
        if not self._plugin.__dict__.get("prepared"):
            raise RuntimeError("this workload is unknown")


class _Lock(MockHook):
    """Holds a lock that a cancellation leaves locked."""

    async def pre_create(self) -> WorkloadConfig:
        locked: set[KernelId] = self._plugin.__dict__.setdefault("locked", set())
        if self.workload.kernel_id in locked:
            raise RuntimeError("it is locked")
        locked.add(self.workload.kernel_id)
        await asyncio.sleep(0)
        locked.discard(self.workload.kernel_id)
        return await super().pre_create()


class _Counter(MockHook):
    """Numbers what runs at the same time."""

    running: ClassVar[int] = 0

    async def pre_create(self) -> WorkloadConfig:
        type(self).running += 1
        try:
            await asyncio.sleep(0)
            return (
                env(await super().pre_create(), str(type(self).running))
                if self.device_alloc.slots
                else WorkloadConfig()
            )
        finally:
            type(self).running -= 1


async def gives_a_regular_file(self: MockHook) -> WorkloadConfig:
    config = await MockHook.pre_create(self)
    device = DeviceMapping(source=__file__, target="/dev/card0")
    return replace(config, devices=(device,)) if config.env_vars else config


async def mounts_proc(self: MockHook) -> WorkloadConfig:
    return WorkloadConfig(mounts=(Mount(source="/tmp", target="/proc/x"),))


async def always_says_something(self: MockHook) -> WorkloadConfig:
    return env(await MockHook.pre_create(self), "hello")


async def names_a_stranger(self: MockHook) -> WorkloadConfig:
    stranger = DeviceMapping(source="/dev/null", target="/dev/gpu0", cdi_name="backend.ai/mock=nobody")
    config = await MockHook.pre_create(self)
    return replace(config, devices=(stranger,)) if self.device_alloc.slots else config


def anonymous(self: Books, request: Any, **options: Any) -> DeviceAllocation:
    try:
        return DiscreteAllocMap.allocate(self, request, **options)
    except InsufficientResource:
        raise InsufficientResource("no") from None


def chokes_on_nan(self: Books, request: Any, **options: Any) -> DeviceAllocation:
    if any(Decimal(q).is_nan() for q in request.values()):
        raise ValueError("cannot convert NaN to integer")
    return DiscreteAllocMap.allocate(self, request, **options)


def frees_anything(self: Books, allocation: DeviceAllocation) -> None:
    if "no such device" not in allocation.device_ids():
        DiscreteAllocMap.free(self, allocation)


def all_of_one_device(self: Books, request: Any, **options: Any) -> DeviceAllocation:
    given = DiscreteAllocMap.allocate(self, request, **options)
    return DeviceAllocation(slots={slot: {min(held): given.total(slot)} for slot, held in given.slots.items()})


async def half_a_map(self: Sound) -> AbstractAllocMap:
    return build_alloc_map(self.alloc_map_spec(), self.mock_state.present_devices()[:2])


async def filled(self: Sound) -> AbstractAllocMap:
    return build_alloc_map(
        AllocMapSpec(kind="discrete", strategy=AllocationStrategy.FILL), self.mock_state.present_devices()[::-1]
    )


async def overlapping(self: Sound) -> Any:
    others = getattr(self, "running", 0)
    self.running = others + 1
    await asyncio.sleep(0)
    self.running -= 1
    return [] if others else await MockPlugin.configurable_slots(self)


_held_s: list[float] = []
"""Seconds for which the fault of :func:`blocks` held the event loop, by the clock of the checks."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    times = SimpleNamespace(perf_counter=lambda: time.perf_counter() + sum(_held_s))
    monkeypatch.setattr("ai.backend.plugin.testing.accelerator.checks.subject.time", times)


async def blocks(self: Sound) -> NodeInfo:
    _held_s.append(0.15)
    return NodeInfo()


async def ends(self: Sound) -> AsyncIterator[Any]:
    return
    yield


async def opens(self: Sound) -> None:
    await MockPlugin.init(self)
    self.handle = 1


async def closes(self: Sound) -> None:
    del self.handle


def every_other_time(self: Any, found: Sequence[Any]) -> Sequence[Any]:
    self.calls = getattr(self, "calls", 0) + 1
    return found[: self.calls % 2]


async def knows_what_it_gave(self: Sound, held: DeviceAllocation) -> Any:
    return () if self.is_second else await MockPlugin.alloc_to_devices(self, held)


async def other_processes(self: Sound, ctx: StatContext, pids: Mapping[int, KernelId]) -> Any:
    return {pid: [] for pid in pids}


async def strangers_metrics(self: Sound, ctx: StatContext, pids: Mapping[int, KernelId]) -> Any:
    return {1: [Measurement(key="gpu_mem", value=1.0, unit_hint="bytes")]}


async def any_profiles(self: Sound, device_id: DeviceId) -> Any:
    try:
        return await MockPlugin.partition_profiles(self, device_id)
    except NotFound:
        return []


def strictly(name: str, is_done: Callable[[Sound, DeviceId], bool], error: Exception) -> type[Sound]:
    """A power call that refuses to be repeated."""
    true = getattr(Sound, name)

    async def method(self: Sound, device_id: DeviceId) -> None:
        if is_done(self, device_id):
            raise error
        await true(self, device_id)

    return broken(**{name: method})


async def resets_anything(self: Sound, device_id: DeviceId) -> None:
    if device_id not in self.mock_state.devices:
        raise NotFound(f"there is no device {device_id}")


async def destroys_anything(self: Sound, partition_id: DeviceId) -> None:
    self.mock_state.hardware.partitions.pop(partition_id, None)


def one_way(_: Sound, devices: Sequence[ComputeDevice]) -> list[ComputeDevice]:
    return [replace(d, links=()) if d.device_id == "a-0" else d for d in devices]


def measured(**fields: Any) -> Callable[[Any, Any], Any]:
    return lambda _, found: [*found, Measurement(**{"key": "gpu_x", "value": 1.0, "unit_hint": "count", **fields})]


async def ever_new_metrics(self: Sound, ctx: StatContext) -> Any:
    return [Measurement(key=f"gpu_{int(ctx.at)}", value=1.0, unit_hint="count")]


FAULTS: Mapping[str, type[Sound]] = {
    "its_key_is_a_slot_name": broken(version=""),
    "settings_have_defaults_and_refuse_unknown_keys": broken(settings_model=Bare),
    "options_have_a_schema": broken(
        options_schema=classmethod(lambda _: {"type": "object", "properties": {"mode": {"type": "nonsense"}}})
    ),
    "it_says_what_it_was_verified_on": broken(verified_on=" "),
    "flags_promise_their_protocols": broken(
        capabilities=replace(Sound.capabilities, programmable=True, attachable=True),
        attachable_devices=None,
    ),
    "cleanup_is_safe_without_init": broken(init=opens, cleanup=closes),
    "it_starts_and_stops": broken(init=fails(OSError("no driver"))),
    "slots_can_be_shown": changed("configurable_slots", lambda _, slots: [replace(s, display_unit="") for s in slots]),
    "devices_are_well_formed": changed(
        "list_devices", lambda _, devices: [replace(d, hw_location="") for d in devices]
    ),
    "device_ids_are_unique_and_survive_a_restart": changed(
        "list_devices", lambda self, devices: devices[::-1] if self.is_second else devices
    ),
    "slots_are_well_formed": broken(key_is_slot_prefix=True),
    "the_totals_are_those_of_the_devices": changed("available_slots", lambda _, t: {k: v - 1 for k, v in t.items()}),
    "listing_is_repeatable": changed("variant_namespaces", every_other_time),
    "links_are_symmetric": changed("list_devices", one_way),
    "variant_properties_are_declared": changed("variant_namespaces", lambda _, found: []),
    "the_alloc_map_covers_the_slots": broken(create_alloc_map=half_a_map),
    "the_manager_map_and_the_agent_map_agree": broken(create_alloc_map=filled),
    "allocate_free_and_apply_keep_the_books": mapped(allocate=anonymous),
    "more_than_everything_is_refused_and_changes_nothing": mapped(allocate=chokes_on_nan),
    "a_wrong_allocation_is_refused": mapped(free=frees_anything),
    "random_requests_keep_the_invariants": mapped(allocate=all_of_one_device),
    "an_allocation_is_applied_again_after_a_restart": broken(alloc_to_devices=knows_what_it_gave),
    "pre_create_gives_a_usable_config": hooked(pre_create=mounts_proc),
    "sources_of_the_config_are_there": hooked(pre_create=gives_a_regular_file),
    "pre_create_may_be_repeated": hooked(pre_create=remembers_in_state),
    "every_call_may_be_repeated_by_another_instance": hooked(post_create=created_once),
    "the_managed_state_is_small_json": hooked(post_terminate=keeps_too_much),
    "the_end_is_safe_without_a_beginning": hooked(pre_create=notes_in_state, post_terminate=ends_only_what_began),
    "a_restart_and_a_recovery_are_served": hooked(pre_create=is_new_in_a_restart),
    "a_crash_at_any_call_is_survived": broken(create_lifecycle_hook=lambda self, w, a, c: _Memory(w, a, c, self)),
    "a_cancelled_call_does_no_harm": broken(create_lifecycle_hook=lambda self, w, a, c: _Lock(w, a, c, self)),
    "workloads_do_not_mix": broken(create_lifecycle_hook=lambda self, w, a, c: _Counter(w, a, c, self)),
    "a_diagnosis_takes_nothing": hooked(pre_create=diagnoses_with_a_reset),
    "a_workload_without_devices_gets_nothing": hooked(pre_create=always_says_something),
    "attached_devices_are_those_of_the_allocation": changed(
        "alloc_to_devices", lambda _, found: [replace(d, model_name="") for d in found]
    ),
    "calls_leave_the_event_loop_free": broken(get_node_info=blocks),
    "calls_may_overlap": broken(configurable_slots=overlapping),
    "node_metrics_are_well_formed": changed(
        "gather_node_metrics", measured(unit_hint="percent", value=101.0, capacity=100.0)
    ),
    "the_names_of_metrics_stay": broken(gather_node_metrics=ever_new_metrics),
    "workload_metrics_are_of_the_kernels_asked_for": changed(
        "gather_workload_metrics", lambda _, found: {**found, OTHER_KERNEL: []}
    ),
    "process_metrics_are_of_the_processes_asked_for": broken(gather_process_metrics=other_processes),
    "node_info_is_text": changed("get_node_info", lambda _, info: replace(info, extra={"note": "x" * 5000})),
    "partition_profiles_are_told": broken(partition_profiles=any_profiles),
    "partitions_come_and_go": strictly(
        "destroy_partition", lambda self, p: p not in self.mock_state.hardware.partitions, NotFound("it is gone")
    ),
    "a_partition_in_use_stays": broken(destroy_partition=destroys_anything),
    "power_can_be_controlled": strictly(
        "power_off", lambda self, d: d in self.mock_state.hardware.off, Conflict("it is off already")
    ),
    "a_device_in_use_stays_on": broken(reset=resets_anything),
    "images_are_loaded": changed("programmed_image", lambda _, image: None),
    "devices_are_attached_and_detached": strictly(
        "detach", lambda self, d: d not in self.mock_state.hardware.attached, Conflict("it is detached")
    ),
    "health_is_watched": broken(watch_health=ends),
    "the_cdi_spec_is_well_formed": changed("cdi_spec", lambda _, spec: {**spec, "cdiVersion": "0.5.0"}),
    "cdi_names_of_hooks_are_in_the_spec": hooked(pre_create=names_a_stranger),
}
"""Check -> a plugin that fails it."""
CONSEQUENCES = {"flags_promise_their_protocols": {"devices_are_attached_and_detached"}}
"""What fails with it, inevitably."""


def twins(_: Sound, devices: Sequence[ComputeDevice]) -> list[ComputeDevice]:
    return [replace(devices[0], links=())] * 2


def negative(_: Sound, devices: Sequence[ComputeDevice]) -> list[ComputeDevice]:
    return [replace(d, slots=(replace(d.slots[0], amount=Decimal(-1)),)) for d in devices]


MORE_FAULTS: Sequence[tuple[str, type[Sound], str]] = [
    ("devices_are_well_formed", changed("list_devices", twins), "device 'a-0' is listed twice"),
    ("devices_are_well_formed", changed("list_devices", negative), "amount is -1"),
    (
        "devices_are_well_formed",
        changed("list_devices", lambda _, devices: [replace(d, numa_node=-1) for d in devices]),
        "an unknown node is None",
    ),
    ("devices_are_well_formed", changed("list_devices", lambda _, __: 7), "list_devices"),
    ("the_alloc_map_covers_the_slots", broken(alloc_map_spec=lambda self: AllocMapSpec(kind="odd")), "odd"),
    ("allocate_free_and_apply_keep_the_books", mapped(free=lambda self, allocation: None), "has not 1 gpu.device free"),
    (
        "node_metrics_are_well_formed",
        changed("gather_node_metrics", measured(value=float("nan"))),
        "gpu_x is nan, not a finite number",
    ),
    (
        "node_metrics_are_well_formed",
        changed("gather_node_metrics", measured(unit_hint="furlongs")),
        "gpu_x has the unknown unit 'furlongs'",
    ),
    ("node_metrics_are_well_formed", changed("gather_node_metrics", measured(key="a b")), "'a b' is no name"),
    (
        "process_metrics_are_of_the_processes_asked_for",
        broken(
            capabilities=replace(Sound.capabilities, process_metrics=True),
            gather_process_metrics=strangers_metrics,
        ),
        "tells of [1]",
    ),
    ("calls_leave_the_event_loop_free", broken(get_node_info=blocks), "get_node_info holds the event loop for 1"),
]
"""Check, plugin, and what the reason says."""


async def outcomes(cls: type[Sound], folder: Path) -> list[Outcome]:
    declared = folder / "mock.toml"
    declared.write_text(DECLARATION)
    count = 0

    async def make() -> Subject:
        nonlocal count
        count += 1
        settings = MockSettings(config_path=declared, state_path=folder / f"state-{count}.json")

        async def remake(_: AbstractComputePlugin) -> AbstractComputePlugin:
            again = cls(settings)
            again.is_second = True
            return again

        return Subject(plugin=cls(settings), remake=remake, image="/images/a.bit", deadline_s=5.0)

    return await run_all(CHECKS, make)


async def test_a_sound_plugin_passes(tmp_path: Path) -> None:
    found = await outcomes(Sound, tmp_path)
    assert [(o.check, o.reason) for o in found if o.result is Result.FAILED] == []
    assert {o.check for o in found if o.result is not Result.PASSED} == {
        "process_metrics_are_of_the_processes_asked_for"
    }


def test_there_is_a_fault_for_every_check() -> None:
    assert set(FAULTS) == {check.name for check in CHECKS}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_broken_plugin_fails_that_check_alone(name: str, tmp_path: Path) -> None:
    found = await outcomes(FAULTS[name], tmp_path)
    failed = {o.check: o.reason for o in found if o.result is Result.FAILED}
    assert set(failed) == {name, *CONSEQUENCES.get(name, ())}, failed
    assert all(failed.values())


@pytest.mark.parametrize(("name", "plugin", "words"), MORE_FAULTS)
async def test_the_reason_says_what_is_wrong(name: str, plugin: type[Sound], words: str, tmp_path: Path) -> None:
    reasons = {o.check: o.reason for o in await outcomes(plugin, tmp_path) if o.result is Result.FAILED}
    assert words in reasons[name]


async def test_a_call_that_hangs_is_told_with_its_name(tmp_path: Path) -> None:
    async def hangs(self: Sound) -> NodeInfo:
        await asyncio.Event().wait()
        raise AssertionError

    plugin = broken(get_node_info=hangs)(MockSettings())

    async def make() -> Subject:
        return Subject(plugin=plugin, remake=make, deadline_s=0.05)  # type: ignore[arg-type]  # it is not asked

    (outcome,) = await run_all([c for c in CHECKS if c.name == "node_info_is_text"], make)
    assert outcome == Outcome("node_info_is_text", Result.FAILED, "get_node_info took longer than 0.05 s")


async def test_every_workload_that_is_begun_is_ended(tmp_path: Path) -> None:
    """On a node, leases and the like of a check must not stay."""
    open_: set[tuple[KernelId, int]] = set()
    seen: set[tuple[KernelId, int]] = set()

    class Noted(MockHook):
        async def pre_create(self) -> WorkloadConfig:
            if self.device_alloc.slots:
                open_.add((self.workload.kernel_id, self.context.attempt))
                seen.update(open_)
            return await super().pre_create()

        async def post_terminate(self) -> None:
            open_.discard((self.workload.kernel_id, self.context.attempt))
            await super().post_terminate()

    found = await outcomes(broken(create_lifecycle_hook=lambda self, w, a, c: Noted(w, a, c, self)), tmp_path)
    assert [o for o in found if o.result is Result.FAILED] == []
    assert len(seen) >= 3
    assert open_ == set()
