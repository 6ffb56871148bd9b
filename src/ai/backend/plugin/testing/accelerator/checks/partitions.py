"""``partitionable``: devices that are cut."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import Conflict, Forbidden, NotFound
from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import ManagedState, PartitionProfile
from ai.backend.plugin.testing.accelerator.checks.registry import Checks, expect
from ai.backend.plugin.testing.accelerator.checks.results import NotApplicable
from ai.backend.plugin.testing.accelerator.checks.subject import Subject

CHECKS = Checks()
_CUT = "accelerator v2, Partitionable"
_STRANGER = DeviceId("no-such-device")


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
    """Cut one device. Returns the profile and the new partition's id."""
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
        expect(
            profile.slot_name in slot_names, f"{where} is of the slot {profile.slot_name}, which is not configurable"
        )
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
