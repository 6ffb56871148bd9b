"""The scheduling decision.

Rules:

1. Sessions are tried in the order of the policy; ``fifo`` is by priority, then age.
2. A session is placed whole or not at all. A single-node session goes to one agent, the kernels of a multi-node session
   go wherever each fits best.
3. What no waiting can change for the better costs the others nothing: a session that is too early, waits for another
one,
   exceeds a quota, matches no agent or would not even fit empty agents is skipped, and those behind it are tried.
4. Head of line: a session that only lacks free resources holds back every agent that could serve it once that is empty.
   Those behind it may use the other agents only, so that small sessions cannot starve a large one, and a session that
   waits for accelerators does not stop those that run elsewhere.
5. Every session that is not placed gets a reason that its owner can read.
"""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime

from ai.backend.common.errors import BackendError, InsufficientResource, InvalidInput
from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import ClusterMode, SessionResult, SessionStatus
from ai.backend.core.allocation.node import without_placeholders
from ai.backend.core.scheduling import explain
from ai.backend.core.scheduling.plan import KernelPlacement, Placement, Plan, Skip, SkipReason
from ai.backend.core.scheduling.policy import ORDERS, PLACEMENTS, Policy, Rng, ordered
from ai.backend.core.scheduling.snapshot import PendingKernel, PendingSession, Quota, Snapshot
from ai.backend.core.scheduling.working import REFUSALS, Checkpoint, WorkingAgent


def decide(snapshot: Snapshot, policy: Policy, *, now: datetime, rng: Rng) -> Plan:
    """Plan placements down to devices for every pending session that can start now.

    Equal arguments give an equal plan. The snapshot is not changed.

    Raises:
        InvalidInput: the policy names an unknown order or placement.
    """
    for name, table in ((policy.order, ORDERS), (policy.placement, PLACEMENTS)):
        if name not in table:
            raise InvalidInput(f"unknown scheduling policy {name!r}; known are {', '.join(table)}")
    decision = _Decision(snapshot, policy, now=now, rng=rng)
    for session in ORDERS[policy.order](snapshot):
        decision.consider(session)
    return Plan(
        placements=tuple(decision.placements), skips=tuple(decision.skips), broken_agents=tuple(decision.broken)
    )


