"""Schedules pending sessions on agents."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ai.backend.common.errors import BackendError, InsufficientResource, StaleVersion
from ai.backend.common.ids import AgentId, SessionId
from ai.backend.common.states import KernelEventReason, SessionStatus
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.events import SessionDestroyRequested, SessionScheduled, SessionStartOverRequested
from ai.backend.core.scheduling.decide import IncrementalScheduler, decide
from ai.backend.core.scheduling.index.agent_state import NodeClassCache
from ai.backend.core.scheduling.plan import Placement, Plan, Skip, SkipReason
from ai.backend.core.scheduling.policy import Policy, Rng
from ai.backend.core.scheduling.snapshot import Snapshot
from ai.backend.infra.clock import Clock
from ai.backend.infra.database.batching import chunks
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.infra.process.memory import collector_paused
from ai.backend.manager.agents.capabilities import DeviceReader, from_allocation
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.images.service import ImageService
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.scheduling.claims import NamedClaims, change_placed_claim
from ai.backend.manager.scheduling.explanations import message_of
from ai.backend.manager.scheduling.reading import SnapshotReader
from ai.backend.manager.scheduling.store import ShareStore
from ai.backend.manager.sessions.changes import Change
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.networks import assign_network, needs_overlay
from ai.backend.manager.sessions.settings import SessionSettings
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.transitions import MAX_RETRY_AFTER_S, advance
from ai.backend.manager.sessions.writer import SessionWriter

log = logging.getLogger(__name__)

_SLOW_PASS_S = 5.0
_CAUSE = "schedule loop"
COMPARE_EVERY_PASSES = 100
_REWORD_INTERVAL_S, _MAX_REWORDED = 10.0, 200
"""The age in seconds from which a reworded reason is stored again, and the maximum of sessions per pass."""


@dataclass(slots=True)
class GroupState:
    """The scheduler of one resource group, which the scheduling loop keeps in memory from one pass to the next.

    Each pass updates the scheduler from the store. Every hundredth pass compares the scheduler with a newly built
    one.
    """

    node_classes: NodeClassCache
    last_agent: AgentId | None = None
    scheduler: IncrementalScheduler | None = None
    passes: int = 0

    def decide(self, snapshot: Snapshot, policy: Policy, *, now: datetime, rng: Rng) -> Plan:
        """Updates the scheduler by a snapshot and returns the placements, evictions and skips."""
        self.passes += 1
        scheduler, self.scheduler = self.scheduler, None  # not used again after a failure: its state is unknown
        with collector_paused():
            if scheduler is None or not scheduler.update(snapshot):
                scheduler = IncrementalScheduler(snapshot, self.node_classes)
            elif self.passes % COMPARE_EVERY_PASSES == 0:
                new_scheduler = IncrementalScheduler(snapshot, self.node_classes)
                if new_scheduler.free != scheduler.free:
                    log.error(
                        "the scheduler state of resource group %s has drifted and is rebuilt", snapshot.resource_group
                    )
                scheduler = new_scheduler
            plan = decide(scheduler, policy, now=now, rng=rng)
        self.scheduler = scheduler
        return plan


@dataclass(eq=False, repr=False)
class ScheduleLoop(PeriodicLoop):
    """Schedules one resource group after the other and stores all placements of a group in one transaction."""

    sessions: SessionStore
    agents: AgentStore
    identities: IdentityStore
    resource_groups: ResourceGroupStore
    writer: SessionWriter
    clock: Clock
    settings: SessionSettings
    shares: ShareStore
    devices: DeviceReader
    rng: random.Random
    images: ImageService | None
    key_id: Callable[[], str]

    def __post_init__(self) -> None:
        self._reader = SnapshotReader(
            self.sessions,
            self.agents,
            self.identities,
            self.resource_groups,
            self.clock,
            self.shares,
            self.devices,
            self.images,
        )
        self._node_classes = NodeClassCache()
        self._group_states: dict[str, GroupState] = {}

    async def once(self) -> None:
        try:
            await self._reader.shares.sample()
        except BackendError as e:
            log.warning("could not store the usage for fair share: %s", e)
        pending_sessions = await self.sessions.refreshed([SessionStatus.PENDING], self.writer.written_session)
        now = self.clock.now()
        self.period_s = _SLOW_PASS_S
        groups: dict[str, list[Session]] = {}
        for session in pending_sessions:
            not_before = session.not_before or now
            if not_before - now > timedelta(seconds=MAX_RETRY_AFTER_S):
                not_before = now  # the wall clock was set back
            due_at = max(not_before, session.starts_at or now)
            if due_at > now:
                self.period_s = min(self.period_s, (due_at - now).total_seconds() + 0.001)
            if not_before <= now:
                groups.setdefault(session.scaling_group, []).append(session)
        failure: Exception | None = None
        for name, sessions in groups.items():
            self.writer.cache(sessions)
            try:
                await self._schedule(name, sessions, now)
            except StaleVersion:
                self.wake()
            except BackendError as e:
                log.warning("resource group %s could not be scheduled: %s", name, e)
            except Exception as e:  # noqa: BLE001  # raised below; the other groups do not wait for it
                failure = e
        if failure is not None:
            raise failure

    async def dump(self, name: str) -> tuple[Snapshot, Policy]:
        """Returns the snapshot and the policy of the next pass over a resource group."""
        pending_sessions = await self.sessions.by_status([SessionStatus.PENDING])
        sessions = [session for session in pending_sessions if session.scaling_group == name]
        return await self.snapshot(name, sessions)

    async def snapshot(
        self, name: str, sessions: Sequence[Session], claims: NamedClaims | None = None
    ) -> tuple[Snapshot, Policy]:
        """Returns the scheduler's input for a group, and its policy."""
        group_state = self._group_states.setdefault(name, GroupState(self._node_classes))
        return await self._reader.snapshot(name, sessions, last_agent=group_state.last_agent, claims=claims)

    async def _schedule(self, name: str, sessions: Sequence[Session], now: datetime) -> None:
        claims = await self._reader.named_claims(sessions)  # a change since then makes the placement conflict
        snapshot, policy = await self.snapshot(name, sessions, claims)
        plan = self._group_states[name].decide(snapshot, policy, now=now, rng=self.rng)
        for agent_id, fault_text in plan.broken_agents:
            log.warning("agent %s is left out of scheduling: %s", agent_id, fault_text)
        if plan.placements:
            self._group_states[name].last_agent = plan.placements[-1].kernels[-1].agent_id
        sessions_by_id = {session.id: session for session in sessions}
        changes = [
            change
            for placement in plan.placements
            if (change := self._placement_change(sessions_by_id[placement.session_id], placement, now, claims))
            is not None
        ]
        changes, skips_without_network = await self._assign_networks(changes, name)
        await self._commit(changes)
        await self._evict(plan, now)
        await self._store_explanations(
            [*_skips_for_owners(plan, sessions_by_id), *skips_without_network], sessions_by_id, now
        )

    async def _commit(self, changes: Sequence[Change]) -> None:
        """Saves all changes in one transaction, or one by one if one of the changes has conflicted."""
        if not changes:
            return
        try:
            await self.writer.commit(changes, point="commit-schedule")
        except (StaleVersion, InsufficientResource):
            for change in changes:
                try:
                    await self.writer.commit([change], point="commit-schedule")
                except (StaleVersion, InsufficientResource) as e:
                    log.info("session %s was not changed: %s", change.old.id, e)
                    self.wake()

    @staticmethod
    def _placement_change(session: Session, placement: Placement, now: datetime, claims: NamedClaims) -> Change | None:
        agents = {placement.kernel_id: placement.agent_id for placement in placement.kernels}
        kernel_details = {
            placement.kernel_id: {
                "devices": from_allocation(placement.devices),
                "generation": placement.generation,
                **({"requested_slots": placement.slots} if placement.slots is not None else {}),
            }
            for placement in placement.kernels
        }
        claim_change = None
        if (claim := claims.claim_of(session)) is not None:
            claim_change, kernel_details = change_placed_claim(claim, placement, now)
        change = advance(
            session, SessionScheduled(agents=agents, stimulus_id=_CAUSE), now=now, placements=kernel_details
        )
        return replace(change, claim=claim_change) if change is not None else None

    async def _assign_networks(self, placement_changes: list[Change], group: str) -> tuple[list[Change], list[Skip]]:
        """Assigns networks to the placed sessions that need one, and returns the changes and skips.

        A session that needs a network but gets none is returned as a skip.
        """
        if not any(needs_overlay(change.new) for change in placement_changes):
            return placement_changes, []
        agents = {agent.id: agent for agent in await self.agents.agents(scaling_group=group)}
        used_networks = await self.sessions.networks()
        ready_changes: list[Change] = []
        skips: list[Skip] = []
        for change in placement_changes:
            if not needs_overlay(change.new):
                ready_changes.append(change)
                continue
            try:
                vni, network = assign_network(change.new, agents, used_networks, self.settings, self.rng, self.key_id())
            except InsufficientResource as e:
                reason = SkipReason.INSUFFICIENT_RESOURCE
                skips.append(Skip(session_id=change.old.id, reason=reason, message=e.message))
                continue
            used_networks.append((vni, network))
            ready_changes.append(replace(change, new=replace(change.new, vni=vni, network=network)))
        return ready_changes, skips

    async def _evict(self, plan: Plan, now: datetime) -> None:
        """Ends the sessions that are preempted; their slots stay reserved for the preempting sessions."""
        evictions = {eviction.session_id: eviction for eviction in plan.evictions}
        sessions = await self.sessions.get_many(list(evictions)) if evictions else []
        changes: list[Change | None] = []
        for session in sessions:
            event = (
                SessionStartOverRequested(stimulus_id=_CAUSE)
                if evictions[session.id].starts_over
                else SessionDestroyRequested(reason=KernelEventReason.PREEMPTED, stimulus_id=_CAUSE)
            )
            changes.append(advance(session, event, now=now))
        await self._commit([change for change in changes if change is not None])

    async def _store_explanations(
        self, skips: Iterable[Skip], sessions: Mapping[SessionId, Session], now: datetime
    ) -> None:
        """Stores the reason why each session waits with the session, if the reason has changed.

        If only the amounts in the text have changed, which every end of a session causes, the text is stored less
        often and for a limited number of sessions. A session that waits in vain, since a dependency failed, is ended.
        """
        changes: list[Change] = []
        reworded_count = 0
        for skip in skips:
            session = sessions[skip.session_id]
            explanation_change = _explanation_change(session, skip, now)
            if explanation_change is not None and session.status_info == skip.reason.value and not skip.is_final:
                reworded_count += 1
                if reworded_count > _MAX_REWORDED or not _is_explanation_old(session, now):
                    continue
            change = explanation_change
            if skip.is_final:
                event = SessionDestroyRequested(reason=KernelEventReason.DEPENDENCY_FAILED, stimulus_id=_CAUSE)
                change = advance(session, event, now=now)
                if change is not None and explanation_change is not None:
                    change = replace(change, new=replace(change.new, status_data=explanation_change.new.status_data))
            if change is not None:
                changes.append(change)
        for chunk in chunks(changes):
            await self._commit(chunk)


