"""Checks hooks that are repeated, interrupted or continued by another process, and calls that overlap."""

from __future__ import annotations

import asyncio
import os
import stat
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
from ai.backend.plugin.testing.accelerator.checks.registry import (
    CheckFailed,
    Checks,
    NotApplicable,
    expect,
    format_value,
)
from ai.backend.plugin.testing.accelerator.checks.subject import HOOKS, KERNEL, OTHER_KERNEL, Subject, restore_state

CHECKS = Checks()
_HOOKS_SOURCE = "accelerator v2, Lifecycle semantics; AbstractLifecycleHook"
_MAX_ROUNDS = 3
_LISTING_METHODS = ("list_devices", "configurable_slots", "available_slots", "variant_namespaces", "get_node_info")


@CHECKS.add(_HOOKS_SOURCE, is_basic=True)
async def pre_create_gives_a_usable_config(subject: Subject) -> None:
    """The configuration (``WorkloadConfig``) that ``pre_create`` returns is valid for the agent."""
    await subject.hook("pre_create", await subject.an_allocation(), ManagedState())


@CHECKS.add("WorkloadConfig: devices, mounts")
async def sources_of_the_config_are_there(subject: Subject) -> None:
    """The files of devices are character or block devices, and the mounted paths exist, as a runtime wants them."""
    if not subject.has_device_files:
        raise NotApplicable("the plugin reads a recording of another machine")
    config = await subject.hook("pre_create", await subject.an_allocation(), ManagedState())
    for device in config.devices:
        if device.source:
            mode = _file_mode_of(device.source, "the source of a device")
            is_device = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
            expect(is_device, f"pre_create: {format_value(device.source)} is no character or block device")
    for mount in config.mounts:
        _file_mode_of(mount.source, "the source of a mount")


def _file_mode_of(path: str, subject_name: str) -> int:
    try:
        return os.stat(path).st_mode  # noqa: PTH116  # as text, as the plugin gave it
    except OSError as e:
        raise CheckFailed(f"pre_create: {subject_name}, {format_value(path)}, cannot be read: {e.strerror}") from None


@CHECKS.add(_HOOKS_SOURCE)
async def pre_create_may_be_repeated(subject: Subject) -> None:
    """A repeated ``pre_create`` gives an equal config: the workload may have been made from the first one."""
    allocation, state = await subject.an_allocation(), ManagedState()
    first_config = await subject.hook("pre_create", allocation, state)
    second_config = await subject.hook("pre_create", allocation, restore_state(state))
    expect(
        first_config == second_config, f"the second config differs: {_differing_fields(first_config, second_config)}"
    )


def _differing_fields(first_config: WorkloadConfig, second_config: WorkloadConfig) -> str:
    field_names = [
        field_name
        for field_name in WorkloadConfig.__slots__
        if getattr(first_config, field_name) != getattr(second_config, field_name)
    ]
    return "; ".join(
        f"{field_name} {format_value(getattr(first_config, field_name))}"
        f" and {format_value(getattr(second_config, field_name))}"
        for field_name in field_names
    )


@CHECKS.add(_HOOKS_SOURCE)
async def every_call_may_be_repeated_by_another_instance(subject: Subject) -> None:
    """Each method of a lifecycle hook works a second time when it is called on another hook object."""
    allocation, state = await subject.an_allocation(), ManagedState()
    for hook_method in HOOKS:
        for _ in range(2):
            await subject.hook(hook_method, allocation, state)


@CHECKS.add("decision 0054")
async def the_managed_state_is_small_json(subject: Subject) -> None:
    """The state that a hook stores is JSON of at most 64 KiB after every call."""
    allocation, state = await subject.an_allocation(), ManagedState()
    for hook_method in HOOKS:
        await subject.hook(hook_method, allocation, state)
        expect(isinstance(state.data, dict), f"after {hook_method} the managed state is {format_value(state.data)}")
        expect(
            type(state.version) is int,
            f"after {hook_method} the version of the managed state is {format_value(state.version)}",
        )
        expect(
            restore_state(state).data == state.data,
            f"after {hook_method} the managed state is another once it was kept as JSON",
        )
        state_bytes = len(msgspec.json.encode(state.data))
        expect(state_bytes <= MANAGED_STATE_LIMIT, f"after {hook_method} the managed state has {state_bytes} bytes")


@CHECKS.add(_HOOKS_SOURCE)
async def the_end_is_safe_without_a_beginning(subject: Subject) -> None:
    """``post_terminate`` works for a workload whose ``pre_create`` was never called."""
    await subject.hook("post_terminate", await subject.an_allocation(), ManagedState())


