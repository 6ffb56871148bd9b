"""The link in memory, as a network that loses, repeats, delays and reorders messages."""

from __future__ import annotations

import asyncio
from typing import Any

from ai.backend.common.errors import BackendError, DeadlineExceeded, Unavailable, from_wire
from ai.backend.common.wire.link import AgentCommands, ManagerReports
from ai.backend.infra.rpc.memory import MemoryAgentEndpoint, MemoryLink, pass_wire
from ai.backend.infra.rpc.methods import Method, deadline_of
from ai.backend.infra.rpc.proxies import guarded
from ai.backend.simulator.virtual_time import PROCESS, Process
from ai.backend.simulator.world import World

_NOTICED_S = 3.0
"""After so long at most an end notices that the other one is gone."""
_LATEST_S = 20.0


class SimulatedLink(MemoryLink):
    """The link of one manager. Handlers run in the process that has started its end.

    The processes may die; what is on its way then is not answered, and the link is found broken a little later.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._manager: Process | None = None
        self._agents: dict[str, Process] = {}

    def agent_endpoint(self, agent_id: str) -> SimulatedAgentEndpoint:
        return SimulatedAgentEndpoint(self, agent_id)

    def manager_started(self, process: Process, reports: ManagerReports) -> None:
        self._manager, self._reports = process, reports

    def manager_died(self, process: Process) -> None:
        def notice() -> None:
            if self._manager is process:
                self._reports = None

        self._world.later(self._world.rng.uniform(0.0, _NOTICED_S), notice)

    def agent_started(self, agent_id: str, commands: AgentCommands) -> None:
        process = PROCESS.get()
        assert process is not None
        self._agents[agent_id], self._commands[agent_id] = process, commands

    def agent_died(self, agent_id: str, process: Process) -> None:
        def notice() -> None:
            if self._agents.get(agent_id) is process:
                self._commands.pop(agent_id, None)

        self._world.later(self._world.rng.uniform(0.0, _NOTICED_S), notice)

    async def run(self, agent_id: str, method: Method, request: object, *, to_agent: bool) -> Any:
        world, faults, rng = self._world, self._world.faults, self._world.rng
        self._handler_of(agent_id, to_agent=to_agent)
        copy = pass_wire(request, method.request)
        reply: asyncio.Future[Any] = world.loop.create_future()
        way = f"{method.name} {'to' if to_agent else 'from'} {agent_id}"
        timeout_s = deadline_of(method, request)
        deadline = world.loop.call_later(timeout_s, self._expire, reply, f"{way} was not answered in {timeout_s:g} s")
        if world.chance(faults.lose):
            world.trace("lost", way)
        else:
            world.later(self._transit_s(), self._deliver, agent_id, method, copy, reply, to_agent, way)
        if world.chance(faults.repeat):
            delay_s = rng.uniform(0.0, _LATEST_S)
            again = pass_wire(request, method.request)
            world.later(delay_s, self._deliver, agent_id, method, again, None, to_agent, f"{way} again")
        try:
            return await reply
        finally:
            deadline.cancel()

    def _transit_s(self) -> float:
        world = self._world
        return world.rng.uniform(0.1, _LATEST_S) if world.chance(world.faults.late) else world.rng.uniform(0.001, 0.02)

    @staticmethod
    def _expire(reply: asyncio.Future[Any], what: str) -> None:
        if not reply.done():
            reply.set_exception(DeadlineExceeded(what))

    def _deliver(
        self,
        agent_id: str,
        method: Method,
        request: object,
        reply: asyncio.Future[Any] | None,
        to_agent: bool,
        way: str,
    ) -> None:
        world, process = self._world, self._agents.get(agent_id) if to_agent else self._manager
        world.trace(way, "arrives" if process is not None and process.is_alive else "finds nobody")
        if process is None or not process.is_alive:
            return
        try:
            handler = self._handler_of(agent_id, to_agent=to_agent)
        except Unavailable as e:
            if reply is not None and not reply.done():
                reply.set_exception(e)
            return
        task = world.spawn(process, guarded(handler, method, request), way)
        if reply is not None:
            task.add_done_callback(lambda done: self._answer(done, reply, way), context=world.context)
        else:
            task.add_done_callback(lambda done: done.cancelled() or done.exception(), context=world.context)

    def _answer(self, task: asyncio.Task[Any], reply: asyncio.Future[Any], way: str) -> None:
        error = Unavailable(f"{way} broke off") if task.cancelled() else task.exception()
        if self._world.chance(self._world.faults.lose):
            self._world.trace("lost the answer of", way)
        elif isinstance(error, BackendError):
            copy = from_wire(error.code, error.message, pass_wire(error.data, dict[str, Any]))
            self._world.later(self._transit_s(), self._hand_over, reply, None, copy)
        elif error is None:
            self._world.later(self._transit_s(), self._hand_over, reply, task.result(), None)

    @staticmethod
    def _hand_over(reply: asyncio.Future[Any], result: object, error: Exception | None) -> None:
        if reply.done():
            return
        if error is not None:
            reply.set_exception(error)
        else:
            reply.set_result(result)


class SimulatedAgentEndpoint(MemoryAgentEndpoint):
    """One agent's end of a :class:`SimulatedLink`; it is of the process that starts it."""

    def __init__(self, link: SimulatedLink, agent_id: str) -> None:
        super().__init__(link, agent_id)
        self._simulated = link

    async def start(self, commands: AgentCommands) -> None:
        self._simulated.agent_started(self._agent_id, commands)
