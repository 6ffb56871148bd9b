"""Resource presets and agents as superadmins change them (spec 03-09, "Resource Preset", "Agent")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ai.backend.common.errors import Conflict, Forbidden, NotFound
from ai.backend.common.ids import AgentId, ResourceGroupName
from ai.backend.common.names import check_slug
from ai.backend.infra.config_store import ConfigStore
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.model.cluster import Agent, ResourcePreset
from ai.backend.manager.model.identity import Caller
from ai.backend.manager.ports.identity_store import IdentityStore
from ai.backend.manager.ports.stores import AgentStore

_ASSIGNED = "manager/assigned-agents"


class _Assigned(msgspec.Struct, frozen=True):
    group: str
    instead_of: str


class Assignments:
    """Resource groups that superadmins gave to agents in place of those that the agents name.

    One is in force as long as the agent names the same group as then: whoever changes the agent's settings afterwards
    is heard.
    """

    def __init__(self, config: ConfigStore) -> None:
        self._config = config

    async def put(self, agent_id: AgentId, group: str, *, instead_of: str) -> None:
        told = msgspec.json.encode(_Assigned(group=group, instead_of=instead_of)).decode()
        await self._config.put_many({f"{_ASSIGNED}/{agent_id}": told})

    async def _get(self, agent_id: AgentId) -> _Assigned | None:
        text = await self._config.get(f"{_ASSIGNED}/{agent_id}")
        try:
            return msgspec.json.decode(text, type=_Assigned) if text else None
        except msgspec.DecodeError:  # it is not ours: the agent's word stands
            return None

    async def group_of(self, agent_id: AgentId, named: str) -> ResourceGroupName:
        """Where an agent is that names this group."""
        found = await self._get(agent_id)
        return ResourceGroupName(found.group if found is not None and found.instead_of == named else named)

    async def named_by(self, agent: Agent) -> str:
        """The group that the agent itself names."""
        found = await self._get(agent.id)
        return found.instead_of if found is not None and found.group == agent.scaling_group else agent.scaling_group


class EquipmentService:
    """Every method raises Forbidden for callers who are no superadmins, and NotFound for what is not there."""

    def __init__(
        self,
        agents: AgentStore,
        identities: IdentityStore,
        assignments: Assignments,
        after_change: Sequence[PeriodicLoop] = (),
    ) -> None:
        self._agents = agents
        self._identities = identities
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
            if await self._identities.resource_group(scaling_group) is None:
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


def _check(caller: Caller) -> None:
    if not caller.is_superadmin:
        raise Forbidden("Only superadmins change agents and presets.")
