"""Stores agents and slot types in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ai.backend.common.ids import AgentId
from ai.backend.common.states import AgentStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import OverlayReport
from ai.backend.manager.agents.model import Agent, AgentState, SlotTypeInfo
from ai.backend.manager.leadership.memory import check_fence
from ai.backend.manager.query.memory import select
from ai.backend.manager.query.model import ListQuery, Page


class MemoryAgentStore:
    """Stores agents in memory. The dictionary is shared with the store of sessions, which writes occupied slots."""

    def __init__(self, agents: dict[AgentId, Agent] | None = None) -> None:
        self._agents = agents if agents is not None else {}
        self._slots: dict[str, SlotTypeInfo] = {}

    async def put_agent(self, agent: Agent) -> None:
        check_fence()
        stored_agent = self._agents.get(agent.id)
        if stored_agent is not None:
            agent = replace(agent, occupied_slots=stored_agent.occupied_slots, version_id=stored_agent.version_id + 1)
        self._agents[agent.id] = agent

    async def set_status(self, agent_id: AgentId, status: AgentStatus, *, at: datetime) -> None:
        lost_at = at if status is AgentStatus.LOST else None
        await self.change(agent_id, status=status, status_changed=at, lost_at=lost_at)

    async def change(self, agent_id: AgentId, **values: Any) -> None:
        check_fence()
        agent = self._agents.get(agent_id)
        if agent is not None:
            self._agents[agent_id] = replace(agent, **values)

    async def agent(self, agent_id: AgentId) -> Agent | None:
        return self._agents.get(agent_id)

    async def agents(self, *, scaling_group: str | None = None) -> list[Agent]:
        agents = (agent for agent in self._agents.values() if scaling_group in (None, agent.scaling_group))
        return sorted(agents, key=lambda agent: agent.id)

    async def states(self) -> Mapping[AgentId, AgentState]:
        names = list(AgentState.__struct_fields__)
        return {
            agent.id: AgentState(**{name: getattr(agent, name) for name in names}) for agent in self._agents.values()
        }

    async def count_by_status(self) -> Mapping[AgentStatus, int]:
        return Counter(agent.status for agent in self._agents.values())

    async def underlays(self) -> dict[AgentId, OverlayReport]:
        living_agents = (agent for agent in await self.agents() if agent.status is AgentStatus.ALIVE)
        return {agent.id: agent.overlay for agent in living_agents if agent.overlay is not None}

    async def page(self, query: ListQuery, *, status: str | None, scaling_group: str | None) -> Page[Agent]:
        agents = [
            agent for agent in await self.agents(scaling_group=scaling_group) if status in (None, agent.status.value)
        ]
        page = select(agents, query, default_field="id")
        return page if query.order else replace(page, items=agents[query.offset : query.offset + query.limit])

    async def add_slot_types(self, slots: Iterable[SlotTypeInfo]) -> None:
        check_fence()
        self._slots.update({slot.slot_name: slot for slot in slots})

    async def slot_types(self) -> list[SlotTypeInfo]:
        return [self._slots[name] for name in sorted(self._slots)]
