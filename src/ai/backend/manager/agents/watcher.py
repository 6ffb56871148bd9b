"""The watchers of agents, who start, stop and restart them (spec 03-02, client wire contract 2.9).

Where a watcher is and what it wants to hear is in the shared configuration (peer facts 4.5): ``nodes/agents/ID/ip`` and
``watcher_port``, ``config/watcher/token``. Agents do not write it: an address that an agent names would be one that the
manager sends the token to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ai.backend.common.errors import NotFound
from ai.backend.common.ids import AgentId
from ai.backend.infra.config_store import ConfigStore
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.agents.gateway import WatcherGateway
from ai.backend.manager.agents.store import AgentStore

TOKEN_KEY = "config/watcher/token"
DEFAULT_PORT = 6009


class WatcherService:
    """For superadmins."""

    def __init__(self, agents: AgentStore, config: ConfigStore, gateway: WatcherGateway) -> None:
        self._agents = agents
        self._config = config
        self._gateway = gateway

    async def status(self, caller: Caller, agent_id: str) -> Mapping[str, Any]:
        """What the watcher knows of its agent: ``agent-status``. Raises Forbidden, NotFound, Unavailable."""
        return await self._ask(caller, agent_id, "GET", "/")

    async def act(self, caller: Caller, agent_id: str, action: str) -> Mapping[str, Any]:
        """Start, stop or restart the agent; its sessions outlive that. Raises as :meth:`status`."""
        return await self._ask(caller, agent_id, "POST", f"/agent/{action}")

    async def _ask(self, caller: Caller, agent_id: str, method: str, path: str) -> Mapping[str, Any]:
        require(caller, Operation.CONTROL_AGENT_DAEMONS)
        agent = await self._agents.agent(AgentId(agent_id))
        if agent is None:
            raise NotFound(f"There is no agent {agent_id[:64]!r}.", data={"agent_id": "unknown"})
        place = f"nodes/agents/{agent.id}"
        host, port = await self._config.get(f"{place}/ip"), await self._config.get(f"{place}/watcher_port")
        token = await self._config.get(TOKEN_KEY)
        for key, value in ((f"{place}/ip", host), (TOKEN_KEY, token)):
            if not value:
                message = f"The watcher of {agent.id} is not known: set {key} in the shared configuration."
                raise NotFound(message, data={"agent_id": "no watcher"})
        return await self._gateway.ask(method, str(host), str(port or DEFAULT_PORT), path, token=str(token))
