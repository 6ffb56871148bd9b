"""Schedules pending sessions on agents."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ai.backend.common.errors import BackendError, InsufficientResource, StaleVersion
from ai.backend.common.ids import AgentId, SessionId
from ai.backend.common.states import KernelEventReason, SessionStatus
from ai.backend.core.lifecycle.events import SessionDestroyRequested, SessionScheduled, SessionStartOverRequested
from ai.backend.core.scheduling.decide import IncrementalScheduler, decide
from ai.backend.core.scheduling.index.agent_state import NodeClassCache
from ai.backend.core.scheduling.options import DEFAULT_ORDER, GroupOptions, order_name, read
from ai.backend.core.scheduling.ordering.fair_share import occupied
from ai.backend.core.scheduling.plan import Placement, Plan, Skip, SkipReason
from ai.backend.core.scheduling.policy import PLACEMENTS, Policy, Rng
from ai.backend.core.scheduling.snapshot import Snapshot
from ai.backend.infra.clock import Clock
from ai.backend.infra.database.batching import chunks
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.infra.process.memory import collector_paused
from ai.backend.manager.agents.capabilities import DeviceReader, from_allocation
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.images.service import ImageService
from ai.backend.manager.resource_groups.model import ResourceGroup
from ai.backend.manager.resource_groups.order_plugins import plugged_order
from ai.backend.manager.resource_groups.placement_plugins import FALLBACK, plugged
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.resources.quotas import QuotaUsage
from ai.backend.manager.scheduling.fair_share import FairShareAccounting
from ai.backend.manager.scheduling.snapshot import build_snapshot, running_sessions, scope_of
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
_COMPARE_EVERY = 100
_REWORD_S, _MAX_REWORDED = 10.0, 200
"""The age from which the text of an unchanged reason is stored again, and for how many sessions in one pass."""
_MAX_RUNTIME_S = 10 * 365 * 86_400.0


def group_policy(group: ResourceGroup | None) -> Policy:
    """Returns the policy of a resource group, with defaults for unknown words. An order or placement that is not built
    in is the name of a plugin."""
    if group is None:
        return Policy()
    options = read(group.scheduler_opts)
    plugin = None if options.placement in PLACEMENTS else plugged(options.placement)
    order = order_name(group.scheduler)
    order_plugin = plugged_order(group.scheduler) if order is None else None
    return Policy(
        order=order or (group.scheduler if order_plugin is not None else DEFAULT_ORDER),
        plugged_order=order_plugin,
        placement=options.placement if options.placement in PLACEMENTS or plugin else FALLBACK,
        plugged=plugin,
        preempts=options.preemption.enabled,
        oldest_first=options.preemption.order == "oldest",
    )


@dataclass(slots=True)
class _GroupState:
    """The state of a resource group between passes of the loop. The scheduler is updated from the store in each pass,
    and compared with a new one in every hundredth."""

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
            elif self.passes % _COMPARE_EVERY == 0:
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
    """Schedules one resource group after the other; all placements of a group are one transaction."""

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
        self._quotas = QuotaUsage(self.sessions, self.identities)
        self._shares = FairShareAccounting(self.shares, self.sessions, self.agents, self.resource_groups, self.clock)
        self._node_classes = NodeClassCache()
        self._group_states: dict[str, _GroupState] = {}

    async def once(self) -> None:
        try:
            await self._shares.sample()
        except BackendError as e:
            log.warning("could not store the usage for fair share: %s", e)
        pending = await self.sessions.refreshed([SessionStatus.PENDING], self.writer.written)
        now = self.clock.now()
        self.period_s = _SLOW_PASS_S
        groups: dict[str, list[Session]] = {}
        for session in pending:
            not_before = session.not_before or now
            if not_before - now > timedelta(seconds=MAX_RETRY_AFTER_S):
                not_before = now  # the wall clock was set back
            due = max(not_before, session.starts_at or now)
            if due > now:
                self.period_s = min(self.period_s, (due - now).total_seconds() + 0.001)
            if not_before <= now:
                groups.setdefault(session.scaling_group, []).append(session)
        for name, sessions in groups.items():
            self.writer.cache(sessions)
            try:
                await self._schedule(name, sessions, now)
            except StaleVersion:
                self.wake()
            except BackendError as e:
                log.warning("resource group %s could not be scheduled: %s", name, e)

    async def dump(self, name: str) -> tuple[Snapshot, Policy]:
        """Returns the snapshot and the policy of the next pass over a resource group."""
        pending = await self.sessions.by_status([SessionStatus.PENDING])
        sessions = [session for session in pending if session.scaling_group == name]
        return await self.snapshot(name, sessions)

    async def snapshot(self, name: str, sessions: Sequence[Session]) -> tuple[Snapshot, Policy]:
        """Returns the scheduler's input for a group, and its policy."""
        agents = await self.agents.agents(scaling_group=name)
        if self.images is not None:
            agents = await self.images.with_fetchable(
                agents, {kernel.image for session in sessions for kernel in session.kernels}
            )
        holdings = await self.sessions.held([agent.id for agent in agents])
        ids = [dependency for session in sessions for dependency in session.dependencies]
        dependencies = {dependency.id: dependency for dependency in await self.sessions.get_many(ids)} if ids else {}
        quotas = await self._quotas.quotas(sessions)
        group = await self.resource_groups.resource_group(name)
        snapshot = build_snapshot(name, agents, holdings, sessions, dependencies, quotas, self.devices)
        memory = self._group_states.setdefault(name, _GroupState(self._node_classes))
        policy = group_policy(group)
        options = read(group.scheduler_opts) if group is not None else GroupOptions()
        if group is None or not (policy.needs_usage or policy.preempts):
            return replace(snapshot, last_agent=memory.last_agent), policy
        owners = {s.id: s for s in await self.sessions.get_many({holding.session_id for holding in holdings})}
        slots_by_scope = [
            (scope_of(owner), h.slots) for h in holdings if (owner := owners.get(h.session_id)) is not None
        ]
        now, now_used = self.clock.now(), occupied(slots_by_scope)
        min_runtime = timedelta(seconds=min(options.preemption.min_runtime_s, _MAX_RUNTIME_S))
        running = running_sessions(owners.values(), since=now - min_runtime, preemption=options.preemption)
        complete = replace(
            snapshot,
            last_agent=memory.last_agent,
            running=running if policy.preempts else (),
            occupied=now_used,
            used_lately=await self._shares.used_lately(group, now_used, now),
            weights=options.weights,
        )
        return complete, policy

    async def _schedule(self, name: str, sessions: Sequence[Session], now: datetime) -> None:
        snapshot, policy = await self.snapshot(name, sessions)
        plan = self._group_states[name].decide(snapshot, policy, now=now, rng=self.rng)
        for agent_id, fault_text in plan.broken_agents:
            log.warning("agent %s is left out of scheduling: %s", agent_id, fault_text)
        if plan.placements:
            self._group_states[name].last_agent = plan.placements[-1].kernels[-1].agent_id
        by_id = {session.id: session for session in sessions}
        changes = [change for p in plan.placements if (change := self._place(by_id[p.session_id], p, now)) is not None]
        changes, without_network = await self._with_networks(changes, name)
        await self._commit(changes)
        await self._evict(plan, now)
        await self._explain([*plan.skips, *without_network], by_id, now)

    async def _commit(self, changes: Sequence[Change]) -> None:
        """Saves all changes at once; one by one if one of them has conflicted."""
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
    def _place(session: Session, placement: Placement, now: datetime) -> Change | None:
        agents = {placement.kernel_id: placement.agent_id for placement in placement.kernels}
        details = {
            placement.kernel_id: {"devices": from_allocation(placement.devices), "generation": placement.generation}
            for placement in placement.kernels
        }
        return advance(session, SessionScheduled(agents=agents, stimulus_id=_CAUSE), now=now, placed=details)

    async def _with_networks(self, placed: list[Change], group: str) -> tuple[list[Change], list[Skip]]:
        """Returns the changes with the networks that their sessions need, and skips of sessions that get none."""
        if not any(needs_overlay(change.new) for change in placed):
            return placed, []
        agents = {agent.id: agent for agent in await self.agents.agents(scaling_group=group)}
        taken = await self.sessions.networks()
        ready_changes: list[Change] = []
        skips: list[Skip] = []
        for change in placed:
            if not needs_overlay(change.new):
                ready_changes.append(change)
                continue
            try:
                vni, network = assign_network(change.new, agents, taken, self.settings, self.rng, self.key_id())
            except InsufficientResource as e:
                reason = SkipReason.INSUFFICIENT_RESOURCE
                skips.append(Skip(session_id=change.old.id, reason=reason, message=e.message))
                continue
            taken.append((vni, network))
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

    async def _explain(self, skips: Iterable[Skip], sessions: Mapping[SessionId, Session], now: datetime) -> None:
        """Stores why sessions wait, if the reason has changed; a mere change of amounts in its text, which every end of
        a session causes, only once in a while and for some of them."""
        changes: list[Change] = []
        reworded_count = 0
        for skip in skips:
            session = sessions[skip.session_id]
            explained = _explanation_change(session, skip, now)
            if explained is not None and session.status_info == skip.reason.value and not skip.is_final:
                reworded_count += 1
                if reworded_count > _MAX_REWORDED or not _is_old(session, now):
                    continue
            change = explained
            if skip.is_final:
                event = SessionDestroyRequested(reason=KernelEventReason.DEPENDENCY_FAILED, stimulus_id=_CAUSE)
                change = advance(session, event, now=now)
                if change is not None and explained is not None:
                    change = replace(change, new=replace(change.new, status_data=explained.new.status_data))
            if change is not None:
                changes.append(change)
        for chunk in chunks(changes):
            await self._commit(chunk)


def _is_old(session: Session, now: datetime) -> bool:
    """Returns True if the explanation of a session was stored some time ago."""
    stored_at = datetime.fromisoformat(session.status_data["scheduler"]["at"])
    return not timedelta() <= now - stored_at < timedelta(seconds=_REWORD_S)


def _explanation_change(session: Session, skip: Skip, now: datetime) -> Change | None:
    explanation = {"reason": skip.reason.value, "message": skip.message}
    old_explanation = session.status_data.get("scheduler", {})
    if {name: old_explanation.get(name) for name in explanation} == explanation:
        return None
    scheduler = {**explanation, "at": now.isoformat(), "retries": old_explanation.get("retries", 0) + 1}
    status_data = {**session.status_data, "scheduler": scheduler}
    return Change(old=session, new=replace(session, status_info=skip.reason.value, status_data=status_data))
