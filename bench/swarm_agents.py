"""Runs many agents in one process, each with its own link to every manager: shipped services, a runtime in memory.

Usage: python -m bench.swarm_agents FIRST COUNT FOLDER    (FOLDER holds `managers.json` and the keys of the agents)

Prints `ready` when all have started. SIGUSR1: a tenth of them vanishes for some seconds; their workloads run on.
SIGTERM: prints the number of creations of each workload that was created more than once, as JSON, and ends.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import zmq
import zmq.asyncio

from ai.backend.agent.composition import Agent, Host
from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.kernels.files import DirectoryState
from ai.backend.agent.shard.nodes import NodeFacts
from ai.backend.agent.shard.plugins import node_plugins
from ai.backend.common.wire.reports import OverlayReport
from ai.backend.infra.process.memory import collect_rarely, share_one_heap
from ai.backend.infra.rpc.fanout import ManagerFanout
from ai.backend.infra.rpc.zmq.agent import ZmqAgentEndpoint
from ai.backend.infra.rpc.zmq.keys import load_keypair
from ai.backend.plugin.runtime import WorkloadSpec, WorkloadView
from ai.backend.plugin.testing.runtime.fake_runtime import FakeNode, FakeRuntime
from ai.backend.simulator.daemons import NoKits, NoMeter

CORES, MEMORY_BYTES = 64, 256 << 30
VANISHED_S = 5.0
_STARTS = 8


class CountingRuntime(FakeRuntime):
    """Counts the creations of each workload: a second one of the same attempt elsewhere is a doubled session."""

    creations: ClassVar[Counter[str]] = Counter()

    async def _create(self, spec: WorkloadSpec) -> WorkloadView:
        self.creations[f"{spec.key.kernel_id}/{spec.key.attempt}"] += 1
        return await super()._create(spec)


@dataclass
class Member:
    """An agent on its node, which outlives it."""

    agent_id: str
    node: FakeNode
    agent: Agent
    endpoint: ManagerFanout

    async def stop(self) -> None:
        await self.endpoint.stop()
        await self.agent.stop()


class Swarm:
    """The agents of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._managers: dict[str, str] = json.loads((folder / "managers.json").read_text())
        self._context = zmq.asyncio.Context()
        self._context.set(zmq.MAX_SOCKETS, 60_000)
        self._starts = asyncio.Semaphore(_STARTS)
        self.members: dict[str, Member] = {}

    async def start(self, agent_id: str, node: FakeNode) -> None:
        async with self._starts:
            folder = self._folder / "agents" / agent_id
            settings = AgentSettings.model_validate(
                {"agent": {"id": agent_id, "data-dir": str(folder / "data")}, "kubernetes": {"cluster": "swarm"}}
            )
            facts = NodeFacts(
                name=agent_id,
                uid=agent_id,
                agent_id=agent_id,
                architecture="x86_64",
                cores=CORES,
                memory_bytes=MEMORY_BYTES,
                pods=1000,
            )
            keypair = load_keypair(folder / "key")

            def connect(address: str, key: str) -> ZmqAgentEndpoint:
                return ZmqAgentEndpoint(
                    connect=address, agent_id=agent_id, keypair=keypair, manager_key=key, context=self._context
                )

            endpoint = ManagerFanout(connect, self._managers)
            host = Host(
                state=DirectoryState(settings.data_dir),
                kits=NoKits(),
                meter=NoMeter(),
                overlay=lambda _: OverlayReport(why_not="nodes in memory have no networks"),
            )
            plugins = node_plugins(lambda: facts, settings.kubernetes)
            agent = Agent(settings, CountingRuntime(node), endpoint.reports, plugins=plugins, host=host)
            await agent.start()
            await endpoint.start(agent.commands)
            self.members[agent_id] = Member(agent_id, node, agent, endpoint)

    async def vanish(self) -> None:
        """Stops a tenth of the agents, and starts them again on their nodes."""
        gone = [self.members.pop(agent_id) for agent_id in sorted(self.members)[::10]]
        await asyncio.gather(*(member.stop() for member in gone))
        await asyncio.sleep(VANISHED_S)
        await asyncio.gather(*(self.start(member.agent_id, member.node) for member in gone))

    async def close(self) -> None:
        await asyncio.gather(*(member.stop() for member in self.members.values()))
        self._context.destroy(0)


async def run(first: int, count: int, folder: Path) -> None:
    swarm, stop, tasks = Swarm(folder), asyncio.Event(), set[asyncio.Task[None]]()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, lambda: tasks.add(asyncio.create_task(swarm.vanish())))
    await asyncio.gather(*(swarm.start(f"s-{number}", FakeNode()) for number in range(first, first + count)))
    collect_rarely()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await stop.wait()
    await asyncio.gather(*tasks)
    doubled = {key: number for key, number in CountingRuntime.creations.items() if number > 1}
    sys.stdout.write(json.dumps({"created": len(CountingRuntime.creations), "doubled": doubled}) + "\n")
    sys.stdout.flush()
    with suppress(TimeoutError):
        async with asyncio.timeout(10):
            await swarm.close()


if __name__ == "__main__":
    share_one_heap()
    asyncio.run(run(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
