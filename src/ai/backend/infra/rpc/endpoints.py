"""Defines the interfaces of the link for each daemon, independent of the transport."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol

from ai.backend.common.errors import Unavailable
from ai.backend.common.wire.link import AgentCommands, ManagerReports


class ManagerEndpoint(Protocol):
    """Represents the manager's end of the link.

    It serves the reports of all agents and sends commands to each agent.
    """

    async def start(self, reports: ManagerReports) -> None:
        """Starts to accept agents. A failed start leaves nothing open."""

    async def stop(self) -> None:
        """Disconnects every agent; pending calls raise Unavailable. Safe without ``start`` and twice."""

    def agent(self, agent_id: str) -> AgentCommands:
        """Returns the commands of one agent. The commands raise Unavailable while the agent is not connected."""

    @property
    def agents(self) -> Mapping[str, AgentCommands]:
        """The connected agents. A missing key raises Unavailable, not KeyError."""


ServedAgents = AgentCommands | Mapping[str, AgentCommands]
"""The commands of one agent, or by their ids those of each agent for which an end speaks; the mapping may change at any
time."""


class AgentEndpoint(Protocol):
    """Represents the end of one or many agents. It serves the manager's commands and sends reports to the manager."""

    async def start(self, commands: ServedAgents) -> None:
        """Starts to connect and returns at once. The manager may become available later."""

    async def stop(self) -> None: ...

    @property
    def reports(self) -> ManagerReports:
        """The reports of its agents. Usable before ``start``; calls raise Unavailable while there is no manager."""


class ConnectedAgents(Mapping[str, AgentCommands]):
    """Maps ids to connected agents. A missing id raises Unavailable."""

    def __init__(
        self, connected_ids: Callable[[], Collection[str]], commands_of: Callable[[str], AgentCommands]
    ) -> None:
        self._ids, self._agent = connected_ids, commands_of

    def __getitem__(self, agent_id: str) -> AgentCommands:
        if agent_id not in self._ids():
            raise Unavailable(f"agent {agent_id} is not connected")
        return self._agent(agent_id)

    def __contains__(self, agent_id: object) -> bool:
        return agent_id in self._ids()

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._ids()))

    def __len__(self) -> int:
        return len(self._ids())
