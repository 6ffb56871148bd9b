"""What each daemon holds of the manager-agent link, whatever carries it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ai.backend.common.wire.link import AgentCommands, ManagerReports


class ManagerEndpoint(Protocol):
    """The manager's end: it serves the reports of all agents and commands each of them."""

    async def start(self, reports: ManagerReports) -> None:
        """Begin to accept agents. A failed start leaves nothing open."""

    async def stop(self) -> None:
        """Let go of every agent; pending calls raise Unavailable. Safe without ``start`` and twice."""

    def agent(self, agent_id: str) -> AgentCommands:
        """Commands for one agent. Never raises: the calls raise Unavailable while that agent is not connected."""
        ...

    @property
    def agents(self) -> Mapping[str, AgentCommands]:
        """The agents that are connected now. A key that is missing raises Unavailable, not KeyError."""
        ...


class AgentEndpoint(Protocol):
    """One agent's end: it serves the manager's commands and reports to it."""

    async def start(self, commands: AgentCommands) -> None:
        """Begin to connect; returns at once, the manager may come later."""

    async def stop(self) -> None: ...

    @property
    def reports(self) -> ManagerReports:
        """Usable before ``start``; calls raise Unavailable while there is no manager."""
        ...
