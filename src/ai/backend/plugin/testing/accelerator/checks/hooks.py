"""Checks of hooks that are repeated, interrupted or continued by another process, and of calls that overlap."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import InsufficientResource
from ai.backend.plugin.accelerator import (
    MANAGED_STATE_LIMIT,
    LifecycleCause,
    ManagedState,
    StatContext,
    WorkloadConfig,
    responses,
)
from ai.backend.plugin.testing.accelerator.checks.registry import CheckFailed, Checks, NotApplicable, expect, shown
from ai.backend.plugin.testing.accelerator.checks.subject import HOOKS, KERNEL, OTHER_KERNEL, Subject, restored

CHECKS = Checks()
_HOOKS = "accelerator v2, Lifecycle semantics; AbstractLifecycleHook"
_TRIES = 3
_LISTING = ("list_devices", "configurable_slots", "available_slots", "variant_namespaces", "get_node_info")


@CHECKS.add(_HOOKS, is_basic=True)
async def pre_create_gives_a_usable_config(subject: Subject) -> None:
    """The agent takes the WorkloadConfig as it is."""
    await subject.hook("pre_create", await subject.an_allocation(), ManagedState())


@CHECKS.add(_HOOKS)
async def pre_create_may_be_repeated(subject: Subject) -> None:
    """A repeat gives an equal config: the workload may have been made from the first one."""
    allocation, state = await subject.an_allocation(), ManagedState()
    first = await subject.hook("pre_create", allocation, state)
    second = await subject.hook("pre_create", allocation, restored(state))
    expect(first == second, f"the second config differs: {_differing(first, second)}")


def _differing(one: WorkloadConfig, other: WorkloadConfig) -> str:
    names = [name for name in WorkloadConfig.__slots__ if getattr(one, name) != getattr(other, name)]
    return "; ".join(f"{name} {shown(getattr(one, name))} and {shown(getattr(other, name))}" for name in names)


@CHECKS.add(_HOOKS)
async def every_call_may_be_repeated_by_another_instance(subject: Subject) -> None:
    """Each call twice in a row, each on a hook of its own."""
    allocation, state = await subject.an_allocation(), ManagedState()
    for name in HOOKS:
        for _ in range(2):
            await subject.hook(name, allocation, state)


@CHECKS.add("decision 0054")
async def the_managed_state_is_small_json(subject: Subject) -> None:
    """The state that a hook stores is JSON of at most 64 KiB after every call."""
    allocation, state = await subject.an_allocation(), ManagedState()
    for name in HOOKS:
        await subject.hook(name, allocation, state)
        expect(isinstance(state.data, dict), f"after {name} the managed state is {shown(state.data)}")
        expect(type(state.version) is int, f"after {name} the version of the managed state is {shown(state.version)}")
        expect(
            restored(state).data == state.data, f"after {name} the managed state is another once it was kept as JSON"
        )
        size = len(msgspec.json.encode(state.data))
        expect(size <= MANAGED_STATE_LIMIT, f"after {name} the managed state has {size} bytes")


@CHECKS.add(_HOOKS)
async def the_end_is_safe_without_a_beginning(subject: Subject) -> None:
    """``post_terminate`` works where ``pre_create`` died before its first effect."""
    await subject.hook("post_terminate", await subject.an_allocation(), ManagedState())


@CHECKS.add("decision 0053")
async def a_restart_and_a_recovery_are_served(subject: Subject) -> None:
    """The cause RECOVER repeats a call; after a restart in place the workload is another one on the same devices."""
    allocation, state = await subject.an_allocation(), ManagedState()
    config = await subject.hook("pre_create", allocation, state)
    again = await subject.hook("pre_create", allocation, state, cause=LifecycleCause.RECOVER)
    expect(again == config, f"with the cause RECOVER the config differs: {_differing(config, again)}")
    restart: dict[str, Any] = {"cause": LifecycleCause.RESTART_IN_PLACE, "previous_allocation": allocation}
    for name in ("pre_terminate", "post_terminate"):
        await subject.hook(name, allocation, state, **restart)
    state = ManagedState()
    new = await subject.hook("pre_create", allocation, state, attempt=2, **restart)
    for name in ("devices", "cpuset", "memory_nodes"):
        old, now = getattr(config, name), getattr(new, name)
        expect(now == old, f"a restart in place has other {name}: {shown(old)} and {shown(now)}")
    await subject.hook("post_terminate", allocation, state, attempt=2)


@CHECKS.add(_HOOKS)
async def a_crash_at_any_call_is_survived(subject: Subject) -> None:
    """The agent dies around any call: the next process repeats it and goes on, with the state before or after it."""
    allocation = await subject.an_allocation()
    for last in range(len(HOOKS)):
        for is_kept in (True, False):
            durable: list[ManagedState] = [ManagedState()]

            async def save(state: ManagedState, durable: list[ManagedState] = durable) -> None:
                durable.append(restored(state))

            state = ManagedState(saver=save)
            config: WorkloadConfig | None = None
            for number, name in enumerate(HOOKS[: last + 1]):
                made = await subject.hook(name, allocation, state)
                config = config or made
                if number < last or is_kept:
                    await save(state)
            async with subject.remade() as again:
                await _continue_after_crash(again, allocation, durable[-1], last, config if is_kept else None)


async def _continue_after_crash(
    again: Subject, allocation: DeviceAllocation, state: ManagedState, last: int, config: WorkloadConfig | None
) -> None:
    for number, name in enumerate(HOOKS[last:]):
        cause = LifecycleCause.RECOVER if number == 0 else LifecycleCause.CREATE
        try:
            made = await again.hook(name, allocation, state, cause=cause)
        except CheckFailed as e:
            raise CheckFailed(f"after a crash around {HOOKS[last]}: {e}") from e
        if name == "pre_create" and config is not None:
            expect(made == config, f"after a crash in pre_create the config differs: {_differing(config, made)}")


@CHECKS.add(_HOOKS)
async def a_cancelled_call_does_no_harm(subject: Subject) -> None:
    """A call that is cancelled at its deadline can be undone, and the devices be given again."""
    allocation, state = await subject.an_allocation(), ManagedState()
    for name in ("pre_create", "post_create"):
        begun = asyncio.create_task(subject.hook(name, allocation, state))
        await asyncio.sleep(0)
        begun.cancel()
        await asyncio.gather(begun, return_exceptions=True)
    await subject.hook("post_terminate", allocation, restored(state))
    await subject.hook("pre_create", allocation, ManagedState())


@CHECKS.add(_HOOKS)
async def workloads_do_not_mix(subject: Subject) -> None:
    """Hooks of two kernels at once give what each gives alone."""
    request = await subject.a_request()
    alloc_map = await subject.call("create_alloc_map")
    held = []
    for kernel in (KERNEL, OTHER_KERNEL):
        try:
            held.append((kernel, alloc_map.allocate(request)))
        except InsufficientResource:
            break
    alone = []
    for kernel, allocation in held:
        rounds = []
        for _ in range(2):
            state = ManagedState()
            rounds.append(_parts(await subject.hook("pre_create", allocation, state, kernel)))
            await subject.hook("post_terminate", allocation, state, kernel)
        alone.append({part: value for part, value in rounds[0].items() if rounds[1].get(part) == value})
    together = await asyncio.gather(*(subject.hook("pre_create", a, ManagedState(), k) for k, a in held))
    for before, config in zip(alone, together, strict=True):
        beside = _parts(config)
        other = [part for part, value in before.items() if beside.get(part) != value]
        expect(not other, f"beside another workload, the config has another {', '.join(other)}")


def _parts(config: WorkloadConfig) -> dict[str, object]:
    """Returns a config by its fields, maps by their keys: some of it, such as a token, may be new each time."""
    flat: dict[str, object] = {}
    for name in WorkloadConfig.__slots__:
        value = getattr(config, name)
        flat |= {f"{name}[{k}]": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat


@CHECKS.add(_HOOKS)
async def a_workload_without_devices_gets_nothing(subject: Subject) -> None:
    """Nothing is held, so nothing is configured and shown."""
    config = await subject.hook("pre_create", DeviceAllocation(), ManagedState())
    expect(config == WorkloadConfig(), f"a workload that holds nothing gets {shown(config)}")
    attached = list(await subject.call("alloc_to_devices", DeviceAllocation()))
    expect(attached == [], f"of nothing, alloc_to_devices shows {shown(attached)}")


@CHECKS.add("peer facts 2.1, get_attached_devices")
async def attached_devices_are_those_of_the_allocation(subject: Subject) -> None:
    """Users see the devices that they have, with their models."""
    allocation = await subject.an_allocation()
    validate = partial(responses.attached, held=allocation)
    attached = await subject.validated("alloc_to_devices", validate, allocation)
    ids = {device.device_id for device in attached}
    expect(ids == allocation.device_ids(), f"alloc_to_devices shows {sorted(ids)} of {sorted(allocation.device_ids())}")
    for device in attached:
        expect(device.model_name, f"{device.device_id} has no model_name")
        msgspec.json.encode(dict(device.data))


async def _everything(subject: Subject) -> None:
    for method in _LISTING:
        await subject.call(method)
    try:
        allocation = await subject.an_allocation()
    except NotApplicable:
        allocation = DeviceAllocation()
    await subject.call("alloc_to_devices", allocation)
    ctx = StatContext(at=1000.0, allocations={KERNEL: allocation})
    await subject.call("gather_node_metrics", ctx)
    await subject.call("gather_workload_metrics", ctx, [KERNEL])
    if subject.plugin.capabilities.process_metrics:
        await subject.call("gather_process_metrics", ctx, {})
    if allocation.slots:
        state = ManagedState()
        for name in HOOKS:
            await subject.hook(name, allocation, state)


@CHECKS.add("accelerator v2, The contract: host processes")
async def calls_leave_the_event_loop_free(subject: Subject) -> None:
    """A plugin that does not say that it is ``blocking`` never holds the event loop for long. The best of three rounds
    counts: a busy machine is not the plugin's fault."""
    if subject.plugin.capabilities.blocking:
        raise NotApplicable("the plugin is blocking, and so has a process of its own")
    best: dict[str, float] = {}
    for _ in range(_TRIES):
        subject.held_s.clear()
        await _everything(subject)
        for method, seconds in subject.held_s.items():
            best[method] = min(seconds, best.get(method, seconds))
        if all(seconds <= subject.max_block_s for seconds in best.values()):
            return
    worst = max(best, key=lambda method: best[method])
    raise CheckFailed(
        f"{worst} holds the event loop for {best[worst] * 1000:.0f} ms ({subject.max_block_s * 1000:.0f} ms are"
        " allowed): use asyncio.to_thread, or declare PluginCapabilities(blocking=True)"
    )


@CHECKS.add("AbstractComputePlugin: calls for different workloads may run concurrently")
async def calls_may_overlap(subject: Subject) -> None:
    """The same answers come when several calls run at once."""
    alone = [await subject.call(method) for method in _LISTING[:4]]
    together = await asyncio.gather(*(subject.call(method) for _ in range(3) for method in _LISTING[:4]))
    for number, answer in enumerate(together):
        method = _LISTING[number % 4]
        is_same = _steady(method, answer) == _steady(method, alone[number % 4])
        expect(is_same, f"{method} answers something else while other calls run")


def _steady(method: str, answer: object) -> object:
    """Returns an answer without what may change by itself: a device's health, and what follows from it."""
    if method == "list_devices":
        return [(d.device_id, d.slots) for d in answer]  # type: ignore[attr-defined]  # settled to devices
    return None if method == "available_slots" else answer
