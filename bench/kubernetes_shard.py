"""Measures a shard with live sessions: real inventory, runtime and agents, on nodes that KWOK plays, and relays of a
swarm. The manager is in memory and only counts."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tools.kube import kwok

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.shard.inventory import NodeInventory
from ai.backend.agent.shard.shard import Shard
from ai.backend.common.states import KernelStatus, SessionType
from ai.backend.common.wire.agent import CreateKernels, DestroyKernel, KernelSpec
from ai.backend.common.wire.reports import ObservationReport
from ai.backend.infra.process.daemon import quickest_loop
from ai.backend.infra.process.memory import collect_rarely
from ai.backend.infra.rpc.beats import ChangedReports
from ai.backend.node.kube_api import reflector
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.resources import RESOURCE_SLICES
from ai.backend.runtime.kubernetes.cluster import ClusterConnection
from ai.backend.runtime.kubernetes.runtime import KubernetesRuntime
from bench.environments import add_shipped_loop
from bench.figures import Figure, benchmark
from bench.kube_fleet import KWOK_SAYS, Fleet, add_nodes, in_turns, running_fleet, scaled, swarm_of
from bench.shard import BEATS_GATHER_S, DRIVER, CountingManager, resident_bytes

NODES, DEVICES, SESSIONS = 1000, 8, 10_000
MAX_BYTES, MAX_CORE = 1 << 30, 0.10
CHURN_PER_S = 20.0
_CHURN_S, _IDLE_S, _SETTLE_S = 30.0, 60.0, 10.0
_QUIET_WATCH_S = 3, 6
"""Watches end after so many seconds in the quiet minute, so that each is renewed as often as in an hour."""
_TIMEOUT_S = 1200.0
_CREATIONS_AT_ONCE = 200
"""Sessions come over days, not in one moment: what 10,000 creations at once hold for a moment is not measured."""


class _Manager(CountingManager):
    """Counts reports, and notes the states of kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, KernelStatus] = {}
        self.trouble: dict[str, str] = {}
        self._changed = asyncio.Event()

    async def observe(self, report: ObservationReport) -> int:
        for observation in report.observations:
            self.states[observation.kernel_id] = observation.status
            if observation.message:
                self.trouble[observation.kernel_id] = f"{observation.reason}: {observation.message}"
        self._changed.set()
        return await super().observe(report)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(f"{what}: {list(self.trouble.values())[:3]}") from None

    def is_running(self, count: int) -> bool:
        """Returns True if at least so many kernels run."""
        return sum(state is KernelStatus.RUNNING for state in self.states.values()) >= count


@dataclass
class _Fleet:
    """A running shard, and its sessions by kernel and agent."""

    shard: Shard
    inventory: NodeInventory
    connection: ClusterConnection
    manager: _Manager
    sessions: dict[str, str] = field(default_factory=dict)

    @property
    def lists(self) -> int:
        return sum(copy.lists for copy in (self.inventory.nodes, self.inventory.pods, self.inventory.slices)) + (
            self.connection.reflector.lists
        )

    async def create(self, agent_id: str) -> None:
        spec = _spec()
        self.sessions[spec.kernel_id] = agent_id
        await self.shard.agents[agent_id].create_kernels(CreateKernels(kernels=[spec]))

    async def destroy(self, kernel_id: str) -> None:
        agent = self.shard.agents[self.sessions.pop(kernel_id)]
        await agent.destroy_kernel(DestroyKernel(kernel_id=kernel_id, attempt=1, forced=True))


def _spec() -> KernelSpec:
    return KernelSpec(
        kernel_id=str(uuid.uuid4()),
        session_id=str(uuid.uuid4()),
        attempt=1,
        session_name="s",
        session_type=SessionType.INTERACTIVE,
        image="image",
        architecture="x86_64",
        access_key="AK",
        user_id=str(uuid.uuid4()),
        user_email="user@example.com",
        slots={"cpu": "1", "mem": str(128 << 20)},
        devices={"cpu": {"node": "1"}, "mem": {"node": str(128 << 20)}},
    )


@benchmark(
    "kubernetes-shard-live", "one shard with 10,000 sessions on 1,000 nodes of KWOK: memory, idle, churn, relists"
)
def kubernetes_shard_live() -> Sequence[Figure]:
    collect_rarely()  # as the daemon does
    add_shipped_loop()
    loop = quickest_loop()  # as the daemon does
    with running_fleet() as fleet, swarm_of(fleet), asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(_measure(fleet))


