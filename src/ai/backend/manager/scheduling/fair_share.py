"""Accounts the recent usage of scopes for fair share, and stores it so that it survives restarts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ai.backend.common.slots import ResourceSlot
from ai.backend.core.scheduling.options import order_name, read
from ai.backend.core.scheduling.ordering.fair_share import decay_averages, occupied_by_scope
from ai.backend.infra.clock import Clock
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.resource_groups.model import ResourceGroup
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.scheduling.snapshot import scopes_and_slots
from ai.backend.manager.scheduling.store import ShareHistory, ShareStore
from ai.backend.manager.sessions.store import SessionStore

SAMPLE_INTERVAL_S = 60.0
"""Seconds between samples of the occupied slots."""


@dataclass(eq=False, repr=False)
class FairShareAccounting:
    """Computes the recent usage of scopes for fair share from samples of the slots in use.

    The current slots count for the whole time since the last sample.
    """

    store: ShareStore
    sessions: SessionStore
    agents: AgentStore
    resource_groups: ResourceGroupStore
    clock: Clock
    _due: float = field(default=0.0, init=False)

    async def decayed_usage(
        self, group: ResourceGroup, held_by_scope: Mapping[str, ResourceSlot], now: datetime
    ) -> Mapping[str, ResourceSlot]:
        """Returns the recent usage of each scope in a resource group, in which older usage counts less.

        ``held_by_scope`` is what each scope occupies now; it counts for the time since the last sample.
        """
        last_sample = await self.store.history(group.name)
        if last_sample is None:
            return {}
        elapsed_s = (now - last_sample.at).total_seconds()
        half_life_s = read(group.scheduler_opts).half_life_s
        return decay_averages(last_sample.used, held_by_scope, elapsed_s=elapsed_s, half_life_s=half_life_s)

    async def sample(self) -> None:
        """Stores the usage of every group with fair share, if a sample is due."""
        began_s = self.clock.monotonic()
        if began_s < self._due:
            return
        for group in await self.resource_groups.resource_groups():
            if order_name(group.scheduler) == "fair-share":
                now = self.clock.now()
                used_slots = await self.decayed_usage(group, await self._held_by_scope(group), now)
                await self.store.put_history(group.name, ShareHistory(used=used_slots, at=now))
        self._due = began_s + SAMPLE_INTERVAL_S

    async def _held_by_scope(self, group: ResourceGroup) -> Mapping[str, ResourceSlot]:
        agents = await self.agents.agents(scaling_group=group.name)
        holdings = await self.sessions.held([agent.id for agent in agents])
        owners = {
            session.id: session
            for session in await self.sessions.get_many({holding.session_id for holding in holdings})
        }
        return occupied_by_scope(scopes_and_slots(holdings, owners))