class _Decision:
    """A decision in progress."""

    def __init__(self, snapshot: Snapshot, policy: Policy, *, now: datetime, rng: Rng) -> None:
        self._policy = policy
        self._now = now
        self._rng = rng
        self._agents: list[WorkingAgent] = []
        self.broken: list[tuple[AgentId, str]] = []
        for view in snapshot.agents:
            if view.is_schedulable:
                try:
                    self._agents.append(WorkingAgent(view, snapshot.allocation_order))
                except BackendError as e:
                    self.broken.append((view.agent_id, e.message))
        self._quotas = dict(snapshot.quotas)
        self._fits_empty: dict[Hashable, bool] = {}
        self._held_back: dict[AgentId, PendingSession] = {}
        self.placements: list[Placement] = []
        self.skips: list[Skip] = []

    def consider(self, session: PendingSession) -> None:
        """Place one session or say why not."""
        skip = self._hindrance(session)
        if skip is not None:
            self.skips.append(skip)
            return
        matching = [a for a in self._agents if _matches_some(a, session)]
        if not matching:
            self._skip(session, *self._no_match(session))
            return
        usable = [a for a in matching if a.agent_id not in self._held_back]
        kernels = self._place(session, usable)
        if kernels is not None:
            self.placements.append(Placement(session_id=session.session_id, kernels=kernels))
            self._count(session)
            return
        self._wait(session, matching, usable)

    def _skip(self, session: PendingSession, reason: SkipReason, message: str, *, is_final: bool = False) -> None:
        skip = Skip(session_id=session.session_id, reason=reason, message=message, is_final=is_final)
        self.skips.append(skip)

    # ---- before any agent is looked at

    def _hindrance(self, session: PendingSession) -> Skip | None:
        found = self._timing(session) or self._dependency(session) or self._quota(session)
        if found is None:
            return None
        reason, message = found
        is_final = reason is SkipReason.DEPENDENCY_FAILED
        return Skip(session_id=session.session_id, reason=reason, message=message, is_final=is_final)

    def _timing(self, session: PendingSession) -> tuple[SkipReason, str] | None:
        if session.starts_at is not None and session.starts_at > self._now:
            return SkipReason.NOT_YET, f"starts at {session.starts_at.isoformat()}"
        return None

    def _dependency(self, session: PendingSession) -> tuple[SkipReason, str] | None:
        for d in session.dependencies:
            if d.status in (SessionStatus.ERROR, SessionStatus.CANCELLED) or d.result is SessionResult.FAILURE:
                return SkipReason.DEPENDENCY_FAILED, f"depends on session {d.name}, which did not succeed"
        for d in session.dependencies:
            if d.status is not SessionStatus.TERMINATED:
                return SkipReason.DEPENDENCY_UNFINISHED, f"waits for session {d.name}, which is {d.status}"
        return None

    def _quota(self, session: PendingSession) -> tuple[SkipReason, str] | None:
        total = session.total
        for quota in (self._quotas[name] for name in session.quotas if name in self._quotas):
            if quota.max_sessions is not None and quota.sessions >= quota.max_sessions:
                return SkipReason.QUOTA_EXCEEDED, f"{quota.label} may run {quota.max_sessions} sessions at once"
            for slot, limit in quota.limit.items():
                if total[slot] and quota.used[slot] + total[slot] > limit:
                    text = (
                        f"{quota.label} may use {explain.amount(slot, quota.limit)} and uses "
                        f"{explain.amount(slot, quota.used)} already; this session needs {explain.amount(slot, total)}"
                    )
                    return SkipReason.QUOTA_EXCEEDED, text
        return None

    def _count(self, session: PendingSession) -> None:
        for name in session.quotas:
            q = self._quotas.get(name)
            if q is not None:
                self._quotas[name] = Quota(
                    label=q.label,
                    limit=q.limit,
                    used=q.used + session.total,
                    max_sessions=q.max_sessions,
                    sessions=q.sessions + 1,
                )

    # ---- placing

    def _place(self, session: PendingSession, agents: list[WorkingAgent]) -> tuple[KernelPlacement, ...] | None:
        """Every kernel's placement, taken from the agents; None, with nothing taken, if they do not all fit."""
        if session.cluster_mode is ClusterMode.SINGLE_NODE:
            return self._place_together(session, agents)
        return self._place_apart(session, agents)

    def _place_together(
        self, session: PendingSession, agents: list[WorkingAgent]
    ) -> tuple[KernelPlacement, ...] | None:
        total = session.total
        fitting = [
            a
            for a in agents
            if a.has_room(len(session.kernels))
            and all(_matches(a, session, k) for k in session.kernels)
            and total <= a.available
        ]
        for agent in ordered(fitting, session, total, self._policy, self._rng):
            before = agent.checkpoint()
            try:
                return tuple(_take(agent, kernel) for kernel in session.kernels)
            except REFUSALS:
                agent.rollback(before)
        return None

    def _place_apart(self, session: PendingSession, agents: list[WorkingAgent]) -> tuple[KernelPlacement, ...] | None:
        if not session.total <= sum((a.available for a in agents), ResourceSlot()):
            return None
        touched: list[tuple[WorkingAgent, Checkpoint]] = []
        placed: list[KernelPlacement] = []
        for kernel in session.kernels:
            placement = self._place_kernel(session, kernel, agents, touched)
            if placement is None:
                for agent, checkpoint in reversed(touched):
                    agent.rollback(checkpoint)
                return None
            placed.append(placement)
        return tuple(placed)

    def _place_kernel(
        self,
        session: PendingSession,
        kernel: PendingKernel,
        agents: list[WorkingAgent],
        touched: list[tuple[WorkingAgent, Checkpoint]],
    ) -> KernelPlacement | None:
        fitting = [a for a in agents if a.has_room() and _matches(a, session, kernel) and kernel.slots <= a.available]
        for agent in ordered(fitting, session, kernel.slots, self._policy, self._rng):
            before = agent.checkpoint()
            try:
                placement = _take(agent, kernel)
            except REFUSALS:
                continue
            touched.append((agent, before))
            return placement
        return None

    # ---- not placed

    def _no_match(self, session: PendingSession) -> tuple[SkipReason, str]:
        if not self._agents:
            return SkipReason.NO_AGENT, "no agent of this resource group is alive and schedulable"
        if session.designated_agents:
            named = ", ".join(session.designated_agents)
            return SkipReason.NO_MATCHING_AGENT, f"the designated agent {named} is not there or cannot run this image"
        architectures = sorted({k.architecture for k in session.kernels if k.architecture is not None})
        present = sorted({a.view.architecture for a in self._agents})
        if architectures and not set(architectures) & set(present):
            text = f"needs an agent of architecture {', '.join(architectures)}; there are {', '.join(present)}"
            return SkipReason.NO_MATCHING_AGENT, text
        images = ", ".join(sorted({k.image for k in session.kernels}))
        return SkipReason.NO_MATCHING_AGENT, f"no agent can start the image {images}"

    def _wait(self, session: PendingSession, matching: list[WorkingAgent], usable: list[WorkingAgent]) -> None:
        """Find out what an unplaced session waits for, and hold back the agents that could serve it."""
        total = session.total
        missing = explain.unsupported(total, matching)
        if missing is not None:
            self._skip(session, SkipReason.UNSUPPORTED_RESOURCE, missing)
            return
        together = session.cluster_mode is ClusterMode.SINGLE_NODE
        refusals = {a.agent_id: _refusal_when_empty(a, session) for a in matching}
        able = [a for a in matching if refusals[a.agent_id] is None]
        largest = total if together else _largest(session)
        if not able:
            why = next(text for text in refusals.values() if text is not None)
            self._skip(session, SkipReason.NEVER_FITS, explain.too_large(largest, matching, why))
            return
        if not together and not self._fits_when_empty(session, able):
            text = f"needs {explain.amounts(total)} for {len(session.kernels)} kernels, more than all nodes have"
            self._skip(session, SkipReason.NEVER_FITS, text)
            return
        blocker = next((self._held_back[a.agent_id] for a in able if a.agent_id in self._held_back), None)
        open_ = [a for a in able if a in usable]
        if blocker is not None and not open_:
            self._skip(session, SkipReason.BEHIND_ANOTHER, f"waits behind session {blocker.name}, which came first")
            return
        for agent in open_:
            self._held_back[agent.agent_id] = session
        if together or not any(largest <= a.available for a in open_):
            text = explain.shortage(largest, open_, kernels=len(session.kernels) if together else 1)
        else:
            text = explain.scattered(total, len(session.kernels), open_)
        self._skip(session, SkipReason.INSUFFICIENT_RESOURCE, text)

    def _fits_when_empty(self, session: PendingSession, agents: list[WorkingAgent]) -> bool:
        """Whether empty agents could hold all kernels of a multi-node session; asked once per kind of session."""
        kernels = (tuple(sorted(k.slots.items())) for k in session.kernels)
        key = (tuple(kernels), tuple(a.agent_id for a in agents))
        if key not in self._fits_empty:
            self._fits_empty[key] = self._try_empty(session, agents)
        return self._fits_empty[key]

    def _try_empty(self, session: PendingSession, agents: list[WorkingAgent]) -> bool:
        before = [(a, a.checkpoint()) for a in agents]
        for agent in agents:
            agent.clear()
        try:
            return self._place_apart(session, agents) is not None
        finally:
            for agent, checkpoint in before:
                agent.rollback(checkpoint)


