"""Simulates the link as a network that loses, repeats, delays and reorders messages."""

from __future__ import annotations

from collections.abc import Mapping

from ai.backend.common.errors import NotSupported, Unavailable
from ai.backend.common.wire.link import AgentCommands, ManagerReports
from ai.backend.infra.rpc.endpoints import ServedAgents
from ai.backend.infra.rpc.frames import Kind, decode
from ai.backend.infra.rpc.memory import MemoryAgentEndpoint, MemoryConnection, MemoryLink
from ai.backend.infra.rpc.methods import MAX_MESSAGE_BYTES, commands_service, reports_service
from ai.backend.infra.rpc.multiplexer import Multiplexer
from ai.backend.simulator.virtual_time import CURRENT_PROCESS, Process
from ai.backend.simulator.world import World

_MAX_NOTICE_DELAY_S = 3.0
"""The longest time until an end notices that the other one is dead."""
_MAX_TRANSIT_S = 20.0


class SimulatedLink(MemoryLink):
    """Simulates the connections between one manager and its agents.

    Handlers run in the process that has started their end.

    A message to a dead process is lost, and the connection is found broken a little later.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._manager: Process | None = None
        self._agents: dict[str, Process] = {}

    def agent_endpoint(self, agent_id: str) -> SimulatedAgentEndpoint:
        return SimulatedAgentEndpoint(self, agent_id)

    def manager_started(self, process: Process, reports: ManagerReports) -> None:
        for agent_id in list(self._connections):
            self._break_connection(agent_id)
        self._manager, self.reports = process, reports

    def manager_died(self, process: Process) -> None:
        def break_connections() -> None:
            if self._manager is process:
                self.reports = None
                for agent_id in list(self._connections):
                    self._break_connection(agent_id)

        self._world.call_later(self._world.rng.uniform(0.0, _MAX_NOTICE_DELAY_S), break_connections)

    def agent_started(self, agent_id: str, commands: AgentCommands) -> None:
        process = CURRENT_PROCESS.get()
        assert process is not None
        self._break_connection(agent_id)
        self._agents[agent_id], self.commands[agent_id] = process, commands

    def agent_died(self, agent_id: str, process: Process) -> None:
        def break_connections() -> None:
            if self._agents.get(agent_id) is process:
                self.commands.pop(agent_id, None)
                self._break_connection(agent_id)

        self._world.call_later(self._world.rng.uniform(0.0, _MAX_NOTICE_DELAY_S), break_connections)

    def _break_connection(self, agent_id: str) -> None:
        """Fails the pending calls of both ends. Messages in transit still arrive."""
        connection = self._connections.pop(agent_id, None)
        if connection is not None:
            connection.manager.fail_all(Unavailable(f"the connection with {agent_id} broke off"))
            connection.agent.fail_all(Unavailable("the connection with the manager broke off"))

    def _connect(self, agent_id: str, reports: ManagerReports, commands: AgentCommands) -> MemoryConnection:
        manager_process, agent_process = self._manager, self._agents[agent_id]
        assert manager_process is not None

        async def to_agent(data: bytes) -> None:
            self._send(data, agent_process, agent_end, f"to {agent_id}")

        async def to_manager(data: bytes) -> None:
            self._send(data, manager_process, manager_end, f"from {agent_id}")

        manager_end = Multiplexer(
            f"agent {agent_id}",
            to_agent,
            service=reports_service(reports, agent_id.__eq__),
            max_message_bytes=MAX_MESSAGE_BYTES,
        )
        agent_end = Multiplexer(
            "the manager", to_manager, service=commands_service(commands), max_message_bytes=MAX_MESSAGE_BYTES
        )
        return MemoryConnection(manager_end, agent_end)

    def _send(self, data: bytes, receiver: Process, receiving_end: Multiplexer, message_label: str) -> None:
        world, faults = self._world, self._world.faults
        envelope = decode(data)
        message_label = f"{Kind(envelope.kind).name} {envelope.name or envelope.id} {message_label}"
        if world.chance(faults.lose_message):
            world.trace("lost", message_label)
        else:
            world.call_later(self._transit_s(), self._deliver, data, receiver, receiving_end, message_label)
        if world.chance(faults.repeat_message):
            world.call_later(
                world.rng.uniform(0.0, _MAX_TRANSIT_S),
                self._deliver,
                data,
                receiver,
                receiving_end,
                f"{message_label} again",
            )

    def _transit_s(self) -> float:
        world = self._world
        return (
            world.rng.uniform(0.1, _MAX_TRANSIT_S)
            if world.chance(world.faults.late_message)
            else world.rng.uniform(0.001, 0.02)
        )

    def _deliver(self, data: bytes, receiver: Process, receiving_end: Multiplexer, label: str) -> None:
        self._world.trace(label, "arrives" if receiver.is_alive else "finds nobody")
        if receiver.is_alive:
            self._world.loop.call_soon(receiving_end.feed, decode(data), context=receiver.context.copy())


class SimulatedAgentEndpoint(MemoryAgentEndpoint):
    """Represents the agent's end of a :class:`SimulatedLink`.

    It belongs to the process that starts it.
    """

    def __init__(self, link: SimulatedLink, agent_id: str) -> None:
        super().__init__(link, agent_id)
        self._simulated = link

    async def start(self, commands: ServedAgents) -> None:
        if isinstance(commands, Mapping):
            raise NotSupported("a simulated end serves one agent")
        self._simulated.agent_started(self._agent_id, commands)
