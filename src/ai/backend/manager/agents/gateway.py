"""Gateways of agents: the ports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ai.backend.common.wire.link import AgentCommands


class AgentGateway(Protocol):
    """The manager's end of the link (``infra.rpc.endpoints.ManagerEndpoint`` fits)."""

    def agent(self, agent_id: str) -> AgentCommands:
        """Never raises; the calls raise Unavailable while that agent is not connected."""
        ...


class WatcherGateway(Protocol):
    """Reaches the watchers of agents."""

    async def ask(self, method: str, host: str, port: str, path: str, *, token: str) -> Mapping[str, Any]:
        """The object that a watcher answers.

        Raises:
            InvalidInput: host and port are no address. Unavailable: it does not answer, or refuses.
        """
        ...
