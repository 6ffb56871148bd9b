"""Checks the invariants of a simulated control plane: after each transaction, at rest, and at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import (
    ClaimStatus,
    KernelEventReason,
    KernelStatus,
    SessionResult,
    SessionStatus,
    SessionType,
)
from ai.backend.core.lifecycle import session as machine
from ai.backend.core.lifecycle.kernel import HOLDING
from ai.backend.manager.sessions.memory import Memory
from ai.backend.manager.sessions.model import Kernel, Session
from ai.backend.manager.sessions.transitions import session_state
from ai.backend.plugin.runtime import WorkloadKey
from ai.backend.simulator.node import Node
from ai.backend.simulator.world import World

if TYPE_CHECKING:
    from ai.backend.simulator.cluster import Cluster
    from ai.backend.simulator.daemons import AgentDaemon

_LASTING_STATUSES = (SessionStatus.PENDING, SessionStatus.RUNNING)
_DEVICE_HOLDING_STATUSES = (ClaimStatus.IN_USE, ClaimStatus.IDLE)
_MAX_TRANSIENT_S = 170.0
"""Below the deadlines after which a manager gives up what it does not understand."""


class Invariants:
    """Checks the invariants and collects the violations in ``broken``."""

    def __init__(self, world: World, memory: Memory, nodes: Sequence[Node]) -> None:
        self.broken: list[str] = []
        self._world = world
        self._since: dict[SessionId, tuple[SessionStatus, float]] = {}
        self._memory = memory
        self._nodes = nodes
        self._seen: dict[SessionId, Session] = {}
        self._tokens: dict[str, SessionId] = {}

    def record_session_id(self, session_id: SessionId, token: str) -> None:
        """Records the session id that a client received for its request token, and a violation for a second id."""
        if self._tokens.setdefault(token, session_id) != session_id:
            self.broken.append(f"{token} gave two sessions")

    def check_after_commit(self) -> None:
        """Checks the sessions that have changed since the last transaction."""
        memory = self._memory
        changed_sessions = {
            session_key: session
            for session_key, session in memory.sessions.items()
            if self._seen.get(session_key) is not session
        }
        for session_id, session in changed_sessions.items():
            previous_session = self._seen.get(session_id)
            self._seen[session_id] = session
            self.broken += [f"{session.name}: {violation}" for violation in machine.check(session_state(session))]
            self._check_kernels(session)
            if (
                previous_session is not None
                and previous_session.status.is_final
                and session.status is not previous_session.status
            ):
                self.broken.append(f"{session.name} left {previous_session.status}, which is final")
        if self._seen.keys() != memory.sessions.keys():
            self.broken.append("a session is lost")
        if changed_sessions:
            self._check_slots()

    def _check_kernels(self, session: Session) -> None:
        if session.reason is KernelEventReason.WORKLOAD_NOT_FOUND and session.status.is_final:
            keys_ended_alive = {key for node in self._nodes for key in node.ended_alive}
            if {
                WorkloadKey(kernel_id=member_kernel.id, attempt=member_kernel.attempt)
                for member_kernel in session.kernels
            } <= keys_ended_alive:
                self.broken.append(f"{session.name} was ended because nothing ran, and it ran")
        for kernel in session.kernels:
            if kernel.reason is KernelEventReason.NOT_FOUND_IN_MANAGER:
                self.broken.append(f"{session.name} was ended as unknown, and is not")
            held_slots = kernel.requested_slots if kernel.status in HOLDING else ResourceSlot()
            if kernel.occupied_slots.nonzero() != held_slots.nonzero():
                self.broken.append(f"{session.name}: a kernel in {kernel.status} occupies {kernel.occupied_slots!r}")

    def watch(self) -> None:
        """Checks that no session stays in a transient state."""
        for session in self._memory.sessions.values():
            status, status_since = self._since.get(session.id, (None, 0.0))
            if status is not session.status:
                self._since[session.id] = session.status, self._world.now
            elif (
                session.status not in _LASTING_STATUSES
                and not status.is_final
                and self._world.now - status_since > _MAX_TRANSIENT_S
            ):
                self.broken.append(f"{session.name} is {session.status} for {self._world.now - status_since:.0f} s")
                self._since[session.id] = session.status, self._world.now

    def _check_slots(self) -> None:
        """Checks that slots are counted for exactly the kernels that hold some, and that no device is used twice."""
        memory = self._memory
        held_slots_by_agent: dict[str, ResourceSlot] = {}
        used_amounts: dict[tuple[str, str, str], Decimal] = {}
        for session in memory.sessions.values():
            if session.status.is_final:
                continue
            for kernel in session.kernels:
                if kernel.agent is None or kernel.status not in HOLDING:
                    continue
                held_slots_by_agent[kernel.agent] = (
                    held_slots_by_agent.get(kernel.agent, ResourceSlot()) + kernel.requested_slots
                )
                reported_devices = kernel.devices if kernel.status is KernelStatus.RUNNING else {}
                if session.claim_id is not None:
                    self._check_claimed(session, kernel)
                    reported_devices = {
                        slot_name: amounts_by_device
                        for slot_name, amounts_by_device in reported_devices.items()
                        if kernel.requested_slots[slot_name]
                    }
                _count_devices(used_amounts, kernel.agent, reported_devices)
        for claim in memory.claims.values():
            if claim.status.holds_devices != (claim.agent is not None):
                self.broken.append(f"the claim {claim.name} is {claim.status} on {claim.agent}")
            if claim.agent is not None:
                held_slots_by_agent[claim.agent] = (
                    held_slots_by_agent.get(claim.agent, ResourceSlot()) + claim.occupied_slots
                )
                _count_devices(
                    used_amounts, claim.agent, claim.devices if claim.status in _DEVICE_HOLDING_STATUSES else {}
                )
        for agent in memory.agents.values():
            if held_slots_by_agent.get(agent.id, ResourceSlot()).nonzero() != agent.occupied_slots.nonzero():
                self.broken.append(
                    f"{agent.id} counts {agent.occupied_slots!r}, and {held_slots_by_agent.get(agent.id)!r} are held"
                )
        self.broken += [
            f"{device_key} is given {quantity} times" for device_key, quantity in used_amounts.items() if quantity > 1
        ]

    def _check_claimed(self, session: Session, kernel: Kernel) -> None:
        """Checks that a kernel has the devices of its claim, on the claim's agent, and holds the claim alone."""
        claim = self._memory.claims.get(session.claim_id) if session.claim_id is not None else None
        if claim is None or claim.agent != kernel.agent:
            self.broken.append(f"{session.name} is on {kernel.agent}, and its claim is not")
        elif claim.status not in (ClaimStatus.ALLOCATING, ClaimStatus.IN_USE):
            self.broken.append(f"{session.name} is on an agent, and its claim is {claim.status}")
        elif session.status is SessionStatus.RUNNING and claim.status is not ClaimStatus.IN_USE:
            self.broken.append(f"{session.name} runs, and its claim is {claim.status}")
        elif kernel.status is KernelStatus.RUNNING:
            claimed_devices = {slot: devices for slot, devices in kernel.devices.items() if claim.occupied_slots[slot]}
            if claim.status is ClaimStatus.IN_USE and claimed_devices != claim.devices:
                self.broken.append(f"{session.name} has {claimed_devices}, and its claim {claim.devices}")
        sharing_sessions = [
            other_session.name
            for other_session in self._memory.sessions.values()
            if other_session.claim_id == session.claim_id
            and other_session.id != session.id
            and any(len(other_kernel.holds) for other_kernel in other_session.kernels)
        ]
        if sharing_sessions:
            self.broken.append(f"{session.name} and {sharing_sessions} hold one claim")

    # ---- at rest

    def check_at_rest(self, cluster: Cluster) -> None:
        """Checks that waiting sessions have a reason and that callbacks, events and results are right."""
        for session in cluster.sessions():
            if is_unexplained(session):
                self.broken.append(f"{session.name} waits and nobody says why")
        self.broken += [problem for session in cluster.sessions() if (problem := self._wrong_result(session))]
        for node in self._nodes:
            self.broken += node.check() + node.broken
        self._check_callbacks(cluster)
        self._check_events(cluster)

    def _check_callbacks(self, cluster: Cluster) -> None:
        """Checks that callbacks arrived in order for each session, and at least once."""
        received_ids = {callback_id for callback_ids in cluster.inbox.received.values() for callback_id in callback_ids}
        lost_count = cluster.memory.callback_id - len(received_ids)
        if lost_count:
            self.broken.append(f"{lost_count} callbacks never came")
        for url, callback_ids in cluster.inbox.received.items():
            ids_in_arrival_order = list(dict.fromkeys(callback_ids))
            if ids_in_arrival_order != sorted(ids_in_arrival_order):
                self.broken.append(f"callbacks to {url} came in the order {callback_ids}")

    def _check_events(self, cluster: Cluster) -> None:
        """Checks that the last event of each session fits the session's stored status."""
        last_events: dict[SessionId, str] = {}
        for event in cluster.memory.events:
            if event.session_id is not None and event.kernel_id is None:
                last_events[event.session_id] = event.name
        for session in cluster.sessions():
            event_name = last_events.get(session.id, "")
            if session.status is SessionStatus.RUNNING and event_name not in ("session_started", "session_recovered"):
                self.broken.append(f"{session.name} is RUNNING, and {event_name} was its last event")

    @staticmethod
    def _wrong_result(session: Session) -> str:
        """Returns how the result of a batch session contradicts the end of its program, or an empty text."""
        if session.type is not SessionType.BATCH or session.status is not SessionStatus.TERMINATED:
            return ""
        expected_result = {
            KernelEventReason.TASK_FINISHED: SessionResult.SUCCESS,
            KernelEventReason.TASK_FAILED: SessionResult.FAILURE,
        }.get(session.main.reason, session.result)
        return (
            ""
            if session.result is expected_result
            else f"{session.name} has {session.main.reason} and {session.result}"
        )

    # ---- at the end

    def check_at_end(self, cluster: Cluster) -> None:
        self.check_at_rest(cluster)
        for session in cluster.sessions():
            if not session.status.is_final:
                self.broken.append(f"{session.name} is {session.status} in the end")
        self.broken += [f"the claim {claim.name} is {claim.status}" for claim in cluster.memory.claims.values()]
        for agent in cluster.memory.agents.values():
            if agent.occupied_slots.nonzero():
                self.broken.append(f"{agent.id} still counts {agent.occupied_slots!r}")
        for node in self._nodes:
            if node.fake.workloads:
                self.broken.append(f"{node.name} has {len(node.fake.workloads)} workloads left")
            if node.fake.networks:
                self.broken.append(f"{node.name} has {len(node.fake.networks)} networks left")
            if node.owed:
                self.broken.append(f"{node.name}: post_terminate never succeeded for {list(node.owed)[:3]}")