def _matches(agent: WorkingAgent, session: PendingSession, kernel: PendingKernel) -> bool:
    """What no allocation changes: architecture, image, designation."""
    view = agent.view
    return (
        (kernel.architecture is None or kernel.architecture == view.architecture)
        and (view.images is None or kernel.image in view.images)
        and (not session.designated_agents or view.agent_id in session.designated_agents)
    )


def _matches_some(agent: WorkingAgent, session: PendingSession) -> bool:
    matches = (_matches(agent, session, k) for k in session.kernels)
    return all(matches) if session.cluster_mode is ClusterMode.SINGLE_NODE else any(matches)


def _refusal_when_empty(agent: WorkingAgent, session: PendingSession) -> str | None:
    """Why the session, or every kernel of a multi-node session, would not fit this agent if it were empty."""
    if session.cluster_mode is ClusterMode.SINGLE_NODE:
        return agent.refusal_when_empty([k.slots for k in session.kernels])
    answers = [agent.refusal_when_empty([k.slots]) for k in session.kernels if _matches(agent, session, k)]
    return None if None in answers else answers[0]


def _largest(session: PendingSession) -> ResourceSlot:
    """The union of the largest quantities that any one kernel needs."""
    slots = {slot for k in session.kernels for slot in k.slots}
    return ResourceSlot({slot: max(k.slots[slot] for k in session.kernels) for slot in slots})


def _take(agent: WorkingAgent, kernel: PendingKernel) -> KernelPlacement:
    if not agent.has_room():
        raise InsufficientResource(f"{agent.agent_id} holds as many kernels as it may")
    devices = without_placeholders(agent.take(kernel.slots))
    return KernelPlacement(
        kernel_id=kernel.kernel_id, agent_id=agent.agent_id, generation=agent.view.generation, devices=devices
    )
