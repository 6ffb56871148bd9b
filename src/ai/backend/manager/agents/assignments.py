"""Resource groups that superadmins assign to agents."""

from __future__ import annotations

import msgspec

from ai.backend.common.ids import AgentId, ResourceGroupName
from ai.backend.infra.config_store import ConfigStore
from ai.backend.manager.agents.model import Agent

_ASSIGNED = "manager/assigned-agents"


class _Assigned(msgspec.Struct, frozen=True):
    group: str
    instead_of: str


class Assignments:
    """Overrides the resource groups that agents name with those that superadmins assigned.

    An assignment holds as long as the agent names the same group as when it was made; a later change of the agent's
    settings overrides it.
    """

    def __init__(self, config: ConfigStore) -> None:
        self._config = config

    async def put(self, agent_id: AgentId, group: str, *, instead_of: str) -> None:
        text = msgspec.json.encode(_Assigned(group=group, instead_of=instead_of)).decode()
        await self._config.put_many({f"{_ASSIGNED}/{agent_id}": text})

    async def _get(self, agent_id: AgentId) -> _Assigned | None:
        text = await self._config.get(f"{_ASSIGNED}/{agent_id}")
        try:
            return msgspec.json.decode(text, type=_Assigned) if text else None
        except msgspec.DecodeError:  # not written by the manager: the group that the agent names holds
            return None

    async def group_of(self, agent_id: AgentId, named: str) -> ResourceGroupName:
        """Returns the resource group of an agent that names the group ``named``."""
        assigned = await self._get(agent_id)
        return ResourceGroupName(assigned.group if assigned is not None and assigned.instead_of == named else named)

    async def named_by(self, agent: Agent) -> str:
        """Returns the group that the agent itself names."""
        assigned = await self._get(agent.id)
        is_assigned = assigned is not None and assigned.group == agent.scaling_group
        return assigned.instead_of if assigned is not None and is_assigned else agent.scaling_group
