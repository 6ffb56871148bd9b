"""Resource presets and agents as superadmins change them (spec 03-09, "Resource Preset", "Agent")."""

from __future__ import annotations

import msgspec

from ai.backend.common.ids import AgentId, ResourceGroupName
from ai.backend.infra.config_store import ConfigStore
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.agents.model import Agent

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


def _check(caller: Caller) -> None:
    require(caller, Operation.CHANGE_AGENTS)
