"""Reads the input of a scheduling decision from the stores, for the scheduling loop and for predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from ai.backend.common.ids import AgentId
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.options import DEFAULT_ORDER, GroupOptions, order_name, read
from ai.backend.core.scheduling.ordering.fair_share import occupied_by_scope
from ai.backend.core.scheduling.policy import PLACEMENTS, Policy
from ai.backend.core.scheduling.snapshot import Snapshot
from ai.backend.infra.clock import Clock
from ai.backend.manager.agents.capabilities import DeviceReader
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.images.service import ImageService
from ai.backend.manager.resource_groups.model import ResourceGroup
from ai.backend.manager.resource_groups.order_plugins import load_order_plugin
from ai.backend.manager.resource_groups.placement_plugins import FALLBACK_PLACEMENT, load_placement_plugin
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.resources.quotas import QuotaUsage
from ai.backend.manager.scheduling.claims import NamedClaims
from ai.backend.manager.scheduling.fair_share import FairShareAccounting
from ai.backend.manager.scheduling.snapshot import build_snapshot, running_sessions, scopes_and_slots
from ai.backend.manager.scheduling.store import ShareStore
from ai.backend.manager.sessions.claims.model import ClaimUser
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.store import SessionStore

_MAX_RUNTIME_S = 10 * 365 * 86_400.0


def group_policy(group: ResourceGroup | None) -> Policy:
    """Returns the scheduling policy (order, placement, preemption) that the options of a resource group set.

    An order or placement that is not built in is the name of a plugin; a name that is unknown gets the default.
    """
    if group is None:
        return Policy()
    options = read(group.scheduler_opts)
    plugin = None if options.placement in PLACEMENTS else load_placement_plugin(options.placement)
    order = order_name(group.scheduler)
    order_plugin = load_order_plugin(group.scheduler) if order is None else None
    return Policy(
        order=order or (group.scheduler if order_plugin is not None else DEFAULT_ORDER),
        plugged_order=order_plugin,
        placement=options.placement if options.placement in PLACEMENTS or plugin else FALLBACK_PLACEMENT,
        plugged=plugin,
        preempts=options.preemption.enabled,
        oldest_first=options.preemption.order == "oldest",
    )


@dataclass(eq=False, repr=False)
class SnapshotReader:
    """Reads snapshots of resource groups."""

    sessions: SessionStore
    agents: AgentStore
    identities: IdentityStore
    resource_groups: ResourceGroupStore
    clock: Clock
    share_store: ShareStore
    devices: DeviceReader
    images: ImageService | None
    quotas: QuotaUsage = field(init=False)
    shares: FairShareAccounting = field(init=False)

    def __post_init__(self) -> None:
        self.quotas = QuotaUsage(self.sessions, self.identities)
        self.shares = FairShareAccounting(
            self.share_store, self.sessions, self.agents, self.resource_groups, self.clock
        )

    async def snapshot(
        self,
        name: str,
        sessions: Sequence[Session],
        *,
        last_agent: AgentId | None = None,
        images: Sequence[str] = (),
        claims: NamedClaims | None = None,
    ) -> tuple[Snapshot, Policy]:
        """Reads the scheduler's input for a resource group with the given pending sessions, and its policy.

        ``images``: others that agents may fetch. ``claims``: those that the sessions name, as they were read before.
        """
        agents = await self.agents.agents(scaling_group=name)
        if self.images is not None:
            names = {kernel.image for session in sessions for kernel in session.kernels}
            agents = await self.images.add_fetchable_images(agents, names.union(images))
        holdings = await self.sessions.held([agent.id for agent in agents])
        dependency_ids = [dependency for session in sessions for dependency in session.dependencies]
        dependencies = (
            {dependency.id: dependency for dependency in await self.sessions.get_many(dependency_ids)}
            if dependency_ids
            else {}
        )
        claims = claims if claims is not None else await self.named_claims(sessions)
        quotas = await self.quotas.quotas(sessions, claims.slots_of(sessions))
        group = await self.resource_groups.resource_group(name)
        snapshot = build_snapshot(name, agents, holdings, sessions, dependencies, quotas, self.devices, claims)
        policy = group_policy(group)
        options = read(group.scheduler_opts) if group is not None else GroupOptions()
        if group is None or not (policy.needs_usage or policy.preempts):
            return replace(snapshot, last_agent=last_agent), policy
        owners = {
            owner_session.id: owner_session
            for owner_session in await self.sessions.get_many({holding.session_id for holding in holdings})
        }
        slots_by_scope = scopes_and_slots(holdings, owners)
        now, occupied_slots = self.clock.now(), occupied_by_scope(slots_by_scope)
        min_runtime = timedelta(seconds=min(options.preemption.min_runtime_s, _MAX_RUNTIME_S))
        running_views = running_sessions(owners.values(), since=now - min_runtime, preemption=options.preemption)
        complete_snapshot = replace(
            snapshot,
            last_agent=last_agent,
            running=running_views if policy.preempts else (),
            occupied=occupied_slots,
            used_lately=await self.shares.decayed_usage(group, occupied_slots, now),
            weights=options.weights,
        )
        return complete_snapshot, policy

    async def named_claims(self, sessions: Sequence[Session]) -> NamedClaims:
        """Returns the device claims that sessions name, with the live sessions that name them."""
        claim_ids = {session.claim_id for session in sessions if session.claim_id is not None}
        if not claim_ids:
            return NamedClaims()
        users: dict[UUID, list[ClaimUser]] = {}
        for user in await self.sessions.claim_users(claim_ids):
            users.setdefault(user.claim_id, []).append(user)
        return NamedClaims({claim.id: claim for claim in await self.sessions.claims_by_id(claim_ids)}, users)
