"""Runs the shipped daemons as simulated processes, which die, stop, and start again on their stored state."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from ai.backend.agent.composition import Agent, Host
from ai.backend.agent.config.settings import AgentSettings
from ai.backend.common.wire.reports import OverlayReport
from ai.backend.infra.bus import Bus
from ai.backend.infra.rpc.fanout import ManagerFanout
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.composition.stores import Stores
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.events.webhook_gateway import WebhookFailed
from ai.backend.plugin.accelerator import Measurement
from ai.backend.plugin.runtime import RuntimeInfo
from ai.backend.simulator.durable import Disk, MemoryState
from ai.backend.simulator.link import SimulatedLink
from ai.backend.simulator.node import Node
from ai.backend.simulator.virtual_time import Process
from ai.backend.simulator.world import SeededIds, SkewedClock, World

log = logging.getLogger(__name__)
_START_TIMEOUT_S = 60.0


class Daemon:
    """Runs one daemon as a sequence of simulated processes, each of which dies after ``mean_steps`` steps on average.

    With ``mean_steps`` None the process does not die.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.process = Process(name)
        self.process.is_alive = False
        self.mean_steps: float | None = None

    @property
    def is_up(self) -> bool:
        return self.process.is_alive

    def start(self) -> None:
        """Starts a new process of the daemon."""
        self.process = Process(self.name, self._on_death)
        if self.mean_steps is not None:
            self.process.fuse = 1 + int(self.world.rng.expovariate(1.0 / self.mean_steps))
        self.world.trace(self.name, "starts")
        self.world.spawn(self.process, self._start_with_timeout(), f"{self.name} starts")

    async def _start_with_timeout(self) -> None:
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await self.run()
        except Exception as e:  # noqa: BLE001  # whatever it is, a service manager starts it again
            self.world.trace(self.name, "could not start", type(e).__name__)
            self.process.kill()

    def _on_death(self) -> None:
        self.world.trace(self.name, "dies")
        self.disconnect()
        self.world.call_later(self.world.rng.uniform(0.2, 8.0), self._restart_if_dead, self.process)

    def _restart_if_dead(self, process: Process) -> None:
        if self.process is process and not process.is_alive:
            self.start()

    async def run(self) -> None:
        raise NotImplementedError

    def disconnect(self) -> None:
        """Breaks the connections of the dead process."""


class ManagerDaemon(Daemon):
    """Runs a manager with its link; ``manager`` is set once the current process has started."""

    def __init__(
        self, world: World, name: str, stores: Stores, settings: ManagerSettings, inbox: Inbox, clock: SkewedClock
    ) -> None:
        super().__init__(world, name)
        self.link = SimulatedLink(world)
        self.manager: Manager | None = None
        self.clock = clock
        self._stores = stores
        self._settings = settings
        self._inbox = inbox

    async def run(self) -> None:
        rng = self.world.rng
        manager = Manager(
            self._settings,
            self._stores,
            Bus(),
            self.link.manager,
            clock=self.clock,
            id_generator=SeededIds(rng.getrandbits(64)),
            rng=random.Random(rng.getrandbits(64)),
            callbacks=self._inbox,
            hash_password=str,
            verify_password=str.__eq__,
        )
        await manager.start()
        self.link.manager_started(self.process, manager.reports)
        self.manager = manager

    def disconnect(self) -> None:
        self.manager = None
        self.link.manager_died(self.process)

    @property
    def leads(self) -> bool:
        manager = self.manager
        return manager is not None and manager.leads

    async def ask(self, request: Callable[[Manager], Coroutine[Any, Any, Any]]) -> Any:
        """Sends a user's request to the manager. The request is lost if the process dies."""
        manager = self.manager
        assert manager is not None
        return await self.world.call(self.process, partial(request, manager))


class Inbox:
    """Receives the callbacks of sessions in place of their URLs, and may fail at random.

    Implements :class:`ai.backend.manager.events.webhook_gateway.WebhookSender`.
    """

    def __init__(self, world: World) -> None:
        self.received: dict[str, list[int]] = {}
        self.bodies: dict[int, Mapping[str, Any]] = {}
        self._world = world

    async def send(self, url: str, callback_id: int, body: Mapping[str, Any]) -> None:
        world, rng = self._world, self._world.rng
        await asyncio.sleep(rng.uniform(0.01, 0.1))
        if world.chance(world.faults.misbehave):
            raise WebhookFailed("refused")
        received_ids = self.received.setdefault(url, [])
        received_ids.append(callback_id)
        self.bodies[callback_id] = body
        world.trace("callback", callback_id)
        await asyncio.sleep(rng.uniform(0.01, 0.1))
        if world.chance(world.faults.misbehave):
            raise WebhookFailed("the answer was lost")

    async def close(self) -> None: ...


class AgentDaemon(Daemon):
    """Runs an agent on its node, with a link to every manager."""

    def __init__(
        self,
        world: World,
        node: Node,
        managers: Mapping[str, ManagerDaemon],
        settings: AgentSettings,
        clock: SkewedClock,
    ) -> None:
        super().__init__(world, settings.agent.id)
        self.node = node
        self.disk = Disk(world)
        self.clock = clock
        self.agent: Agent | None = None
        self._managers = managers
        self._settings = settings

    @property
    def agent_id(self) -> str:
        return self._settings.agent.id

    async def run(self) -> None:
        managers, agent_id = self._managers, self.agent_id
        endpoint = ManagerFanout(
            lambda address, _: managers[address].link.agent_endpoint(agent_id), dict.fromkeys(managers, "key")
        )
        host = Host(
            state=MemoryState(self.disk, agent_id),
            kits=NoKits(),
            meter=NoMeter(),
            overlay=self._overlay,
            wall_clock=self.clock.time,
        )
        agent = Agent(self._settings, self.node.runtime(), endpoint.reports, plugins=self.node.sources(), host=host)
        await agent.start()
        await endpoint.start(agent.commands)
        self.agent = agent

    def _overlay(self, info: RuntimeInfo) -> OverlayReport:
        agent_number = int(self.agent_id.rpartition("-")[2])
        return OverlayReport(address=f"10.0.0.{agent_number + 1}", port=4789, mtu=1500, why_plain="it is simulated")

    def disconnect(self) -> None:
        self.agent = None
        for daemon in self._managers.values():
            daemon.link.agent_died(self.agent_id, self.process)


class NoKits:
    """Replaces the kits of service programs in a simulated agent; sessions then have no such services."""

    is_built_in = False

    services: frozenset[str] = frozenset()

    def open(self) -> None: ...

    @property
    def directory(self) -> Any:
        raise NotImplementedError

    async def ensure(self) -> str:
        raise NotImplementedError

    async def clean(self) -> None: ...


class NoMeter:
    """Replaces the measurement of a node's machine in a simulated agent, and returns no measurements."""

    def measure(self) -> Sequence[Measurement]:
        return ()
