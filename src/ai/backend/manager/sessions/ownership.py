"""Counts and ends live sessions of keypairs, projects and resource groups, for the features that own these."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence

from ai.backend.common.errors import NotFound
from ai.backend.common.ids import AccessKey, AgentId, GroupId, UserId
from ai.backend.common.states import LIVE_SESSION_STATUSES, AgentStatus
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.query.model import Condition
from ai.backend.manager.sessions.model import SessionQuery
from ai.backend.manager.sessions.service import SessionService
from ai.backend.manager.sessions.store import SessionStore


class OwnerSessions:
    """Counts and ends the sessions of keypairs and groups. Implements
    :class:`ai.backend.manager.identity.store.OwnedSessions`."""

    def __init__(self, store: SessionStore, service: SessionService) -> None:
        self._store = store
        self._service = service

    async def count_live(self, access_keys: Collection[AccessKey]) -> Mapping[AccessKey, int]:
        return await self._store.count_live(access_keys)

    async def count_live_of_group(self, group_id: GroupId) -> int:
        query = SessionQuery(limit=1, statuses=LIVE_SESSION_STATUSES, group_id=str(group_id))
        return (await self._store.search(query)).total_count

    async def count_live_of_member(self, group_id: GroupId, user_id: UserId) -> int:
        is_of_member = Condition(field="user_id", op="==", value=str(user_id))
        query = SessionQuery(limit=1, statuses=LIVE_SESSION_STATUSES, group_id=str(group_id), filter=is_of_member)
        return (await self._store.search(query)).total_count

    async def end_all(self, caller: Caller, access_keys: Sequence[AccessKey]) -> None:
        for access_key in access_keys:
            query = SessionQuery(limit=10_000, access_key=access_key, statuses=LIVE_SESSION_STATUSES)
            page = await self._service.search(caller, query)
            await asyncio.gather(*(self._end_session(caller, str(session.id)) for session in page.items))

    async def _end_session(self, caller: Caller, session_id: str) -> None:
        with contextlib.suppress(NotFound):  # it has been removed meanwhile
            await self._service.destroy(caller, session_id, forced=True)


class ResourceGroupSessions:
    """Lists the agents and counts the live sessions of a resource group. Implements
    :class:`ai.backend.manager.resource_groups.store.ResourceGroupUse`."""

    def __init__(self, agents: AgentStore, sessions: SessionStore) -> None:
        self._agents = agents
        self._sessions = sessions

    async def living_agents(self, name: str) -> Sequence[AgentId]:
        return [
            agent.id for agent in await self._agents.agents(scaling_group=name) if agent.status is AgentStatus.ALIVE
        ]

    async def count_live_sessions(self, name: str) -> int:
        is_in_group = Condition(field="scaling_group", op="==", value=name)
        query = SessionQuery(limit=1, statuses=LIVE_SESSION_STATUSES, filter=is_in_group)
        return (await self._sessions.search(query)).total_count
