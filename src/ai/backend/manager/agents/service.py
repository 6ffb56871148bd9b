"""Use cases of agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ai.backend.common.errors import Conflict, NotFound
from ai.backend.common.ids import AgentId, ResourceGroupName
from ai.backend.common.names import check_slug
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.assignments import Assignments, _check
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.resources.model import ResourcePreset


class EquipmentService:
    """Every method raises Forbidden for callers who are no superadmins, and NotFound for what is not there."""

    def __init__(
        self,
        agents: AgentStore,
        resource_groups: ResourceGroupStore,
        assignments: Assignments,
        after_change: Sequence[PeriodicLoop] = (),
    ) -> None:
        self._agents = agents
        self._resource_groups = resource_groups
        self._assignments = assignments
        self.after_change = list(after_change)

    async def modify_agent(
        self, caller: Caller, agent_id: str, *, schedulable: bool | None = None, scaling_group: str | None = None
    ) -> Agent:
        """Let it take sessions or not, or move it to another resource group; its sessions go on."""
        _check(caller)
        agent = await self._agents.agent(AgentId(agent_id))
        if agent is None:
            raise NotFound(f"There is no agent {agent_id[:64]!r}.")
        if scaling_group is not None:
            if await self._resource_groups.resource_group(scaling_group) is None:
                raise NotFound(f"There is no resource group {scaling_group[:64]!r}.", data={"scaling_group": "unknown"})
            # First what the next report of the agent is judged by.
            named = await self._assignments.named_by(agent)
            await self._assignments.put(agent.id, scaling_group, instead_of=named)
            await self._agents.set_resource_group(agent.id, ResourceGroupName(scaling_group))
        if schedulable is not None:
            await self._agents.set_schedulable(agent.id, schedulable)
        for loop in self.after_change:
            loop.wake()
        return await self._agents.agent(agent.id) or agent

    async def create_preset(self, caller: Caller, name: str, values: Mapping[str, Any]) -> ResourcePreset:
        """Raises InvalidName; Conflict for a known name."""
        _check(caller)
        check_slug(name, what="name", allow_dots=True)
        if await self._preset(name) is not None:
            raise Conflict(f"There is a preset {name!r} already.", data={"name": "taken"})
        preset = ResourcePreset(name=name, **values)
        await self._agents.put_preset(preset)
        return preset

    async def modify_preset(self, caller: Caller, name: str, values: Mapping[str, Any]) -> ResourcePreset:
        _check(caller)
        known = await self._preset(name)
        if known is None:
            raise NotFound(f"There is no preset {name[:64]!r}.")
        changed = replace(known, **{field: value for field, value in values.items() if value is not None})
        await self._agents.put_preset(changed)
        return changed

    async def delete_preset(self, caller: Caller, name: str) -> None:
        _check(caller)
        if not await self._agents.delete_preset(name):
            raise NotFound(f"There is no preset {name[:64]!r}.")

    async def _preset(self, name: str) -> ResourcePreset | None:
        return next((p for p in await self._agents.presets() if p.name == name), None)
