"""The scheduling decision.

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

The argument why nobody starves, and what it costs, is in docs/decisions/0025-reserve-what-is-needed.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.node import without_placeholders
from ai.backend.core.scheduling import diagnosis, gates
from ai.backend.core.scheduling.index.agent_state import NodeClassCache
from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.index.equivalence import (
    MOST_SHAPES,
    EquivalenceCache,
    EquivalenceClass,
    QueuedSession,
    Verdict,
)
from ai.backend.core.scheduling.index.slot_index import mask_of, members
from ai.backend.core.scheduling.ordering.queue import fifo_key
from ai.backend.core.scheduling.placement.gang import KernelAssignment, closest_agents, unassign
from ai.backend.core.scheduling.placement.preemption import Victims
from ai.backend.core.scheduling.placement.strategies import first
from ai.backend.core.scheduling.plan import Eviction, KernelPlacement, Placement, Plan, SkipReason, Wait
from ai.backend.core.scheduling.policy import ORDERS, Policy, Rng
from ai.backend.core.scheduling.snapshot import PendingSession, RunningSession, Snapshot, is_same_agent


def decide(
    snapshot: Snapshot | IncrementalScheduler,
    policy: Policy,
    *,
    now: datetime,
    rng: Rng,
    makes: NodeClassCache | None = None,
) -> Plan:
    """Plan placements down to devices for every pending session that can start now.

    Equal arguments give an equal plan. A :class:`Snapshot` is not changed. An :class:`IncrementalScheduler` is a
    snapshot that is updated from cycle to cycle: the resources of the sessions that the plan places are taken in it.

    Args:
        snapshot: what is decided on.
        policy: how.
        now: when.
        rng: decides where the policy leaves a choice to chance.
        makes: of a caller that decides again and again on snapshots.

    Raises:
        InvalidInput: the policy names an unknown order or placement.
    """
    policy.check()
    board = snapshot if isinstance(snapshot, IncrementalScheduler) else IncrementalScheduler(snapshot, makes)
    plan = SchedulingCycle(board, policy, now=now, rng=rng).run()
    for placement in plan.placements:
        board.withdraw(placement.session_id)
    return plan


class IncrementalScheduler:
    """A snapshot that is kept up to date from one decision to the next, so that each costs what has changed.

    What a plan places is taken on the board. Deciding on a board is deciding on a snapshot of it.
    """

    def __init__(self, snapshot: Snapshot, makes: NodeClassCache | None = None) -> None:
        self.snapshot = snapshot
        self.fleet = AgentIndex(snapshot, makes if makes is not None else NodeClassCache())
        self._point()
        self.shapes = EquivalenceCache(self.fleet)
        self.capacity = sum((make.totals * mask.bit_count() for make, mask in self.fleet.makes.items()), ResourceSlot())
        self._entries: dict[SessionId, QueuedSession] = {}
        self._sorted: list[QueuedSession] | None = None
        for session in snapshot.pending:
            self.enqueue(session)

    def _point(self) -> None:
        last = self.snapshot.last_agent
        self.fleet.cursor = -1 if last is None else self.fleet.ranks.get(last, -1)

    def renew(self, snapshot: Snapshot) -> bool:
        """Become the board of another moment, at the cost of what has changed; or False, where only a new one can."""
        before = self.snapshot
        if (
            not self.fleet.is_exact
            or len(self.shapes.shapes) > MOST_SHAPES
            or (before.allocation_order, before.workload) != (snapshot.allocation_order, snapshot.workload)
            or len(before.agents) != len(snapshot.agents)
            or not all(map(is_same_agent, before.agents, snapshot.agents))
        ):
            return False
        self.snapshot = snapshot
        if not self.fleet.renew(snapshot):
            return False  # more is held than there is, and what of it counts depends on the order
        self._point()
        pending = {session.session_id: session for session in snapshot.pending}
        for session_id in self._entries.keys() - pending.keys():
            self.withdraw(session_id)
        self.shapes.tidy(self._entries.values())
        for session_id, session in pending.items():
            known = self._entries.get(session_id)
            if known is None or (known.session is not session and known.session != session):
                self.enqueue(session)
        return True

    @property
    def entries(self) -> Sequence[QueuedSession]:
        """In the order of fifo."""
        if self._sorted is None:
            self._sorted = sorted(self._entries.values(), key=lambda e: fifo_key(e.session))
        return self._sorted

    @property
    def free(self) -> Mapping[AgentId, ResourceSlot]:
        """What each agent has left."""
        return {agent.agent_id: agent.available for agent in self.fleet.agents}

    def enqueue(self, session: PendingSession) -> None:
        self._entries[session.session_id] = self.shapes.entry(session)
        self._sorted = None

    def withdraw(self, session_id: SessionId) -> None:
        """A pending session is gone."""
        if self._entries.pop(session_id, None) is not None:
            self._sorted = None

    def account(self, occupied: Mapping[str, ResourceSlot], used_lately: Mapping[str, ResourceSlot]) -> None:
        """What the owners of sessions use has changed."""
        self.snapshot = replace(self.snapshot, occupied=occupied, used_lately=used_lately)

    def release(self, agent_id: AgentId, kernel_id: KernelId) -> None:
        """A kernel that an agent held is over."""
        self.fleet.release(self.fleet.ranks[agent_id], kernel_id)


class SchedulingCycle:
    """One decision in progress. Agents only lose what they have free: who cannot be placed stays so."""

    def __init__(self, board: IncrementalScheduler, policy: Policy, *, now: datetime, rng: Rng) -> None:
        self._fleet = board.fleet
        self._choose = policy.choose
        self._arrange = policy.arrange
        self._queue = ORDERS[policy.order](board.entries, board.snapshot, board.capacity)
        self._now = now
        self._rng = rng
        self._quotas = gates.Quotas(board.snapshot.quotas)
        self._victims = self._victims_of(board.snapshot.running, policy)
        self._evictions: list[Eviction] = []
        self._reserved = 0
        self._holders: dict[int, PendingSession] = {}
        self._placements: list[Placement] = []
        self._waits: list[tuple[Verdict, list[SessionId]]] = []
        for lane in board.shapes.lanes.values():
            lane.group = None
        for shape in board.shapes.shapes.values():
            shape.stuck = shape.group = None

    def _victims_of(self, running: Sequence[RunningSession], policy: Policy) -> Victims | None:
        return Victims(self._fleet, running, oldest_first=policy.oldest_first) if policy.preempts else None

    def run(self) -> Plan:
        for entry in self._queue:
            lane = entry.lane
            group = lane.shape.group or lane.group
            if group and not entry.is_gated:
                group.append(entry.session.session_id)
            else:
                self._consider(entry)
        agents = self._fleet.agents
        return Plan(
            placements=tuple(self._placements),
            waits=tuple(
                Wait(
                    session_ids=tuple(ids),
                    reason=reason,
                    message=message,
                    is_final=reason is SkipReason.DEPENDENCY_FAILED,
                )
                for (reason, message), ids in self._waits
            ),
            evictions=tuple(self._evictions),
            reserved=tuple((agents[rank].agent_id, s.session_id) for rank, s in sorted(self._holders.items())),
            broken_agents=tuple(self._fleet.broken),
        )

    def _consider(self, entry: QueuedSession) -> None:
        session, lane = entry.session, entry.lane
        shape = lane.shape
        if entry.is_gated and (gate := gates.timing(session, self._now) or gates.dependency(session)) is not None:
            self._waits.append((gate, [session.session_id]))
            return
        if waiting_alike := shape.group or lane.group:
            waiting_alike.append(session.session_id)
            return
        group = [session.session_id]
        verdict = self._quotas.exceeded(session) if lane.quotas else None
        if verdict is not None:
            lane.group = group
        elif self._place(entry):
            return
        else:
            verdict = self._why(entry)
            shape.group = group if shape.stuck is not None else None
        self._waits.append((verdict, group))

    # ---- placing

    def _place(self, entry: QueuedSession) -> bool:
        session, shape = entry.session, entry.lane.shape
        if shape.never is not None:
            return False
        seats = self._seats(session, entry)
        if seats is None:
            return False
        agents, kernels = self._fleet.agents, []
        for kernel, (rank, devices) in zip(session.kernels, seats, strict=True):
            agent = agents[rank]
            placed = KernelPlacement(
                kernel_id=kernel.kernel_id,
                agent_id=agent.agent_id,
                generation=agent.view.generation,
                devices=without_placeholders(devices) if agent.make.has_pools else devices,
            )
            kernels.append(placed)
        self._placements.append(Placement(session_id=session.session_id, kernels=tuple(kernels)))
        if session.quotas:
            self._quotas.count(session)
        self._queue.placed(entry)
        return True

    def _seats(self, session: PendingSession, entry: QueuedSession) -> Sequence[KernelAssignment] | None:
        shape, kernel_ids = entry.lane.shape, [k.kernel_id for k in session.kernels]
        avoided = self._fleet.designated(session.avoided_agents) if session.avoided_agents else 0
        if shape.whole is not None:
            return self._seat(shape.whole, kernel_ids, avoided)
        if self._arrange is None:
            return self._gang(shape, kernel_ids, avoided, None)
        for here in (~avoided, -1) if avoided else (-1,):
            for room in self._arrange.rooms(self._fleet, shape, here & ~self._reserved):
                if (found := self._gang(shape, kernel_ids, 0, room)) is not None:
                    return found
        return None

    def _gang(
        self, shape: EquivalenceClass, kernel_ids: Sequence[KernelId], avoided: int, room: int | None
    ) -> Sequence[KernelAssignment] | None:
        """Seats for every kernel of a multi-node session on agents of a mask."""
        seats: list[KernelAssignment | None] = [None] * len(kernel_ids)
        arrange, cursor = self._arrange, self._fleet.cursor
        for i in shape.hardest:
            demand, ids = shape.parts[i], kernel_ids[i : i + 1]
            taken = [seat.rank for seat in seats if seat is not None] if arrange else ()
            masks = (room,) if arrange is None or room is None else arrange.order(self._fleet, demand, room, taken)
            found = next((seat for mask in masks if (seat := self._seat(demand, ids, avoided, mask))), None)
            if found is None:
                unassign(self._fleet, shape, kernel_ids, seats)
                self._fleet.cursor = cursor
                return None
            seats[i] = found[0]
        return [seat for seat in seats if seat is not None]

    def _seat(
        self, demand: Demand, kernel_ids: Sequence[KernelId], avoided: int, within: int | None = None
    ) -> list[KernelAssignment] | None:
        """Seats on one agent of a mask, if any has room; those that just failed the session come last."""
        fleet = self._fleet
        scope = demand.open()
        if within is not None:
            scope &= within
        if self._reserved:
            scope &= ~self._reserved
        for here in (scope & ~avoided, scope & avoided) if avoided else (scope,):
            while here and (rank := self._choose(fleet, demand, here, self._rng)) >= 0:
                taken = fleet.take(rank, demand, kernel_ids)
                if taken is not None:
                    return [KernelAssignment(rank, devices) for devices in taken]
                here &= ~(1 << rank)
        return None

    # ---- not placed

    def _why(self, entry: QueuedSession) -> Verdict:
        """Find out what an unplaced session waits for, and reserve what it needs if it is the first to need it."""
        session, shape, fleet = entry.session, entry.lane.shape, self._fleet
        if not shape.is_judged:
            shape.is_judged, shape.never = True, diagnosis.never(fleet, shape, session)
        if shape.never is not None:
            shape.stuck = shape.never
            return shape.never
        able = 0
        for demand in shape.able_parts:
            able |= fleet.able(demand)
        if self._victims is not None and shape.whole is not None:
            chosen = self._victims.choose(session, shape.whole, able & ~self._reserved)
            if chosen is not None:
                return self._preempt(session, *chosen)
        behind = able & self._reserved
        if behind and (behind == able or any(d.fit() & behind for d in shape.able_parts)):
            holder = self._holders[first(behind)]
            shape.stuck = SkipReason.BEHIND_ANOTHER, f"waits behind session {holder.name}, which came first"
            return shape.stuck
        verdict = SkipReason.INSUFFICIENT_RESOURCE, diagnosis.shortage(fleet, shape, able & ~behind)
        if behind:
            shape.stuck = verdict
        else:
            self._reserve(session, shape, able)
        return verdict

    def _preempt(self, session: PendingSession, rank: int, victims: Sequence[RunningSession]) -> Verdict:
        """Let sessions end, and keep their place for the one that takes it in a later pass."""
        self._evictions += [
            Eviction(session_id=v.session_id, in_favour_of=session.session_id, starts_over=v.starts_over)
            for v in victims
        ]
        self._reserved |= 1 << rank
        self._holders[rank] = session
        agent_id = self._fleet.agents[rank].agent_id
        if not victims:
            return SkipReason.PREEMPTING, f"sessions on {agent_id} are ending, and their place is kept for it"
        ending = "1 session" if len(victims) == 1 else f"{len(victims)} sessions"
        return SkipReason.PREEMPTING, f"{ending} of smaller priority on {agent_id} will end for it"

    def _reserve(self, session: PendingSession, shape: EquivalenceClass, able: int) -> None:
        if shape.whole is not None:
            ranks: Sequence[int] = [self._fleet.closest(shape.whole, able)]
        else:
            ranks = closest_agents(self._fleet, shape, able) or members(able)
        self._reserved |= mask_of(ranks, self._fleet.size)
        self._holders.update(dict.fromkeys(ranks, session))
