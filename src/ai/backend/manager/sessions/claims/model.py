"""Defines device claims, their changes and their state machine. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common.errors import Conflict, LimitExceeded, NotFound
from ai.backend.common.ids import (
    AccessKey,
    AgentId,
    DomainName,
    GroupId,
    KernelId,
    ResourceGroupName,
    SessionId,
    UserId,
)
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import ClaimStatus, KernelStatus, SessionStatus
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.claim import ClaimState, ClaimTrigger, step
from ai.backend.manager.agents.model import KernelOccupancy
from ai.backend.manager.query.model import ListQuery


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A device claim. Its name is unique among those of its owner in one project.

    Attributes:
        version: grows with every write; a writer states the one it read.
        is_deleting: it ends with the last live session that names it.
        status_info: why the last allocation has ended.
        requested_slots: what it allocates; the largest amounts of its alternatives ``device_requests``.
        idle_timeout_s: seconds without a session after which the devices are returned; None is no limit.
        agent, occupied_slots, devices: what it holds: nothing while it is UNALLOCATED. ``devices`` is slot -> device id
            -> quantity as text: the plan until a session runs with it.
        allocated_at: when it got these devices; ``idle_since``: when the last session left them.
    """

    id: UUID
    name: str
    version: int = 1
    status: ClaimStatus = ClaimStatus.UNALLOCATED
    status_info: str | None = None
    status_changed: datetime
    is_deleting: bool = False
    domain_name: DomainName
    group_id: GroupId
    group_name: str
    user_id: UserId
    user_email: str
    access_key: AccessKey
    scaling_group: ResourceGroupName
    requested_slots: ResourceSlot
    device_requests: tuple[str, ...] = ()
    idle_timeout_s: float | None = None
    created_at: datetime
    agent: AgentId | None = None
    occupied_slots: ResourceSlot = msgspec.field(default_factory=ResourceSlot)
    devices: Mapping[str, Mapping[str, str]] = msgspec.field(default_factory=dict)
    allocated_at: datetime | None = None
    idle_since: datetime | None = None

    @property
    def scope(self) -> tuple[str, str, str]:
        """Returns the domain, project and user of the claim."""
        return self.domain_name, str(self.group_id), str(self.user_id)


class ClaimChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a device claim from ``old`` to ``new``; a ``new`` in status DELETED removes the claim.

    The store applies the change if the stored version is still that of ``old``, and sets ``new.version`` to
    ``old.version + 1``.
    """

    old: Claim
    new: Claim


class ClaimUser(msgspec.Struct, frozen=True, kw_only=True):
    """A live session that names a claim. ``holds``: it is on an agent and has the claim's devices."""

    claim_id: UUID
    session_id: SessionId
    name: str
    status: SessionStatus

    @property
    def holds(self) -> bool:
        return self.status is not SessionStatus.PENDING


