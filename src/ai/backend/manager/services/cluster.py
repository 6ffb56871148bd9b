"""The cluster as users and administrators see it: agents, slots, images, presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from ai.backend.common.errors import NotFound
from ai.backend.common.ids import AgentId
from ai.backend.common.slots import INFINITY, ResourceSlot
from ai.backend.common.states import FINAL_SESSION_STATUSES, AgentStatus, SessionStatus
from ai.backend.manager.model.cluster import Agent, Image, PresetCheck, ResourcePreset, SlotTypeInfo
from ai.backend.manager.model.identity import Caller
from ai.backend.manager.model.query import ListQuery, Page, SessionQuery
from ai.backend.manager.ports.stores import AgentStore, SessionStore
from ai.backend.manager.services.identity import IdentityService
from ai.backend.manager.services.images import merge_images
from ai.backend.manager.services.statistics import StatBoard

_LIVE = tuple(s for s in SessionStatus if s not in FINAL_SESSION_STATUSES)
_ALL = 100_000


def _bounded(names: Sequence[str], limits: ResourceSlot, *, unnamed: Decimal = INFINITY) -> ResourceSlot:
    """A limit for every slot; ``unnamed`` for those that ``limits`` does not mention (for it, missing would be
    zero)."""
    named = set(limits)
    return ResourceSlot({name: (limits[name] if name in named else unnamed) for name in names})


class ClusterService:
    """Reads only."""

    def __init__(self, agents: AgentStore, sessions: SessionStore, identity: IdentityService, stats: StatBoard) -> None:
        self._agents = agents
        self._sessions = sessions
        self._identity = identity
        self._stats = stats

    async def agents(
        self, caller: Caller, query: ListQuery, *, status: str | None = None, scaling_group: str | None = None
    ) -> Page[Agent]:
        """Superadmins and monitors; an empty page for others. Live statistics are filled in."""
        if not caller.sees_all:
            return Page(items=[], total_count=0)
        page = await self._agents.page(query, status=status, scaling_group=scaling_group)
        return replace(page, items=[self._stats.fill_agent(a) for a in page.items])

    async def agent(self, caller: Caller, agent_id: str) -> Agent:
        """Raises NotFound, also for those who may not see agents."""
        agent = await self._agents.agent(AgentId(agent_id)) if caller.sees_all else None
        if agent is None:
            raise NotFound(f"There is no agent {agent_id[:64]!r}.")
        return self._stats.fill_agent(agent)

    async def slot_types(self) -> Sequence[SlotTypeInfo]:
        """Every slot that was ever reported (``/config/resource-slots``)."""
        return await self._agents.slot_types()

    async def images(self) -> Sequence[Image]:
        """What the living agents offer, merged by name and architecture."""
        return merge_images(a for a in await self._agents.agents() if a.status is AgentStatus.ALIVE)

    async def presets(self) -> Sequence[ResourcePreset]:
        return await self._agents.presets()

    async def check_presets(
        self, caller: Caller, *, group: str | None = None, scaling_group: str | None = None
    ) -> PresetCheck:
        """What the caller can have now, in one resource group or in all that are open to them."""
        policy = await self._identity.resource_policy(caller)
        names = [str(slot.slot_name) for slot in await self._agents.slot_types()]
        unlimited = policy.default_for_unspecified == "UNLIMITED"
        limits = _bounded(names, policy.total_resource_slots, unnamed=INFINITY if unlimited else Decimal(0))
        groups = await self._identity.groups(caller)
        chosen = next((g for g in groups if group in (None, g.name, str(g.id))), None)
        group_limits = ResourceSlot(dict.fromkeys(names, INFINITY))
        if chosen is not None and len(chosen.total_resource_slots):
            group_limits = _bounded(names, chosen.total_resource_slots)
        using = await self._using(SessionQuery(statuses=_LIVE, access_key=caller.access_key, limit=_ALL))
        group_using = ResourceSlot()
        if chosen is not None:
            group_using = await self._using(SessionQuery(statuses=_LIVE, group_id=str(chosen.id), limit=_ALL))
        open_groups = [
            g.name for g in await self._identity.resource_groups(caller, group=group) if scaling_group in (None, g.name)
        ]
        agents = [
            a for a in await self._agents.agents() if a.scaling_group in open_groups and a.status is AgentStatus.ALIVE
        ]
        remaining = {a.id: a.available_slots - a.occupied_slots for a in agents}
        presets = [
            (preset, any(preset.resource_slots <= remaining[a.id] for a in agents))
            for preset in await self._agents.presets()
        ]
        return PresetCheck(
            presets=tuple(presets),
            keypair_limits=limits,
            keypair_using=using,
            keypair_remaining=limits - using,
            group_limits=group_limits,
            group_using=group_using,
            group_remaining=group_limits - group_using,
            scaling_groups={
                name: (
                    sum((a.occupied_slots for a in agents if a.scaling_group == name), ResourceSlot()),
                    sum((remaining[a.id] for a in agents if a.scaling_group == name), ResourceSlot()),
                )
                for name in open_groups
            },
        )

    async def _using(self, query: SessionQuery) -> ResourceSlot:
        page = await self._sessions.search(query)
        return sum((s.occupying_slots for s in page.items), ResourceSlot())

    async def gauges(self) -> Mapping[str, float]:
        """For ``/metrics``: name -> value."""
        agents = await self._agents.agents()
        live = await self._sessions.count_live()
        return {
            "agents_alive": sum(a.status is AgentStatus.ALIVE for a in agents),
            "agents_lost": sum(a.status is AgentStatus.LOST for a in agents),
            "sessions_live": sum(live.values()),
        }
