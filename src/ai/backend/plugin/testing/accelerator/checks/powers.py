"""Checks of the optional powers."""

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
from ai.backend.plugin.testing.accelerator.checks.registry import CheckFailed, Checks, NotApplicable, expect, shown
from ai.backend.plugin.testing.accelerator.checks.subject import Subject

CHECKS = Checks()
_CUT = "accelerator v2, Partitionable"
_POWER = "accelerator v2, PowerControllable"
_STRANGER = DeviceId("no-such-device")
_LISTEN_S = 0.15
_CDI_VERSION = "0.6.0"
_CDI_KIND = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?/[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_CDI_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]*[A-Za-z0-9])?")
_CDI_EDITS = frozenset({"env", "deviceNodes", "hooks", "mounts"})


@CHECKS.add(_POWER, power="power_controllable", alters=True)
async def power_can_be_controlled(subject: Subject) -> None:
    """Each call may be repeated, a device that is off offers nothing, and an unknown one is NotFound."""
    device = await subject.a_device()
    for method in ("power_on", "reset", "power_off"):
        for _ in range(2):
            await subject.call(method, device.device_id)
    try:
        healthy = {d.device_id for d in await subject.devices() if d.health is DeviceHealth.HEALTHY}
        expect(device.device_id not in healthy, f"{device.device_id} was switched off, and is listed as healthy")
    finally:
        await subject.call("power_on", device.device_id)
    healthy = {d.device_id for d in await subject.devices() if d.health is DeviceHealth.HEALTHY}
    expect(device.device_id in healthy, f"{device.device_id} was switched on again, and is not listed as healthy")
    for method in ("power_on", "power_off", "reset"):
        await subject.refused(method, _STRANGER, by=NotFound, why="for an unknown device")


@CHECKS.add(_POWER, power="power_controllable", alters=True)
async def a_device_in_use_stays_on(subject: Subject) -> None:
    """While a workload holds it, a device is neither switched off nor reset."""
    allocation, state = await subject.an_allocation(), ManagedState()
    await subject.hook("pre_create", allocation, state)
    try:
        for device_id in sorted(allocation.device_ids()):
            for method in ("power_off", "reset"):
                await subject.refused(method, device_id, by=Conflict, why="while a workload held the device")
    finally:
        await subject.hook("post_terminate", allocation, state)


@CHECKS.add("accelerator v2, Programmable", power="programmable", alters=True)
async def images_are_loaded(subject: Subject) -> None:
    """An image that does not fit is refused and changes nothing; one that fits is what is loaded, also twice."""
    device = (await subject.a_device()).device_id
    before = await subject.call("programmed_image", device)
    await subject.refused("program", device, "no image at all", by=InvalidInput, why="with what is no image")
    expect(await subject.call("programmed_image", device) == before, "a refused image is loaded")
    if subject.image is not None:
        for _ in range(2):
            await subject.call("program", device, subject.image)
            loaded = await subject.call("programmed_image", device)
            expect(loaded == subject.image, f"{subject.image} was loaded, programmed_image says {shown(loaded)}")


@CHECKS.add("accelerator v2, Attachable", power="attachable", alters=True)
async def devices_are_attached_and_detached(subject: Subject) -> None:
    """An attached device is listed, a detached one is not, each call may be repeated; one in use stays."""
    elsewhere = await subject.call("attachable_devices")
    listed = {d.device_id for d in await subject.devices()}
    expect(not listed & set(elsewhere), f"attachable and listed: {sorted(listed & set(elsewhere))}")
    if not elsewhere:
        raise NotApplicable("no device of another box can be attached now")
    device = elsewhere[0]
    for _ in range(2):
        await subject.call("attach", device)
    by_id = {d.device_id: d for d in await subject.devices()}
    expect(device in by_id, f"{device} was attached, and is not listed")
    expect(device not in await subject.call("attachable_devices"), f"{device} was attached, and is attachable")
    slot = by_id[device].slots[0]
    held, state = DeviceAllocation(slots={slot.slot_name: {device: slot.quantum}}), ManagedState()
    await subject.hook("pre_create", held, state)
    await subject.refused("detach", device, by=Conflict, why="while a workload held the device")
    await subject.hook("post_terminate", held, state)
    for _ in range(2):
        await subject.call("detach", device)
    expect(device not in {d.device_id for d in await subject.devices()}, f"{device} was detached, and is listed")


