"""Decides which pending sessions of a resource group start now, and on which devices.

Rules:

1. Sessions are tried in the order of the policy; ``fifo`` is by priority, then age.
2. A session is placed whole or not at all. A single-node session goes to one agent, the kernels of a multi-node session
   go wherever each fits best.
3. What no waiting can change for the better costs the others nothing: a session that is too early, waits for another
   one, exceeds a quota, matches no agent, requires what no device is, or would not even fit empty agents is skipped,
   and those behind it are tried.
4. Head of line: the first session that only lacks free resources reserves what it will run on: the one agent that
   lacks least of it (for a multi-node session as few agents as can hold it). Nobody else is put there. A session of
   whose agents one is reserved already reserves nothing: its turn comes when it is the first.
5. Where the policy preempts, a session that lacks free resources may end preemptible ones of smaller priority; their
   place is reserved for it. See preemption.py.
6. Every session that is not placed gets a reason that its owner can read.

docs/decisions/0025-reservation-for-the-head-of-line.md proves that no session starves, and states the cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_

from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.structs import replace
from ai.backend.core.allocation.node import without_placeholders
from ai.backend.core.scheduling import diagnosis, gates
from ai.backend.core.scheduling.index.agent_state import NodeClassCache
from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.index.equivalence import (
    MAX_CLASSES,
    EquivalenceCache,
    EquivalenceClass,
    QueuedSession,
    Verdict,
)
from ai.backend.core.scheduling.index.slot_index import mask_of, ranks_in_mask
from ai.backend.core.scheduling.ordering.queue import fifo_key
from ai.backend.core.scheduling.placement.gang import KernelAssignment, closest_agents
from ai.backend.core.scheduling.placement.preemption import Victims
from ai.backend.core.scheduling.placement.strategies import first_rank
from ai.backend.core.scheduling.placement.topology import ARRANGEMENTS, Arrangement
from ai.backend.core.scheduling.plan import Eviction, KernelPlacement, Placement, Plan, SkipReason, Wait
from ai.backend.core.scheduling.policy import Policy, Rng
from ai.backend.core.scheduling.snapshot import PendingSession, RunningSession, Snapshot, is_same_agent


def decide(
    snapshot: Snapshot | IncrementalScheduler,
    policy: Policy,
    *,
    now: datetime,
    rng: Rng,
    node_classes: NodeClassCache | None = None,
) -> Plan:
    """Plans placements down to devices for every pending session that can start now.

    Equal arguments give an equal plan. A :class:`Snapshot` is not changed. An :class:`IncrementalScheduler` is a
    snapshot that is updated from cycle to cycle: the resources of the sessions that the plan places are taken in it.
    ``rng`` is used where the policy leaves a choice to chance, ``node_classes`` are cached by a caller that decides
    repeatedly on snapshots.

    Raises:
        InvalidInput: the policy names an unknown order or placement.
    """
    policy.check()
    scheduler = snapshot if isinstance(snapshot, IncrementalScheduler) else IncrementalScheduler(snapshot, node_classes)
    plan = SchedulingCycle(scheduler, policy, now=now, rng=rng).run()
    for placement in plan.placements:
        scheduler.withdraw(placement.session_id)
    return plan


class IncrementalScheduler:
    """Keeps the scheduler's state with placed kernels allocated, so that a decision costs only what has changed.

    A decision on it equals a decision on a snapshot of its state.
    """

    def __init__(self, snapshot: Snapshot, node_classes: NodeClassCache | None = None) -> None:
        self.snapshot = snapshot
        self.index = AgentIndex(snapshot, node_classes if node_classes is not None else NodeClassCache())
        self._set_cursor()
        self.equivalence_cache = EquivalenceCache(self.index)
        self.capacity = sum(
            (node_class.totals * mask.bit_count() for node_class, mask in self.index.node_classes.items()),
            ResourceSlot(),
        )
        self._queued: dict[SessionId, QueuedSession] = {}
        self._sorted: list[QueuedSession] | None = None
        for session in snapshot.pending:
            self.enqueue(session)

    def _set_cursor(self) -> None:
        last_agent = self.snapshot.last_agent
        self.index.cursor = -1 if last_agent is None else self.index.ranks.get(last_agent, -1)

    def update(self, snapshot: Snapshot) -> bool:
        """Updates the state to a newer snapshot. Returns False if a new scheduler must be made for the snapshot."""
        old_snapshot = self.snapshot
        if (
            not self.index.is_exact
            or len(self.equivalence_cache.classes) > MAX_CLASSES
            or (old_snapshot.allocation_order, old_snapshot.workload, old_snapshot.device_workload)
            != (snapshot.allocation_order, snapshot.workload, snapshot.device_workload)
            or len(old_snapshot.agents) != len(snapshot.agents)
            or not all(map(is_same_agent, old_snapshot.agents, snapshot.agents))
        ):
            return False
        self.snapshot = snapshot
        if not self.index.update(snapshot):
            return False  # more is held than there is, and what of it counts depends on the order
        self._set_cursor()
        pending_sessions = {session.session_id: session for session in snapshot.pending}
        for session_id in self._queued.keys() - pending_sessions.keys():
            self.withdraw(session_id)
        self.equivalence_cache.trim(self._queued.values())
        for session_id, session in pending_sessions.items():
            queued_session = self._queued.get(session_id)
            if queued_session is None or (queued_session.session is not session and queued_session.session != session):
                self.enqueue(session)
        return True

    @property
    def queued_sessions(self) -> Sequence[QueuedSession]:
        """The pending sessions in FIFO order."""
        if self._sorted is None:
            self._sorted = sorted(self._queued.values(), key=lambda entry: fifo_key(entry.session))
        return self._sorted

    @property
    def free(self) -> Mapping[AgentId, ResourceSlot]:
        """The free slots of each agent."""
        return {agent.agent_id: agent.available for agent in self.index.agents}

    def enqueue(self, session: PendingSession) -> None:
        self._queued[session.session_id] = self.equivalence_cache.classify(session)
        self._sorted = None

    def withdraw(self, session_id: SessionId) -> None:
        """Removes a pending session."""
        if self._queued.pop(session_id, None) is not None:
            self._sorted = None

    def set_usage(self, occupied: Mapping[str, ResourceSlot], used_lately: Mapping[str, ResourceSlot]) -> None:
        """Replaces the amounts that the owners of sessions occupy now and have used lately."""
        self.snapshot = replace(self.snapshot, occupied=occupied, used_lately=used_lately)

    def release(self, agent_id: AgentId, kernel_id: KernelId) -> None:
        """Releases the resources of a kernel that has ended."""
        self.index.release(self.index.ranks[agent_id], kernel_id)


@dataclass(slots=True)
class SessionRng:
    """Returns one random number for all choices of a session, so that cached results do not change the sequence."""

    number: float = 0.0

    def random(self) -> float:
        return self.number


class SchedulingCycle:
    """Runs one decision. Agents only lose free resources meanwhile, so a session that does not fit stays unplaced."""

    def __init__(self, scheduler: IncrementalScheduler, policy: Policy, *, now: datetime, rng: Rng) -> None:
        self._index = scheduler.index
        self._choose = policy.placement_function
        self._arrange = policy.arrangement
        self._queue = policy.queue_order(scheduler.queued_sessions, scheduler.snapshot, scheduler.capacity)
        self._now = now
        self._rng = rng
        self._session_rng = SessionRng()
        self._quotas = gates.Quotas(scheduler.snapshot.quotas)
        self._victims: Victims | None = None
        if policy.preempts:
            self._victims = Victims(self._index, scheduler.snapshot.running, oldest_first=policy.oldest_first)
        self._evictions: list[Eviction] = []
        self._reserved = 0
        self._holders: dict[int, PendingSession] = {}
        self._placements: list[Placement] = []
        self._taken_claims: set[str] = set()
        self._waits: list[tuple[Verdict, list[SessionId]]] = []
        for quota_class in scheduler.equivalence_cache.quota_classes.values():
            quota_class.group = None
        for equivalence_class in scheduler.equivalence_cache.classes.values():
            equivalence_class.blocked = equivalence_class.group = None

    def run(self) -> Plan:
        for queued_session in self._queue:
            quota_class = queued_session.quota_class
            waiting_ids = quota_class.equivalence_class.group or quota_class.group
            if waiting_ids and not queued_session.is_gated:
                waiting_ids.append(queued_session.session.session_id)
            else:
                self._consider_session(queued_session)
        agents = self._index.agents
        waiting_groups = []
        for (reason, message), session_ids in self._waits:
            is_final = reason is SkipReason.DEPENDENCY_FAILED
            waiting_groups.append(
                Wait(session_ids=tuple(session_ids), reason=reason, message=message, is_final=is_final)
            )
        return Plan(
            placements=tuple(self._placements),
            waits=tuple(waiting_groups),
            evictions=tuple(self._evictions),
            reserved=tuple(
                (agents[rank].agent_id, session.session_id) for rank, session in sorted(self._holders.items())
            ),
            broken_agents=tuple(self._index.broken),
        )

    def _consider_session(self, queued_session: QueuedSession) -> None:
        session, quota_class = queued_session.session, queued_session.quota_class
        equivalence_class = quota_class.equivalence_class
        if queued_session.is_gated and (gate_verdict := self._check_gates(session)) is not None:
            self._waits.append((gate_verdict, [session.session_id]))
            return
        if equal_session_ids := equivalence_class.group or quota_class.group:
            equal_session_ids.append(session.session_id)
            return
        session_ids = [session.session_id]
        verdict = self._quotas.check(session) if quota_class.quotas else None
        if verdict is not None:
            quota_class.group = session_ids
        elif self._place_session(queued_session):
            return
        else:
            verdict = self._diagnose(queued_session)
            equivalence_class.group = session_ids if equivalence_class.blocked is not None else None
        self._waits.append((verdict, session_ids))

    def _check_gates(self, session: PendingSession) -> Verdict | None:
        return (
            gates.check_start_time(session, self._now)
            or gates.check_dependencies(session)
            or gates.check_claim(session, self._taken_claims)
        )

    # ---- placing

    def _place_session(self, queued_session: QueuedSession) -> bool:
        session, equivalence_class = queued_session.session, queued_session.quota_class.equivalence_class
        self._session_rng.number = self._rng.random()
        alternative, assignments = self._choose_alternative(session, equivalence_class)
        if assignments is None:
            return False
        has_amounts = alternative.has_amounts
        agents, placements = self._index.agents, []
        for index, (kernel, (rank, devices)) in enumerate(zip(session.kernels, assignments, strict=True)):
            agent = agents[rank]
            kernel_placement = KernelPlacement(
                kernel_id=kernel.kernel_id,
                agent_id=agent.agent_id,
                generation=agent.view.generation,
                devices=without_placeholders(devices) if agent.node_class.has_pools else devices,
                slots=alternative.parts[index].total if has_amounts else None,
            )
            placements.append(kernel_placement)
        self._placements.append(Placement(session_id=session.session_id, kernels=tuple(placements)))
        if session.quotas:
            self._quotas.count_session(session, alternative.total)
        if session.claim is not None and not session.claim.is_shared:
            self._taken_claims.add(session.claim.claim_id)
        self._queue.record_placement(queued_session, alternative)
        return True

    def _choose_alternative(
        self, session: PendingSession, equivalence_class: EquivalenceClass
    ) -> tuple[EquivalenceClass, Sequence[KernelAssignment] | None]:
        """Assigns the kernels of a session by the first of its alternatives that fits.

        An alternative on agents that just failed the session comes after all others.
        """
        alternatives, reserved_mask = equivalence_class.choices, self._reserved
        avoided_mask = self._index.designated_mask(session.avoided_agents) if len(alternatives) > 1 else 0
        for excluded_mask in (avoided_mask, 0) if avoided_mask else (0,):
            self._reserved = reserved_mask | excluded_mask
            for alternative in alternatives:
                if (
                    alternative.permanent_reason is None
                    and (assignments := self._assign_kernels(session, alternative)) is not None
                ):
                    self._reserved = reserved_mask
                    return alternative, assignments
        return equivalence_class, None

    def _assign_kernels(
        self, session: PendingSession, equivalence_class: EquivalenceClass
    ) -> Sequence[KernelAssignment] | None:
        kernel_ids = [kernel.kernel_id for kernel in session.kernels]
        avoided_mask = self._index.designated_mask(session.avoided_agents) if session.avoided_agents else 0
        if equivalence_class.whole is not None:
            return self._assign_to_agent(equivalence_class.whole, kernel_ids, avoided_mask)
        arrangement = self._arrange
        if arrangement is None and any(self._index.has_fabric(demand.total) for demand in equivalence_class.parts):
            arrangement = ARRANGEMENTS[
                "topology"
            ]  # kernels that a fabric can link are kept in one, whatever the policy
        if arrangement is None:
            return self._assign_gang(equivalence_class, kernel_ids, avoided_mask, None, None)
        for allowed_mask in (~avoided_mask, -1) if avoided_mask else (-1,):
            for mask in arrangement.scopes(self._index, equivalence_class, allowed_mask & ~self._reserved):
                if (assignments := self._assign_gang(equivalence_class, kernel_ids, 0, mask, arrangement)) is not None:
                    return assignments
        return None

    def _assign_gang(
        self,
        equivalence_class: EquivalenceClass,
        kernel_ids: Sequence[KernelId],
        avoided_mask: int,
        agent_mask: int | None,
        arrangement: Arrangement | None,
    ) -> Sequence[KernelAssignment] | None:
        """Assigns the kernels of a multi-node session within a mask of agents; returns None if one does not fit."""
        assignment_of_index: dict[int, KernelAssignment] = {}
        cursor = self._index.cursor
        for index in equivalence_class.hardest:
            demand, ids_of_kernel = equivalence_class.parts[index], kernel_ids[index : index + 1]
            ranks = [assignment.rank for assignment in assignment_of_index.values()]
            masks = (
                (agent_mask,)
                if arrangement is None or agent_mask is None
                else arrangement.order(self._index, demand, agent_mask, ranks)
            )
            one_assignment = next(
                (
                    one_assignment
                    for mask in masks
                    if (one_assignment := self._assign_to_agent(demand, ids_of_kernel, avoided_mask, mask))
                ),
                None,
            )
            if one_assignment is None:
                for undone_index, assignment in assignment_of_index.items():
                    self._index.undo(assignment.rank, kernel_ids[undone_index], set(equivalence_class.parts))
                self._index.cursor = cursor
                return None
            assignment_of_index[index] = one_assignment[0]
        return [assignment_of_index[index] for index in range(len(kernel_ids))]

    def _assign_to_agent(
        self, demand: Demand, kernel_ids: Sequence[KernelId], avoided_mask: int, allowed_mask: int | None = None
    ) -> list[KernelAssignment] | None:
        """Assigns kernels to one agent of a mask. Tries the avoided agents last. Returns None if no agent has room."""
        index = self._index
        agent_mask = demand.open_mask()
        if allowed_mask is not None:
            agent_mask &= allowed_mask
        if self._reserved:
            agent_mask &= ~self._reserved
        for candidate_mask in (
            (agent_mask & ~avoided_mask, agent_mask & avoided_mask) if avoided_mask else (agent_mask,)
        ):
            while candidate_mask and (rank := self._choose(index, demand, candidate_mask, self._session_rng)) >= 0:
                allocations = index.take(rank, demand, kernel_ids)
                if allocations is not None:
                    return [KernelAssignment(rank, devices) for devices in allocations]
                candidate_mask &= ~(1 << rank)
        return None

    # ---- not placed

    def _diagnose(self, queued_session: QueuedSession) -> Verdict:
        """Returns why a session was not placed. Reserves agents for the session if it is the first to need them."""
        session, equivalence_class, index = (
            queued_session.session,
            queued_session.quota_class.equivalence_class,
            self._index,
        )
        for alternative in equivalence_class.choices:
            if not alternative.is_checked:
                alternative.is_checked = True
                alternative.permanent_reason = diagnosis.permanent_reason(index, alternative, session)
        possible_alternatives = [
            alternative for alternative in equivalence_class.choices if alternative.permanent_reason is None
        ]
        if not possible_alternatives:
            verdict = diagnosis.summarize([alternative.permanent_reason for alternative in equivalence_class.choices])
            equivalence_class.blocked = equivalence_class.permanent_reason = verdict
            return verdict
        masks = [self._capable_mask(alternative) for alternative in possible_alternatives]
        if self._victims is not None:
            for alternative, mask in zip(possible_alternatives, masks, strict=True):
                if alternative.whole is not None and (
                    victims := self._victims.choose(session, alternative.whole, mask & ~self._reserved)
                ):
                    return self._preempt_sessions(session, *victims)
        capable_mask = reduce(or_, masks)
        reserved_mask = capable_mask & self._reserved
        if reserved_mask and (
            reserved_mask == capable_mask
            or any(
                demand.fitting_mask() & reserved_mask
                for alternative in possible_alternatives
                for demand in alternative.demands
            )
        ):
            message = f"waits behind session {self._holders[first_rank(reserved_mask)].name}, which came first"
            equivalence_class.blocked = verdict = SkipReason.BEHIND_ANOTHER, message
            return verdict
        verdict = diagnosis.summarize(
            [
                (
                    SkipReason.INSUFFICIENT_RESOURCE,
                    diagnosis.shortage(index, alternative, mask & ~reserved_mask or mask),
                )
                for alternative, mask in zip(possible_alternatives, masks, strict=True)
            ]
        )
        if reserved_mask:
            equivalence_class.blocked = verdict
        else:
            # One alternative is waited for, so that what is reserved stays the same until it fits.
            self._reserve_agents(session, possible_alternatives[0], masks[0])
        return verdict

    def _capable_mask(self, equivalence_class: EquivalenceClass) -> int:
        return reduce(or_, map(self._index.capable_mask, equivalence_class.demands), 0)

    def _preempt_sessions(self, session: PendingSession, rank: int, victims: Sequence[RunningSession]) -> Verdict:
        """Plans the eviction of sessions from one agent, and reserves the agent for the session that needs it.

        That session takes the agent in a later cycle.
        """
        for victim in victims:
            eviction = Eviction(
                session_id=victim.session_id, in_favour_of=session.session_id, starts_over=victim.starts_over
            )
            self._evictions.append(eviction)
        self._reserved |= 1 << rank
        self._holders[rank] = session
        agent_id = self._index.agents[rank].agent_id
        if not victims:
            return SkipReason.PREEMPTING, f"sessions on {agent_id} are ending, and their place is kept for it"
        sessions_text = "1 session" if len(victims) == 1 else f"{len(victims)} sessions"
        return SkipReason.PREEMPTING, f"{sessions_text} of smaller priority on {agent_id} will end for it"

    def _reserve_agents(self, session: PendingSession, equivalence_class: EquivalenceClass, capable_mask: int) -> None:
        if equivalence_class.whole is not None:
            ranks: Sequence[int] = [self._index.closest_rank(equivalence_class.whole, capable_mask)]
        else:
            ranks = closest_agents(self._index, equivalence_class, capable_mask) or ranks_in_mask(capable_mask)
        self._reserved |= mask_of(ranks, self._index.size)
        self._holders.update(dict.fromkeys(ranks, session))
