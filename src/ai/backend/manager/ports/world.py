"""Time, chance and the agents."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol
from uuid import UUID

from ai.backend.common.wire.link import AgentCommands


class Clock(Protocol):
    def now(self) -> datetime:
        """Aware, UTC."""
        ...

    def monotonic(self) -> float: ...


class Minter(Protocol):
    """Makes identities."""

    def uuid(self) -> UUID: ...
    def token(self, length: int) -> str:
        """Letters and digits from a cryptographic source."""
        ...


class AgentGateway(Protocol):
    """The manager's end of the link (``infra.rpc.endpoints.ManagerEndpoint`` fits)."""

    def agent(self, agent_id: str) -> AgentCommands:
        """Never raises; the calls raise Unavailable while that agent is not connected."""
        ...