@CHECKS.add("accelerator v2, HealthWatching; decision 0060", power="health_watching")
async def health_is_watched(subject: Subject) -> None:
    """The watch goes on, tells of known devices only, can be cancelled, and begun again."""
    device_ids = {d.device_id for d in await subject.devices()}
    for _ in range(2):
        watch: AsyncIterator[Any] = subject.plugin.watch_health()  # type: ignore[attr-defined]  # the flag promises it
        listening = asyncio.create_task(_listen(watch, device_ids))
        done, _ = await asyncio.wait([listening], timeout=_LISTEN_S)
        if done:
            listening.result()
            raise CheckFailed("watch_health has ended by itself")
        listening.cancel()
        done, _ = await asyncio.wait([listening], timeout=subject.deadline_s)
        expect(done, f"watch_health goes on {subject.deadline_s:g} s after it was cancelled")


async def _listen(watch: AsyncIterator[Any], device_ids: set[DeviceId]) -> None:
    async for change in watch:
        expect(isinstance(change, DeviceHealthChange), f"watch_health gives {shown(change)}")
        expect(change.device_id in device_ids, f"watch_health tells of the unknown device {change.device_id}")
        is_reasoned = change.health is DeviceHealth.HEALTHY or change.reason
        expect(is_reasoned, f"watch_health gives no reason why {change.device_id} is {change.health}")


@CHECKS.add("CDI specification 0.6.0", power="cdi_provider")
async def the_cdi_spec_is_well_formed(subject: Subject) -> None:
    """Version, kind, devices with unique names and edits of known kinds."""
    spec: Mapping[str, Any] = await subject.call("cdi_spec")
    expect(spec.get("cdiVersion") == _CDI_VERSION, f"cdiVersion is {shown(spec.get('cdiVersion'))}")
    kind, devices = spec.get("kind"), spec.get("devices")
    expect(isinstance(kind, str) and _CDI_KIND.fullmatch(kind), f"kind is {shown(kind)}; vendor.com/class is wanted")
    strange = sorted(set(spec) - {"cdiVersion", "kind", "annotations", "devices", "containerEdits"})
    expect(not strange, f"CDI has no key {', '.join(strange)}")
    if not isinstance(devices, list):
        raise CheckFailed(f"devices is {shown(devices)}")
    names = [device.get("name") if isinstance(device, Mapping) else None for device in devices]
    for name, device in zip(names, devices, strict=True):
        expect(isinstance(name, str) and _CDI_NAME.fullmatch(name), f"{shown(name)} cannot be the name of a device")
        expect(names.count(name) == 1, f"the device {name} is there twice")
        edits = device.get("containerEdits")
        expect(edits and isinstance(edits, Mapping), f"the device {name} has no containerEdits")
        _check_edits(f"the device {name}", edits)
    _check_edits("the specification", spec.get("containerEdits", {}))


def _check_edits(where: str, edits: Mapping[str, Any]) -> None:
    strange = sorted(set(edits) - _CDI_EDITS)
    expect(not strange, f"{where}: containerEdits has no key {', '.join(strange)}")
    for variable in edits.get("env", ()):
        expect(isinstance(variable, str) and "=" in variable, f"{where}: env has {shown(variable)}")
    for node in edits.get("deviceNodes", ()):
        path = node.get("path")
        expect(str(path or "").startswith("/"), f"{where}: a device node has the path {shown(path)}")
    for mount in edits.get("mounts", ()):
        paths = [str(mount.get(key, "")) for key in ("hostPath", "containerPath")]
        expect(all(path.startswith("/") for path in paths), f"{where}: a mount has the paths {paths}")
    for hook in edits.get("hooks", ()):
        expect(hook.get("hookName") and str(hook.get("path", "")).startswith("/"), f"{where}: the hook {shown(hook)}")


