"""The ports to agents and to their watchers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ai.backend.common.wire.link import AgentCommands


class AgentGateway(Protocol):
    """Sends commands to agents (``infra.rpc.endpoints.ManagerEndpoint`` implements it)."""

    def agent(self, agent_id: str) -> AgentCommands:
        """Returns the commands of an agent; calling one raises Unavailable while the agent is not connected."""
        ...


class WatcherGateway(Protocol):
    """Calls the watchers of agents."""

    async def call(self, method: str, host: str, port: str, path: str, *, token: str) -> Mapping[str, Any]:
        """Returns the object that a watcher replies with.

        Raises:
            InvalidInput: host and port are no address. Unavailable: the watcher does not reply, or refuses.
        """
        ...
