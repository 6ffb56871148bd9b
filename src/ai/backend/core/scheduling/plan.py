"""Describes the result of a scheduling decision as data."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.scheduling.snapshot import Snapshot


class SkipReason(StrEnum):
    """Lists the reasons why a session was not placed.

    The values are stable slugs, used in ``status_info`` and metric labels.
    """

    NOT_YET = "not-yet"
    DEPENDENCY_UNFINISHED = "dependency-unfinished"
    DEPENDENCY_FAILED = "dependency-failed"
    QUOTA_EXCEEDED = "quota-exceeded"
    NO_AGENT = "no-agent"
    NO_MATCHING_AGENT = "no-matching-agent"
    UNSUPPORTED_RESOURCE = "unsupported-resource"
    NO_MATCHING_DEVICE = "no-matching-device"
    DEVICES_FAILED = "devices-failed"
    NEVER_FITS = "never-fits"
    INSUFFICIENT_RESOURCE = "insufficient-resource"
    BEHIND_ANOTHER = "behind-another"
    PREEMPTING = "preempting"
    CLAIM_IN_USE = "claim-in-use"
    CLAIM_UNAVAILABLE = "claim-unavailable"


class KernelPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """Assigns one kernel to an agent and to its devices. ``generation`` is that of the agent's inventory.

    ``slots``: what it takes by the alternative that was chosen; None where alternatives have no amounts of their own.
    """

    kernel_id: KernelId
    agent_id: AgentId
    generation: int
    devices: DeviceAllocation
    slots: ResourceSlot | None = None


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Assigns every kernel of one session, in the order of the snapshot's kernels."""

    session_id: SessionId
    kernels: tuple[KernelPlacement, ...]


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a session that was not placed, and why.

    ``message`` is for its owner. ``is_final``: waiting will not change it.
    """

    session_id: SessionId
    reason: SkipReason
    message: str
    is_final: bool = False


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Groups sessions that wait for the same reason, in queue order. The other fields are as in :class:`Skip`."""

    session_ids: tuple[SessionId, ...]
    reason: SkipReason
    message: str
    is_final: bool = False


class Eviction(msgspec.Struct, frozen=True, kw_only=True):
    """Ends a running session in favour of another session. With ``starts_over`` it waits again afterwards."""

    session_id: SessionId
    in_favour_of: SessionId
    starts_over: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the complete result of a decision. Each pending session appears once, in ``placements`` or in ``waits``.

    ``reserved``: agents that are held back for sessions. ``broken_agents``: agents whose devices contradict each other.
    """

    placements: tuple[Placement, ...] = ()
    waits: tuple[Wait, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    reserved: tuple[tuple[AgentId, SessionId], ...] = ()
    broken_agents: tuple[tuple[AgentId, str], ...] = ()

    @property
    def skips(self) -> tuple[Skip, ...]:
        """Returns every waiting session with its reason."""
        return tuple(
            Skip(session_id=session_id, reason=wait.reason, message=wait.message, is_final=wait.is_final)
            for wait in self.waits
            for session_id in wait.session_ids
        )

    def skip_of(self, session_id: SessionId) -> Skip | None:
        return next((skip for skip in self.skips if skip.session_id == session_id), None)


def describe(snapshot: Snapshot, plan: Plan, *, only_session_id: SessionId | None = None) -> str:
    """Formats a plan for a person.

    Each line names a pending session with its placement or with the reason for its waiting.
    """
    session_names = {session.session_id: session.name for session in snapshot.pending}
    lines = []
    for placement in plan.placements:
        kernel_texts = []
        for kernel in placement.kernels:
            slot_texts = [
                f"{slot} on {', '.join(sorted(quantity_of_device))}"
                for slot, quantity_of_device in sorted(kernel.devices.slots.items())
            ]
            kernel_texts.append(f"{kernel.agent_id} ({'; '.join(slot_texts)})")
        lines.append(
            (placement.session_id, f"placed   {session_names[placement.session_id]}: {', '.join(kernel_texts)}")
        )
    lines += [
        (session.session_id, f"waiting  {session_names[session.session_id]}: {session.message} [{session.reason}]")
        for session in plan.skips
    ]
    chosen_lines = [line_text for session_id, line_text in lines if only_session_id in (None, session_id)]
    if only_session_id is None:
        chosen_lines += [
            f"reserved {agent_id} for {session_names[session_id]}" for agent_id, session_id in plan.reserved
        ]
        chosen_lines += [
            f"ending   {eviction.session_id} in favour of {session_names[eviction.in_favour_of]}"
            f"{', to wait again' if eviction.starts_over else ''}"
            for eviction in plan.evictions
        ]
        chosen_lines += [f"unusable {agent_id}: {problem}" for agent_id, problem in plan.broken_agents]
    return "\n".join(chosen_lines) or f"no session waits in resource group {snapshot.resource_group}"