def _skips_for_owners(plan: Plan, sessions: Mapping[SessionId, Session]) -> Iterable[Skip]:
    """Yields the waiting sessions with a text for their owners that names no session of another user."""
    holders = {sessions[session_id].user_id for _, session_id in plan.reserved if session_id in sessions}
    for skip in plan.skips:
        session = sessions[skip.session_id]
        is_own = holders <= {session.user_id}
        yield replace(skip, message=message_of(skip.reason, skip.message, holder=session if is_own else None))


def _is_explanation_old(session: Session, now: datetime) -> bool:
    """Returns True if the explanation of a session was stored at least ``_REWORD_INTERVAL_S`` seconds ago."""
    stored_at = datetime.fromisoformat(session.status_data["scheduler"]["at"])
    return not timedelta() <= now - stored_at < timedelta(seconds=_REWORD_INTERVAL_S)


def _explanation_change(session: Session, skip: Skip, now: datetime) -> Change | None:
    explanation = {"reason": skip.reason.value, "message": skip.message}
    old_explanation = session.status_data.get("scheduler", {})
    if {name: old_explanation.get(name) for name in explanation} == explanation:
        return None
    scheduler_data = {**explanation, "at": now.isoformat(), "retries": old_explanation.get("retries", 0) + 1}
    status_data = {**session.status_data, "scheduler": scheduler_data}
    return Change(old=session, new=replace(session, status_info=skip.reason.value, status_data=status_data))
