"""Adds device claims to the scheduler's input, and reads them from the scheduler's placements. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common.devices import DeviceAllocation, DeviceHealth
from ai.backend.common.ids import AgentId, KernelId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import ClaimStatus
from ai.backend.common.structs import replace
from ai.backend.core.allocation.node import devices_by_id
from ai.backend.core.allocation.sharing import anonymous_slots, is_shareable
from ai.backend.core.allocation.variants import HOST_PLUGINS
from ai.backend.core.lifecycle.claim import ClaimTrigger
from ai.backend.core.scheduling import snapshot as core
from ai.backend.core.scheduling.plan import KernelPlacement, Placement
from ai.backend.manager.agents.capabilities import from_allocation, to_allocation
from ai.backend.manager.sessions.claims.model import Claim, ClaimChange, ClaimUser, advance
from ai.backend.manager.sessions.model import Session


class NamedClaims(msgspec.Struct, frozen=True):
    """Holds the device claims that pending sessions name, and the live sessions that name these claims."""

    by_id: Mapping[UUID, Claim] = msgspec.field(default_factory=dict)
    users: Mapping[UUID, Sequence[ClaimUser]] = msgspec.field(default_factory=dict)

    def claim_of(self, session: Session) -> Claim | None:
        return self.by_id.get(session.claim_id) if session.claim_id is not None else None

    def slots_of(self, sessions: Sequence[Session]) -> set[str]:
        """Returns the names of the slots that the claims of sessions request."""
        return {
            slot
            for session in sessions
            if (claim := self.claim_of(session)) is not None
            for slot in claim.requested_slots
        }


def add_claim(
    pending_session: core.PendingSession,
    session: Session,
    claims: NamedClaims,
    agents: Mapping[AgentId, core.AgentView],
) -> core.PendingSession:
    """Returns a pending session whose first kernel also requests the slots of the session's device claim.

    If the claim already has its devices, the session goes to their agent instead.
    """
    if session.claim_id is None:
        return pending_session
    claim = claims.claim_of(session)
    if claim is None:
        name = session.claim_name or ""
        missing_claim = core.PendingClaim(
            claim_id=str(session.claim_id), name=name, problem="it does not exist any more"
        )
        return replace(pending_session, claim=missing_claim)
    claim_holders = tuple(
        user.name for user in claims.users.get(claim.id, ()) if user.holds and user.session_id != session.id
    )
    pending_claim = core.PendingClaim(claim_id=str(claim.id), name=claim.name, holders=claim_holders)
    if claim.status is ClaimStatus.UNALLOCATED:
        if agents_without_ids := [
            agent_id for agent_id, view in agents.items() if anonymous_slots(view.plugins, claim.requested_slots)
        ]:
            chosen_agents = pending_session.designated_agents or tuple(agents)
            claim_agents = tuple(agent_id for agent_id in chosen_agents if agent_id not in agents_without_ids)
            if not claim_agents:
                pending_claim = replace(pending_claim, problem="no node knows its devices apart, to keep them")
            pending_session = replace(pending_session, designated_agents=claim_agents)
        first_kernel, *other_kernels = pending_session.kernels
        kernels = (replace(first_kernel, slots=first_kernel.slots + claim.requested_slots), *other_kernels)
        return replace(pending_session, kernels=kernels, device_requests=claim.device_requests, claim=pending_claim)
    if claim.status is ClaimStatus.ALLOCATING and not claim_holders:
        return replace(
            pending_session, claim=replace(pending_claim, problem="what it was given before is being returned")
        )
    assert claim.agent is not None
    view, devices = agents.get(claim.agent), to_allocation(claim.devices)
    problem = claim_problem(claim.agent, view, devices)
    if pending_session.designated_agents and claim.agent not in pending_session.designated_agents:
        problem = f"its devices are on {claim.agent}, which is not among the agents that were chosen"
    is_shared = view is not None and claim.status is not ClaimStatus.ALLOCATING and is_shareable(view.plugins, devices)
    pending_claim = replace(
        pending_claim, holders=() if is_shared else claim_holders, is_shared=is_shared, problem=problem
    )
    return replace(pending_session, designated_agents=(claim.agent,), claim=pending_claim)


def claim_problem(agent_id: AgentId, view: core.AgentView | None, devices: DeviceAllocation) -> str:
    """Returns why the devices of a claim cannot be used now, or an empty text if they can be used."""
    if view is None or not view.is_schedulable:
        return f"its agent {agent_id} is lost, or takes no sessions"
    plugin_devices = devices_by_id(view.plugins)
    for device_id in sorted(devices.device_ids()):
        device = plugin_devices.get(device_id)
        if device is None:
            return f"its agent {agent_id} has no device {device_id} any more"
        if device.health is not DeviceHealth.HEALTHY:
            reason = f": {device.health_reason:.200}" if device.health_reason else ""
            return f"its device {device_id} on {agent_id} cannot be used{reason}"
    return ""


def change_placed_claim(
    claim: Claim, placement: Placement, now: datetime
) -> tuple[ClaimChange | None, dict[KernelId, dict[str, Any]]]:
    """Returns the change of a device claim after its session was placed, and each kernel's devices and generation.

    Each kernel gets its own devices and those of the claim. The slots of the claim are recorded in the claim alone.
    """
    first_placement = placement.kernels[0]
    claimed_devices: Mapping[str, Mapping[str, str]]
    if claim.status.holds_devices:
        claim_change, claimed_devices = advance(claim, ClaimTrigger.PLACED, now=now), claim.devices
        own_devices = [from_allocation(kernel.devices) for kernel in placement.kernels]
    else:
        slots = first_placement.slots if first_placement.slots is not None else claim.requested_slots
        claim_slots = ResourceSlot({name: amount for name, amount in slots.items() if name not in HOST_PLUGINS})
        claimed_devices = from_allocation(_accelerators(first_placement))
        claim_change = advance(
            claim,
            ClaimTrigger.PLACED,
            now=now,
            agent=first_placement.agent_id,
            occupied_slots=claim_slots.nonzero(),
            devices=claimed_devices,
        )
        own_devices = [
            {slot: devices for slot, devices in from_allocation(kernel.devices).items() if slot not in claimed_devices}
            for kernel in placement.kernels
        ]
    kernel_details = {
        kernel.kernel_id: {"devices": {**devices, **claimed_devices}, "generation": kernel.generation}
        for kernel, devices in zip(placement.kernels, own_devices, strict=True)
    }
    return claim_change, kernel_details


def _accelerators(kernel: KernelPlacement) -> DeviceAllocation:
    return DeviceAllocation(
        slots={slot: devices for slot, devices in kernel.devices.slots.items() if slot not in HOST_PLUGINS}
    )
