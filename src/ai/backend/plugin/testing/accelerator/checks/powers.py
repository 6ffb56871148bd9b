"""Checks the optional powers of accelerator plugins."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from ai.backend.common.devices import DeviceAllocation, DeviceHealth
from ai.backend.common.errors import Conflict, Forbidden, InvalidInput, NotFound
from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import DeviceHealthChange, ManagedState, PartitionProfile
from ai.backend.plugin.testing.accelerator.checks.registry import (
    CheckFailed,
    Checks,
    NotApplicable,
    expect,
    format_value,
)
from ai.backend.plugin.testing.accelerator.checks.subject import Subject

CHECKS = Checks()
_PARTITIONS_SOURCE = "accelerator v2, Partitionable"
_POWER_SOURCE = "accelerator v2, PowerControllable"
_UNKNOWN_DEVICE = DeviceId("no-such-device")
_LISTEN_S = 0.15
_CDI_VERSION = "0.6.0"
_CDI_KIND = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?/[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_CDI_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]*[A-Za-z0-9])?")
_CDI_EDIT_KINDS = frozenset({"env", "deviceNodes", "hooks", "mounts", "additionalGids", "intelRdt", "netDevices"})


@CHECKS.add(_POWER_SOURCE, power="power_controllable", changes_devices=True)
async def power_can_be_controlled(subject: Subject) -> None:
    """Power calls may be repeated, a device that is off offers nothing, and an unknown device is NotFound."""
    device = await subject.a_device()
    for method in ("power_on", "reset", "power_off"):
        for _ in range(2):
            await subject.call(method, device.device_id)
    try:
        healthy_ids = {
            listed_device.device_id
            for listed_device in await subject.devices()
            if listed_device.health is DeviceHealth.HEALTHY
        }
        expect(device.device_id not in healthy_ids, f"{device.device_id} was switched off, and is listed as healthy")
    finally:
        await subject.call("power_on", device.device_id)
    healthy_ids = {
        listed_device.device_id
        for listed_device in await subject.devices()
        if listed_device.health is DeviceHealth.HEALTHY
    }
    expect(device.device_id in healthy_ids, f"{device.device_id} was switched on again, and is not listed as healthy")
    for method in ("power_on", "power_off", "reset"):
        await subject.call_refused(method, _UNKNOWN_DEVICE, error_class=NotFound, circumstance="for an unknown device")


@CHECKS.add(_POWER_SOURCE, power="power_controllable", changes_devices=True)
async def a_device_in_use_stays_on(subject: Subject) -> None:
    """A device that a workload holds is neither switched off nor reset."""
    allocation, state = await subject.an_allocation(), ManagedState()
    await subject.hook("pre_create", allocation, state)
    try:
        for device_id in sorted(allocation.device_ids()):
            for method in ("power_off", "reset"):
                await subject.call_refused(
                    method, device_id, error_class=Conflict, circumstance="while a workload held the device"
                )
    finally:
        await subject.hook("post_terminate", allocation, state)


@CHECKS.add("accelerator v2, Programmable", power="programmable", changes_devices=True)
async def images_are_loaded(subject: Subject) -> None:
    """A wrong image is refused and changes nothing; a right image is the loaded one, also after a second load."""
    device = (await subject.a_device()).device_id
    image_before = await subject.call("programmed_image", device)
    await subject.call_refused(
        "program", device, "no image at all", error_class=InvalidInput, circumstance="with what is no image"
    )
    expect(await subject.call("programmed_image", device) == image_before, "a refused image is loaded")
    if subject.image is not None:
        for _ in range(2):
            await subject.call("program", device, subject.image)
            loaded_image = await subject.call("programmed_image", device)
            expect(
                loaded_image == subject.image,
                f"{subject.image} was loaded, programmed_image says {format_value(loaded_image)}",
            )


@CHECKS.add("accelerator v2, Attachable", power="attachable", changes_devices=True)
async def devices_are_attached_and_detached(subject: Subject) -> None:
    """An attached device is listed, a detached one is not; each call may be repeated; one in use stays attached."""
    attachable_ids = await subject.call("attachable_devices")
    listed_ids = {listed_device.device_id for listed_device in await subject.devices()}
    expect(not listed_ids & set(attachable_ids), f"attachable and listed: {sorted(listed_ids & set(attachable_ids))}")
    if not attachable_ids:
        raise NotApplicable("no device of another box can be attached now")
    device = attachable_ids[0]
    for _ in range(2):
        await subject.call("attach", device)
    device_by_id = {listed_device.device_id: listed_device for listed_device in await subject.devices()}
    expect(device in device_by_id, f"{device} was attached, and is not listed")
    expect(device not in await subject.call("attachable_devices"), f"{device} was attached, and is attachable")
    slot = device_by_id[device].slots[0]
    allocation, state = DeviceAllocation(slots={slot.slot_name: {device: slot.quantum}}), ManagedState()
    await subject.hook("pre_create", allocation, state)
    await subject.call_refused("detach", device, error_class=Conflict, circumstance="while a workload held the device")
    await subject.hook("post_terminate", allocation, state)
    for _ in range(2):
        await subject.call("detach", device)
    expect(
        device not in {listed_device.device_id for listed_device in await subject.devices()},
        f"{device} was detached, and is listed",
    )


@CHECKS.add("accelerator v2, HealthWatching; decision 0060", power="health_watching")
async def health_is_watched(subject: Subject) -> None:
    """``watch_health`` does not end by itself, reports only listed devices, can be cancelled and begun again."""
    device_ids = {device.device_id for device in await subject.devices()}
    for _ in range(2):
        health_changes: AsyncIterator[Any] = subject.plugin.watch_health()  # type: ignore[attr-defined]  # the flag promises it
        listening_task = asyncio.create_task(_check_changes(health_changes, device_ids))
        finished_tasks, _ = await asyncio.wait([listening_task], timeout=_LISTEN_S)
        if finished_tasks:
            listening_task.result()
            raise CheckFailed("watch_health has ended by itself")
        listening_task.cancel()
        finished_tasks, _ = await asyncio.wait([listening_task], timeout=subject.deadline_s)
        expect(finished_tasks, f"watch_health goes on {subject.deadline_s:g} s after it was cancelled")


async def _check_changes(health_changes: AsyncIterator[Any], device_ids: set[DeviceId]) -> None:
    async for change in health_changes:
        expect(isinstance(change, DeviceHealthChange), f"watch_health gives {format_value(change)}")
        expect(change.device_id in device_ids, f"watch_health tells of the unknown device {change.device_id}")
        has_reason = change.health is DeviceHealth.HEALTHY or change.reason
        expect(has_reason, f"watch_health gives no reason why {change.device_id} is {change.health}")


@CHECKS.add("CDI specification 0.6.0", power="cdi_provider")
async def the_cdi_spec_is_well_formed(subject: Subject) -> None:
    """The CDI specification has a version, a kind, devices with unique names, and edits of known kinds."""
    spec: Mapping[str, Any] = await subject.call("cdi_spec")
    expect(spec.get("cdiVersion") == _CDI_VERSION, f"cdiVersion is {format_value(spec.get('cdiVersion'))}")
    kind, devices = spec.get("kind"), spec.get("devices")
    expect(
        isinstance(kind, str) and _CDI_KIND.fullmatch(kind), f"kind is {format_value(kind)}; vendor.com/class is wanted"
    )
    unknown_keys = sorted(set(spec) - {"cdiVersion", "kind", "annotations", "devices", "containerEdits"})
    expect(not unknown_keys, f"CDI has no key {', '.join(unknown_keys)}")
    if not isinstance(devices, list):
        raise CheckFailed(f"devices is {format_value(devices)}")
    device_names = [device.get("name") if isinstance(device, Mapping) else None for device in devices]
    for device_name, device in zip(device_names, devices, strict=True):
        expect(
            isinstance(device_name, str) and _CDI_NAME.fullmatch(device_name),
            f"{format_value(device_name)} cannot be the name of a device",
        )
        expect(device_names.count(device_name) == 1, f"the device {device_name} is there twice")
        edits = device.get("containerEdits")
        expect(edits and isinstance(edits, Mapping), f"the device {device_name} has no containerEdits")
        _check_edits(f"the device {device_name}", edits)
    _check_edits("the specification", spec.get("containerEdits", {}))


def _check_edits(description: str, edits: Mapping[str, Any]) -> None:
    unknown_kinds = sorted(set(edits) - _CDI_EDIT_KINDS)
    expect(not unknown_kinds, f"{description}: containerEdits has no key {', '.join(unknown_kinds)}")
    for variable in edits.get("env", ()):
        expect(isinstance(variable, str) and "=" in variable, f"{description}: env has {format_value(variable)}")
    for device_node in edits.get("deviceNodes", ()):
        path = device_node.get("path")
        expect(str(path or "").startswith("/"), f"{description}: a device node has the path {format_value(path)}")
    for mount in edits.get("mounts", ()):
        paths = [str(mount.get(path_key, "")) for path_key in ("hostPath", "containerPath")]
        expect(all(path.startswith("/") for path in paths), f"{description}: a mount has the paths {paths}")
    for hook in edits.get("hooks", ()):
        expect(
            hook.get("hookName") and str(hook.get("path", "")).startswith("/"),
            f"{description}: the hook {format_value(hook)}",
        )


@CHECKS.add("DeviceMapping.cdi_name", power="cdi_provider")
async def cdi_names_of_hooks_are_in_the_spec(subject: Subject) -> None:
    """The specification describes every CDI name that a hook uses."""
    config = await subject.hook("pre_create", await subject.an_allocation(), ManagedState())
    used_names = {device.cdi_name for device in config.devices if device.cdi_name}
    spec = await subject.call("cdi_spec")
    described_names = {f"{spec['kind']}={device['name']}" for device in spec["devices"]}
    expect(
        used_names <= described_names,
        f"the hook names {sorted(used_names - described_names)}, which the specification does not describe",
    )


async def _offered_profiles(subject: Subject) -> list[tuple[DeviceId, PartitionProfile]]:
    profiles_of_devices = []
    for device in await subject.devices():
        try:
            profiles = await subject.call("partition_profiles", device.device_id)
        except NotFound:  # it is a partition itself
            continue
        profiles_of_devices += [(device.device_id, profile) for profile in profiles]
    return profiles_of_devices


async def _new_partition(subject: Subject) -> tuple[PartitionProfile, DeviceId]:
    """Cuts one device, and returns the profile and the id of the new partition."""
    for device_id, profile in await _offered_profiles(subject):
        if profile.available:
            try:
                return profile, await subject.call("create_partition", device_id, profile.name)
            except Forbidden as e:
                raise NotApplicable(f"the plugin may not cut devices: {e.message}") from e
    raise NotApplicable("no device of this node can be cut now")


@CHECKS.add(_PARTITIONS_SOURCE, power="partitionable")
async def partition_profiles_are_told(subject: Subject) -> None:
    """Each profile has a name, a configurable slot and a positive amount; an unknown device is NotFound."""
    slot_names = {slot.slot_name for slot in await subject.call("configurable_slots")}
    for device_id, profile in await _offered_profiles(subject):
        description = f"{device_id}: the profile {profile.name!r}"
        expect(profile.name, f"{device_id} has a profile without a name")
        slot_name = profile.slot_name
        expect(slot_name in slot_names, f"{description} is of the slot {slot_name}, which is not configurable")
        expect(profile.available >= 0, f"{description}: {profile.available} are available")
        expect(profile.amount > 0, f"{description} has the amount {profile.amount}")
    await subject.call_refused(
        "partition_profiles", _UNKNOWN_DEVICE, error_class=NotFound, circumstance="for an unknown device"
    )


@CHECKS.add(_PARTITIONS_SOURCE, power="partitionable", changes_devices=True)
async def partitions_come_and_go(subject: Subject) -> None:
    """A new partition is listed with its slot; a destroyed partition is not listed, and may be destroyed again."""
    profile, partition_id = await _new_partition(subject)
    try:
        device_by_id = {device.device_id: device for device in await subject.devices()}
        expect(partition_id in device_by_id, f"create_partition made {partition_id}, and list_devices does not list it")
        amount = {slot.slot_name: slot.amount for slot in device_by_id[partition_id].slots}.get(profile.slot_name)
        expect(
            amount == profile.amount,
            f"{partition_id} offers {amount} {profile.slot_name}; its profile {profile.amount}",
        )
        async with subject.restart() as restarted_subject:
            devices_after: Sequence[Any] = await restarted_subject.devices()
            expect(
                partition_id in {device.device_id for device in devices_after},
                f"after a restart the partition {partition_id} is gone",
            )
    finally:
        await subject.call("destroy_partition", partition_id)
    await subject.call("destroy_partition", partition_id)
    listed_ids = {listed_device.device_id for listed_device in await subject.devices()}
    expect(partition_id not in listed_ids, f"{partition_id} was destroyed, and is still listed")
    await subject.call_refused(
        "create_partition", _UNKNOWN_DEVICE, profile.name, error_class=NotFound, circumstance="for an unknown device"
    )


@CHECKS.add(_PARTITIONS_SOURCE, power="partitionable", changes_devices=True)
async def a_partition_in_use_stays(subject: Subject) -> None:
    """A partition cannot be destroyed while a workload holds it, and can be destroyed afterwards."""
    profile, partition_id = await _new_partition(subject)
    allocation = DeviceAllocation(slots={profile.slot_name: {partition_id: Decimal(profile.amount)}})
    state = ManagedState()
    try:
        await subject.hook("pre_create", allocation, state)
        await subject.call_refused(
            "destroy_partition", partition_id, error_class=Conflict, circumstance="while a workload held the partition"
        )
        await subject.hook("post_terminate", allocation, state)
    finally:
        await subject.call("destroy_partition", partition_id)