@CHECKS.add("DeviceMapping.cdi_name", power="cdi_provider")
async def cdi_names_of_hooks_are_in_the_spec(subject: Subject) -> None:
    """The specification describes every CDI name that a hook uses."""
    config = await subject.hook("pre_create", await subject.an_allocation(), ManagedState())
    named = {device.cdi_name for device in config.devices if device.cdi_name}
    spec = await subject.call("cdi_spec")
    described = {f"{spec['kind']}={device['name']}" for device in spec["devices"]}
    expect(named <= described, f"the hook names {sorted(named - described)}, which the specification does not describe")


async def _profiles(subject: Subject) -> list[tuple[DeviceId, PartitionProfile]]:
    offered = []
    for device in await subject.devices():
        try:
            profiles = await subject.call("partition_profiles", device.device_id)
        except NotFound:  # it is a partition itself
            continue
        offered += [(device.device_id, profile) for profile in profiles]
    return offered


async def _made(subject: Subject) -> tuple[PartitionProfile, DeviceId]:
    """Cuts one device, and returns the profile and the new partition's id."""
    for device_id, profile in await _profiles(subject):
        if profile.available:
            try:
                return profile, await subject.call("create_partition", device_id, profile.name)
            except Forbidden as e:
                raise NotApplicable(f"the plugin may not cut devices: {e.message}") from e
    raise NotApplicable("no device of this node can be cut now")


@CHECKS.add(_CUT, power="partitionable")
async def partition_profiles_are_told(subject: Subject) -> None:
    """Each device has its profiles, of slots that can be configured; an unknown device is NotFound."""
    slot_names = {slot.slot_name for slot in await subject.call("configurable_slots")}
    for device_id, profile in await _profiles(subject):
        where = f"{device_id}: the profile {profile.name!r}"
        expect(profile.name, f"{device_id} has a profile without a name")
        name = profile.slot_name
        expect(name in slot_names, f"{where} is of the slot {name}, which is not configurable")
        expect(profile.available >= 0, f"{where}: {profile.available} are available")
        expect(profile.amount > 0, f"{where} has the amount {profile.amount}")
    await subject.refused("partition_profiles", _STRANGER, by=NotFound, why="for an unknown device")


@CHECKS.add(_CUT, power="partitionable", alters=True)
async def partitions_come_and_go(subject: Subject) -> None:
    """A new partition is listed and offers its slot; once undone it is gone, and undoing it again is safe."""
    profile, made = await _made(subject)
    try:
        listed = {d.device_id: d for d in await subject.devices()}
        expect(made in listed, f"create_partition made {made}, and list_devices does not list it")
        amount = {slot.slot_name: slot.amount for slot in listed[made].slots}.get(profile.slot_name)
        expect(amount == profile.amount, f"{made} offers {amount} {profile.slot_name}; its profile {profile.amount}")
        async with subject.remade() as again:
            after: Sequence[Any] = await again.devices()
            expect(made in {d.device_id for d in after}, f"after a restart the partition {made} is gone")
    finally:
        await subject.call("destroy_partition", made)
    await subject.call("destroy_partition", made)
    expect(made not in {d.device_id for d in await subject.devices()}, f"{made} was destroyed, and is still listed")
    await subject.refused("create_partition", _STRANGER, profile.name, by=NotFound, why="for an unknown device")


@CHECKS.add(_CUT, power="partitionable", alters=True)
async def a_partition_in_use_stays(subject: Subject) -> None:
    """While a workload holds a partition it cannot be destroyed; afterwards it can."""
    profile, made = await _made(subject)
    held = DeviceAllocation(slots={profile.slot_name: {made: Decimal(profile.amount)}})
    state = ManagedState()
    try:
        await subject.hook("pre_create", held, state)
        await subject.refused("destroy_partition", made, by=Conflict, why="while a workload held the partition")
        await subject.hook("post_terminate", held, state)
    finally:
        await subject.call("destroy_partition", made)