class ClaimView(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a claim, the live sessions that name it, and why its devices cannot be used now (empty if they can)."""

    claim: Claim
    users: Sequence[ClaimUser] = ()
    problem: str = ""


class ClaimQuery(ListQuery, frozen=True, kw_only=True):
    """Selects claims and lists the newest first; a field that is None does not restrict the selection. ``is_held``:
    those that hold devices.
    """

    ids: Sequence[UUID] | None = None
    user_id: UserId | None = None
    group_id: GroupId | None = None
    domain_name: DomainName | None = None
    name: str | None = None
    agents: Sequence[AgentId] | None = None
    is_held: bool = False


_RETURNED_FIELDS: dict[str, Any] = {
    "agent": None,
    "occupied_slots": ResourceSlot(),
    "devices": {},
    "allocated_at": None,
    "idle_since": None,
}


def advance(
    claim: Claim, trigger: ClaimTrigger, *, now: datetime, info: str | None = None, **fields: Any
) -> ClaimChange | None:
    """Applies a trigger to a claim and returns the change to save, None if there is none. ``info`` says why an
    allocation ends; ``fields`` change with an allocation. Raises InvalidTransition."""
    state = ClaimState(claim.status, claim.is_deleting)
    new_state, path, _ = step(state, trigger, subject=f"claim {claim.id}")
    if not path:
        return None
    changes: dict[str, Any] = {"status": new_state.status, "is_deleting": new_state.is_deleting, **fields}
    if new_state.status is not claim.status:
        changes["status_changed"] = now
    if new_state.status.holds_devices:
        changes["idle_since"] = now if new_state.status is ClaimStatus.IDLE else None
        if new_state.status is ClaimStatus.IDLE and claim.status is ClaimStatus.IDLE:
            changes["idle_since"] = claim.idle_since
        if not claim.status.holds_devices:
            changes |= {"allocated_at": now, "status_info": None}
    elif claim.status.holds_devices:
        changes |= {**_RETURNED_FIELDS, "status_info": info}
    return ClaimChange(old=claim, new=replace(claim, **changes))


def bind_claim(claim: Claim, devices: Mapping[str, Mapping[str, str]], now: datetime) -> ClaimChange | None:
    """Returns the change that records the devices of a running session as the devices of an ALLOCATING claim.

    Only devices of slots that the claim occupies are recorded. Returns None for a claim in any other status.
    """
    if claim.status is not ClaimStatus.ALLOCATING:
        return None
    claimed_devices = {slot: slot_devices for slot, slot_devices in devices.items() if claim.occupied_slots[slot]}
    return advance(claim, ClaimTrigger.BOUND, now=now, devices=claimed_devices)


def claim_deltas(changes: Iterable[ClaimChange]) -> dict[AgentId, ResourceSlot]:
    """Returns the change of each agent's occupied slots; agents without a change are left out."""
    deltas: dict[AgentId, ResourceSlot] = {}
    for change in changes:
        for sign, claim in ((-1, change.old), (1, change.new)):
            if claim.agent is not None and len(claim.occupied_slots):
                deltas[claim.agent] = deltas.get(claim.agent, ResourceSlot()) + claim.occupied_slots * sign
    return {agent: nonzero for agent, delta in deltas.items() if len(nonzero := delta.nonzero())}


def no_such_claim(name: str = "") -> NotFound:
    """Returns the error for a claim that does not exist for its owner, or that is to be deleted."""
    shown_name = f" {name[:64]!r}" if name else ""
    return NotFound(
        f"You have no device claim{shown_name} in this project that a session could use.", data={"claim": "unknown"}
    )


def claim_exists(name: str) -> Conflict:
    return Conflict(f"You have a device claim {name!r} in this project already.", data={"name": "taken"})


def too_many_claims(limit: int) -> LimitExceeded:
    return LimitExceeded(f"Your policy allows {limit} device claims.", data={"claims": limit})


def without_claim_devices(occupancy: KernelOccupancy) -> KernelOccupancy:
    """Returns the occupancy of a kernel without devices whose slots are counted for the claim of its session."""
    if occupancy.claim_id is None:
        return occupancy
    devices_by_slot = {slot: devices for slot, devices in occupancy.devices.items() if occupancy.slots[slot]}
    return replace(occupancy, devices=devices_by_slot, device_requests=())


def as_occupancy(claim: Claim) -> KernelOccupancy:
    """Returns what a claim occupies on its agent."""
    assert claim.agent is not None
    return KernelOccupancy(
        kernel_id=KernelId(claim.id),
        session_id=SessionId(claim.id),
        agent=claim.agent,
        access_key=claim.access_key,
        status=KernelStatus.RUNNING,
        status_changed=claim.status_changed,
        attempt=0,
        slots=claim.occupied_slots,
        devices=claim.devices,
        device_requests=claim.device_requests,
        claim_id=claim.id,
        is_claim=True,
        scope=claim.scope,
    )