async def _measure(fleet: Fleet) -> Sequence[Figure]:
    values: dict[str, Any] = {
        "agent": {"data-dir": str(fleet.folder / "shard")},
        "kubernetes": {
            "cluster": "prod",
            "taint-key": kwok.NODE_ANNOTATION,
            "drivers": {DRIVER: {"device-name": "cuda"}},
        },
    }
    settings, manager = AgentSettings.model_validate(values), _Manager()
    api = fleet.api(KubeApi)
    try:
        nodes = await add_nodes(api, scaled(NODES))
        await in_turns(_add_slice(api, node) for node in nodes)
        connection = ClusterConnection(fleet.settings, api, fleet.folder)
        shard = Shard(
            settings, partial(KubernetesRuntime, connection), ChangedReports(manager, gather_s=BEATS_GATHER_S)
        )
        inventory = NodeInventory(api, settings.kubernetes, "default", shard.schedule_comparison)
        await inventory.start()
        running = asyncio.create_task(shard.run(inventory))
        try:
            while len(shard.agents) < len(nodes):  # noqa: ASYNC110  # a mapping has no event
                await asyncio.sleep(0.2)
            return await _figures(_Fleet(shard, inventory, connection, manager))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await shard.close()
            await inventory.close()
    finally:
        await api.close()


async def _add_slice(api: KubeApi, node: str) -> None:
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {
                "uuid": {"string": f"GPU-{node}-{number}"},
                "productName": {"string": "H100"},
                "linkGroup": {"string": "a"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for number in range(DEVICES)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    await api.create(RESOURCE_SLICES, {"metadata": {"name": f"{node}-gpu"}, "spec": spec})


async def _figures(fleet: _Fleet) -> Sequence[Figure]:
    agent_ids, count = list(fleet.shard.agents), scaled(SESSIONS)
    manager = fleet.manager
    for begun in range(count):
        if begun % (_CREATIONS_AT_ONCE // 2) == 0:
            at_least = begun - _CREATIONS_AT_ONCE // 2
            await manager.until(partial(manager.is_running, at_least), "the sessions do not run")
        await fleet.create(agent_ids[begun % len(agent_ids)])
    await manager.until(partial(manager.is_running, count), "the sessions do not all run")
    sys.stderr.write(f"{count} sessions run on {len(agent_ids)} nodes\n")
    await asyncio.sleep(_SETTLE_S)
    used_bytes = resident_bytes()
    reflector._MIN_WATCH_S, reflector._MAX_WATCH_S = _QUIET_WATCH_S
    lists, idle = fleet.lists, await _core(asyncio.sleep(_IDLE_S))
    relists = fleet.lists - lists
    churn = await _core(_churn(fleet, agent_ids))
    joined_s = await _rejoin(fleet)
    ended = sum(manager.states[kernel] is not KernelStatus.RUNNING for kernel in fleet.sessions)
    where = f"for {len(agent_ids)} nodes of {DEVICES} devices and {count} sessions; {KWOK_SAYS}"
    return [
        _at_most("memory", used_bytes / 2**20, MAX_BYTES / 2**20, "MiB", f"of the whole process {where}"),
        _at_most("idle", idle, MAX_CORE, "cores", where),
        _at_most("relists", float(relists), 0.0, "lists", f"in {_IDLE_S:g} s with the watches of an hour"),
        _at_most("churn", churn, MAX_CORE, "cores", f"at {CHURN_PER_S:g} sessions begun or ended a second"),
        _at_most("rejoin", joined_s, 20.0, "s", f"until all relays are back after all were cut; {where}"),
        _at_most("ended", float(ended), 0.0, "sessions", "of those that were left alone"),
    ]


def _at_most(name: str, value: float, limit: float, unit: str, what: str) -> Figure:
    return Figure(
        name=f"kubernetes-shard-live-{name}",
        value=value,
        unit=unit,
        target=f"<= {limit:g} {what}",
        holds=value <= limit,
    )


async def _core(work: Any) -> float:
    """Returns the part of a core that this process uses meanwhile."""
    started_at, cpu_s = time.monotonic(), time.process_time()
    await work
    return (time.process_time() - cpu_s) / (time.monotonic() - started_at)


async def _churn(fleet: _Fleet, agent_ids: Sequence[str]) -> None:
    """Ends the oldest session and begins another, half as often as the rate of both."""
    loop, places = asyncio.get_running_loop(), itertools.cycle(agent_ids)
    started_at = loop.time()
    rounds = int(_CHURN_S * CHURN_PER_S / 2)
    for number in range(rounds):
        await asyncio.sleep(max(0.0, started_at + 2 * number / CHURN_PER_S - loop.time()))
        ended = next(iter(fleet.sessions))
        await fleet.destroy(ended)
        await fleet.create(next(places))
    states = fleet.manager.states
    await fleet.manager.until(
        lambda: all(states.get(kernel) is KernelStatus.RUNNING for kernel in fleet.sessions), "new sessions do not run"
    )


async def _rejoin(fleet: _Fleet) -> float:
    """Cuts the connection of every relay, as the death of a shard does, and returns when all are back."""
    handles = list(fleet.connection.handles)
    for handle in handles:
        if handle.link is not None:
            handle.link.close()
    cut_at = time.monotonic()
    await asyncio.sleep(0)
    while not all(handle.link is not None and handle.link.is_open for handle in handles if handle.exit is None):  # noqa: ASYNC110  # many handles
        await asyncio.sleep(0.1)
    return time.monotonic() - cut_at
