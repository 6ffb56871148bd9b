"""Implements the link inside one process. Every message passes the wire encoding, so that no object is shared."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import msgspec

from ai.backend.common.errors import NotSupported, Unavailable
from ai.backend.common.wire.link import AgentCommands, ManagerReports
from ai.backend.infra.rpc.endpoints import ConnectedAgents, ServedAgents
from ai.backend.infra.rpc.frames import DataOffer, decode
from ai.backend.infra.rpc.methods import (
    MAX_MESSAGE_BYTES,
    commands_proxy,
    commands_service,
    reports_proxy,
    reports_service,
)
from ai.backend.infra.rpc.multiplexer import Multiplexer
from ai.backend.infra.rpc.streams import Piece, StreamPort


class MemoryStreams:
    """Connects both ends of a stream with each other, as stream server and as stream dialer."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._expected: dict[bytes, StreamPort] = {}

    @contextmanager
    def offer(self, port: StreamPort) -> Iterator[DataOffer]:
        token = str(next(self._numbers)).encode()
        self._expected[token] = port
        try:
            yield DataOffer(token)
        finally:
            self._expected.pop(token, None)

    async def dial(self, offer: DataOffer, port: StreamPort) -> None:
        peer_port = self._expected.pop(offer.token, None)
        if peer_port is None:
            raise Unavailable("the manager does not wait for this stream any more")
        peer_port.attach(partial(_deliver_piece, port), port.end)
        port.attach(partial(_deliver_piece, peer_port), peer_port.end)


async def _deliver_piece(peer_port: StreamPort, kind: Piece, body: Any) -> None:
    if kind is Piece.CREDIT:
        peer_port.grant(body)
    elif not peer_port.deliver(body):
        peer_port.end()
        raise Unavailable("the window of the peer is full")


class MemoryConnection(msgspec.Struct, frozen=True):
    """Represents both ends of the link to one agent."""

    manager: Multiplexer
    agent: Multiplexer

    async def close(self) -> None:
        await self.manager.close()
        await self.agent.close()


class MemoryLink:
    """Connects a manager and any number of agents in one process.

    Either side may start, stop and start again in any order.
    """

    def __init__(self, *, deadline_scale: float = 1.0) -> None:
        self._deadline_scale = deadline_scale
        self._streams = MemoryStreams()
        self._connections: dict[str, MemoryConnection] = {}
        self.reports: ManagerReports | None = None
        self.commands: dict[str, AgentCommands] = {}
        """The started agents by id."""
        self.manager = MemoryManagerEndpoint(self)

    def agent_endpoint(self, agent_id: str) -> MemoryAgentEndpoint:
        return MemoryAgentEndpoint(self, agent_id)

    def connected(self) -> Collection[str]:
        return self.commands if self.reports is not None else ()

    def connection(self, agent_id: str) -> MemoryConnection:
        """Returns the connection of an agent. Raises Unavailable if one of its ends is not started."""
        if self.reports is None:
            raise Unavailable("the manager is not there")
        if agent_id not in self.commands:
            raise Unavailable(f"agent {agent_id} is not connected")
        if agent_id not in self._connections:
            self._connections[agent_id] = self._connect(agent_id, self.reports, self.commands[agent_id])
        return self._connections[agent_id]

    def _connect(self, agent_id: str, reports: ManagerReports, commands: AgentCommands) -> MemoryConnection:
        async def to_agent(data: bytes) -> None:
            agent.feed(decode(data))

        async def to_manager(data: bytes) -> None:
            manager.feed(decode(data))

        limits: dict[str, Any] = {"max_message_bytes": MAX_MESSAGE_BYTES, "deadline_scale": self._deadline_scale}
        manager = Multiplexer(
            f"agent {agent_id}",
            to_agent,
            service=reports_service(reports, agent_id.__eq__),
            server=self._streams,
            **limits,
        )
        agent = Multiplexer(
            "the manager", to_manager, service=commands_service(commands), dialer=self._streams, **limits
        )
        return MemoryConnection(manager, agent)

    async def disconnect(self, agent_id: str) -> None:
        """Ends all calls and streams of one agent, as a lost connection does."""
        connection = self._connections.pop(agent_id, None)
        if connection is not None:
            await connection.close()


class MemoryManagerEndpoint:
    """Represents the manager's end of a :class:`MemoryLink`."""

    def __init__(self, link: MemoryLink) -> None:
        self._link = link
        self._agents = ConnectedAgents(link.connected, self.agent)

    async def start(self, reports: ManagerReports) -> None:
        self._link.reports = reports

    async def stop(self) -> None:
        self._link.reports = None
        for agent_id in list(self._link.commands):
            await self._link.disconnect(agent_id)

    def agent(self, agent_id: str) -> AgentCommands:
        async def connect() -> Multiplexer:
            return self._link.connection(agent_id).manager

        return commands_proxy(connect)

    @property
    def agents(self) -> Mapping[str, AgentCommands]:
        return self._agents


class MemoryAgentEndpoint:
    """Represents an agent's end of a :class:`MemoryLink`."""

    def __init__(self, link: MemoryLink, agent_id: str) -> None:
        self._link, self._agent_id = link, agent_id
        self._reports = reports_proxy(self._connect)

    async def _connect(self) -> Multiplexer:
        return self._link.connection(self._agent_id).agent

    async def start(self, commands: ServedAgents) -> None:
        """Connects the agent.

        Raises NotSupported for several agents, because each agent has its own connection here.
        """
        if isinstance(commands, Mapping):
            raise NotSupported("an end of a link in memory serves one agent")
        self._link.commands[self._agent_id] = commands

    async def stop(self) -> None:
        if self._link.commands.pop(self._agent_id, None) is not None:
            await self._link.disconnect(self._agent_id)

    @property
    def reports(self) -> ManagerReports:
        return self._reports