@CHECKS.add("decision 0053")
async def a_restart_and_a_recovery_are_served(subject: Subject) -> None:
    """The cause RECOVER repeats a call; after a restart in place the workload is another one on the same devices."""
    allocation, state = await subject.an_allocation(), ManagedState()
    config = await subject.hook("pre_create", allocation, state)
    repeated_config = await subject.hook("pre_create", allocation, state, cause=LifecycleCause.RECOVER)
    expect(
        repeated_config == config,
        f"with the cause RECOVER the config differs: {_differing_fields(config, repeated_config)}",
    )
    restart_context: dict[str, Any] = {"cause": LifecycleCause.RESTART_IN_PLACE, "previous_allocation": allocation}
    for hook_method in ("pre_terminate", "post_terminate"):
        await subject.hook(hook_method, allocation, state, **restart_context)
    state = ManagedState()
    new_config = await subject.hook("pre_create", allocation, state, attempt=2, **restart_context)
    for field_name in ("devices", "cpuset", "memory_nodes"):
        old_value, new_value = getattr(config, field_name), getattr(new_config, field_name)
        expect(
            new_value == old_value,
            f"a restart in place has other {field_name}: {format_value(old_value)} and {format_value(new_value)}",
        )
    await subject.hook("post_terminate", allocation, state, attempt=2)


@CHECKS.add(_HOOKS_SOURCE)
async def a_crash_at_any_call_is_survived(subject: Subject) -> None:
    """The agent dies around any hook call: the next process repeats the call with the state before or after."""
    allocation = await subject.an_allocation()
    for crash_position in range(len(HOOKS)):
        for is_after_call in (True, False):
            saved_states: list[ManagedState] = [ManagedState()]

            async def save(state: ManagedState, saved_states: list[ManagedState] = saved_states) -> None:
                saved_states.append(restore_state(state))

            state = ManagedState(saver=save)
            config: WorkloadConfig | None = None
            for position, hook_method in enumerate(HOOKS[: crash_position + 1]):
                hook_result = await subject.hook(hook_method, allocation, state)
                config = config or hook_result
                if position < crash_position or is_after_call:
                    await save(state)
            async with subject.restart() as restarted_subject:
                await _continue_after_crash(
                    restarted_subject, allocation, saved_states[-1], crash_position, config if is_after_call else None
                )


async def _continue_after_crash(
    next_subject: Subject,
    allocation: DeviceAllocation,
    state: ManagedState,
    crash_position: int,
    config: WorkloadConfig | None,
) -> None:
    for position, hook_method in enumerate(HOOKS[crash_position:]):
        cause = LifecycleCause.RECOVER if position == 0 else LifecycleCause.CREATE
        try:
            hook_result = await next_subject.hook(hook_method, allocation, state, cause=cause)
        except CheckFailed as e:
            raise CheckFailed(f"after a crash around {HOOKS[crash_position]}: {e}") from e
        if hook_method == "pre_create" and config is not None:
            expect(
                hook_result == config,
                f"after a crash in pre_create the config differs: {_differing_fields(config, hook_result)}",
            )


@CHECKS.add(_HOOKS_SOURCE)
async def a_cancelled_call_does_no_harm(subject: Subject) -> None:
    """A call that is cancelled at its deadline can be undone, and the devices be given again."""
    allocation, state = await subject.an_allocation(), ManagedState()
    for hook_method in ("pre_create", "post_create"):
        hook_task = asyncio.create_task(subject.hook(hook_method, allocation, state))
        await asyncio.sleep(0)
        hook_task.cancel()
        await asyncio.gather(hook_task, return_exceptions=True)
    await subject.hook("post_terminate", allocation, restore_state(state))
    await subject.hook("pre_create", allocation, ManagedState())


@CHECKS.add(_HOOKS_SOURCE)
async def workloads_do_not_mix(subject: Subject) -> None:
    """The hooks of two kernels that run at once give the same results as each hook alone."""
    request = await subject.a_request()
    alloc_map = await subject.call("create_alloc_map")
    allocations = []
    for kernel in (KERNEL, OTHER_KERNEL):
        try:
            allocations.append((kernel, alloc_map.allocate(request)))
        except InsufficientResource:
            break
    stable_values = []
    for kernel, allocation in allocations:
        round_values = []
        for _ in range(2):
            state = ManagedState()
            round_values.append(_values_by_field(await subject.hook("pre_create", allocation, state, kernel)))
            await subject.hook("post_terminate", allocation, state, kernel)
        stable_values.append(
            {
                field_name: field_value
                for field_name, field_value in round_values[0].items()
                if round_values[1].get(field_name) == field_value
            }
        )
    configs = await asyncio.gather(
        *(
            subject.hook("pre_create", held_devices, ManagedState(), kernel_id)
            for kernel_id, held_devices in allocations
        )
    )
    for values_alone, config in zip(stable_values, configs, strict=True):
        values_together = _values_by_field(config)
        changed_fields = [
            field_name
            for field_name, field_value in values_alone.items()
            if values_together.get(field_name) != field_value
        ]
        expect(not changed_fields, f"beside another workload, the config has another {', '.join(changed_fields)}")


def _values_by_field(config: WorkloadConfig) -> dict[str, object]:
    """Returns the values of a configuration by field name, and by key within fields that are maps.

    Some values, such as tokens, may be new each time.
    """
    value_by_field: dict[str, object] = {}
    for field_name in WorkloadConfig.__slots__:
        value = getattr(config, field_name)
        value_by_field |= (
            {f"{field_name}[{key}]": item for key, item in value.items()}
            if isinstance(value, dict)
            else {field_name: value}
        )
    return value_by_field