def is_unexplained(session: Session) -> bool:
    """Returns True if a session waits and no pass of the scheduler has said why."""
    return session.status is SessionStatus.PENDING and not session.status_data.get("scheduler", {}).get("reason")


def _count_devices(
    used_amounts: dict[tuple[str, str, str], Decimal],
    agent_id: AgentId,
    reported_devices: Mapping[str, Mapping[str, str]],
) -> None:
    for slot, quantities in reported_devices.items():
        for device, quantity in quantities.items():
            device_key = agent_id, slot, device
            used_amounts[device_key] = used_amounts.get(device_key, Decimal(0)) + Decimal(quantity)


def first_leftover(memory: Memory, agents: Sequence[AgentDaemon]) -> str:
    """Describes the first leftover that keeps a simulated cluster from rest; an empty text if there is none.

    A leftover is a workload, kernel, observation or plugin call that an agent holds although no session needs it, a
    running kernel without a workload, or a callback that was not delivered.
    """
    held_attempts: set[tuple[KernelId, int]] = {
        (kernel.id, kernel.attempt)
        for session in memory.sessions.values()
        for kernel in session.kernels
        if kernel.status in HOLDING
    }
    for daemon in agents:
        unknown_workloads = [
            key for key in daemon.node.fake.workloads if (key.kernel_id, key.attempt) not in held_attempts
        ]
        if unknown_workloads:
            return f"{daemon.name} has {len(unknown_workloads)} workloads that nobody counts on"
        if any(attempt not in held_attempts for attempt in daemon.disk.live_kernels()):
            return f"{daemon.name} has kernels that nobody counts on"
        if daemon.disk.has_news(memory.acks.get(AgentId(daemon.agent_id))):
            return f"{daemon.name} has observations to tell"
        if daemon.disk.owes_plugin_calls():
            return f"{daemon.name} owes calls of plugins"
    expected_workloads = {
        (kernel.agent, kernel.id, kernel.attempt)
        for session in memory.sessions.values()
        if session.status is SessionStatus.RUNNING
        for kernel in session.kernels
    }
    live_workloads = {(daemon.agent_id, key.kernel_id, key.attempt) for daemon in agents for key in daemon.node.live()}
    if expected_workloads != live_workloads:
        missing_count, extra_count = len(expected_workloads - live_workloads), len(live_workloads - expected_workloads)
        return f"{missing_count} kernels that run have no workload, {extra_count} none that runs"
    if memory.callbacks:
        return f"{len(memory.callbacks)} callbacks are not told"
    return ""