@CHECKS.add(_HOOKS_SOURCE)
async def a_workload_without_devices_gets_nothing(subject: Subject) -> None:
    """A workload without devices gets an empty configuration and an empty list of attached devices."""
    config = await subject.hook("pre_create", DeviceAllocation(), ManagedState())
    expect(config == WorkloadConfig(), f"a workload that holds nothing gets {format_value(config)}")
    attached_devices = list(await subject.call("alloc_to_devices", DeviceAllocation()))
    expect(attached_devices == [], f"of nothing, alloc_to_devices shows {format_value(attached_devices)}")


@CHECKS.add("peer facts 2.1, get_attached_devices")
async def attached_devices_are_those_of_the_allocation(subject: Subject) -> None:
    """Users see the devices that they have, with their models."""
    allocation = await subject.an_allocation()
    validate_attached = partial(responses.validate_attached, allocation=allocation)
    attached_devices = await subject.call_validated("alloc_to_devices", validate_attached, allocation)
    device_ids = {device.device_id for device in attached_devices}
    expect(
        device_ids == allocation.device_ids(),
        f"alloc_to_devices shows {sorted(device_ids)} of {sorted(allocation.device_ids())}",
    )
    for device in attached_devices:
        expect(device.model_name, f"{device.device_id} has no model_name")
        msgspec.json.encode(dict(device.data))


@CHECKS.add("decision 0621")
async def a_diagnosis_takes_nothing(subject: Subject) -> None:
    """A diagnosis of a workload's devices changes neither the listed devices nor the workload's configuration.

    Every hook call of the diagnosing workload succeeds.
    """
    if not subject.plugin.capabilities.diagnosable:
        raise NotApplicable("the plugin shows no devices for a diagnosis")
    allocation, state, diagnosis_state = await subject.an_allocation(), ManagedState(), ManagedState()
    await subject.hook("pre_create", allocation, state)
    config = await subject.hook("pre_create", allocation, restore_state(state))  # as a repeat gives it
    devices = await subject.call("list_devices")
    for hook_method in HOOKS:
        await subject.hook(hook_method, allocation, diagnosis_state, OTHER_KERNEL, is_diagnostic=True)
    expect(await subject.call("list_devices") == devices, "after a diagnosis the plugin lists other devices")
    second_config = await subject.hook("pre_create", allocation, restore_state(state))
    expect(
        second_config == config,
        f"after a diagnosis the holder's config differs: {_differing_fields(config, second_config)}",
    )


async def _call_everything(subject: Subject) -> None:
    for method in _LISTING_METHODS:
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
        for hook_method in HOOKS:
            await subject.hook(hook_method, allocation, state)


@CHECKS.add("accelerator v2, The contract: host processes")
async def calls_leave_the_event_loop_free(subject: Subject) -> None:
    """A plugin that does not say that it is ``blocking`` never holds the event loop for long.

    The best of three rounds counts: a busy machine is not the plugin's fault.
    """
    if subject.plugin.capabilities.blocking:
        raise NotApplicable("the plugin is blocking, and so has a process of its own")
    best_s_by_method: dict[str, float] = {}
    for _ in range(_MAX_ROUNDS):
        subject.block_s_by_method.clear()
        await _call_everything(subject)
        for method, seconds in subject.block_s_by_method.items():
            best_s_by_method[method] = min(seconds, best_s_by_method.get(method, seconds))
        if all(seconds <= subject.max_block_s for seconds in best_s_by_method.values()):
            return
    worst_method = max(best_s_by_method, key=lambda method: best_s_by_method[method])
    raise CheckFailed(
        f"{worst_method} holds the event loop for {best_s_by_method[worst_method] * 1000:.0f} ms"
        f" ({subject.max_block_s * 1000:.0f} ms are allowed): use asyncio.to_thread,"
        " or declare PluginCapabilities(blocking=True)"
    )


@CHECKS.add("AbstractComputePlugin: calls for different workloads may run concurrently")
async def calls_may_overlap(subject: Subject) -> None:
    """A plugin's methods give the same answers when several calls run at once."""
    separate_answers = [await subject.call(method) for method in _LISTING_METHODS[:4]]
    overlapping_answers = await asyncio.gather(
        *(subject.call(method) for _ in range(3) for method in _LISTING_METHODS[:4])
    )
    for answer_number, answer in enumerate(overlapping_answers):
        method = _LISTING_METHODS[answer_number % 4]
        is_same = _stable_part(method, answer) == _stable_part(method, separate_answers[answer_number % 4])
        expect(is_same, f"{method} answers something else while other calls run")


def _stable_part(method: str, answer: object) -> object:
    """Returns an answer of a plugin without what may change between calls: health, and totals that depend on it."""
    if method == "list_devices":
        return [(device.device_id, device.slots) for device in answer]  # type: ignore[attr-defined]  # settled to devices
    return None if method == "available_slots" else answer
