"""Measures how many pods a second our runtime creates, on nodes that KWOK plays."""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.infra.process.memory import collect_rarely
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.objects import Pod
from ai.backend.node.kube_api.reflector import Reflector
from ai.backend.node.kube_api.resources import PODS, ObjectT, Resource
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.runtime.kubernetes.cluster import ClusterConnection
from ai.backend.runtime.kubernetes.manifest import compose_pod
from ai.backend.runtime.kubernetes.runtime import KubernetesRuntime
from bench.figures import Figure, benchmark
from bench.kube_fleet import (
    KWOK_SAYS,
    NAMESPACE,
    Fleet,
    add_nodes,
    delete_pods,
    in_turns,
    running_fleet,
    scaled,
    swarm_of,
)

NODES, SESSIONS, BARE_PODS = 5000, 10_000, 2000
PODS_PER_S = 300.0
_BARE = {"bench": "bare"}


@dataclass(frozen=True, slots=True)
class _Rates:
    """Pods that the API server has taken, and that run, per second from the first request to the last."""

    taken: float
    running: float


class _TimedApi(KubeApi):
    """Notes when the last object was created."""

    created_at = 0.0

    async def create(
        self, resource: Resource[ObjectT], body: Mapping[str, Any], namespace: str = "", *, dry_run: bool = False
    ) -> ObjectT:
        created = await super().create(resource, body, namespace, dry_run=dry_run)
        self.created_at = time.perf_counter()
        return created


@benchmark("kubernetes-rate", "pods created and sessions begun a second, 10,000 on 5,000 nodes of KWOK, over bare pods")
def kubernetes_rate() -> Sequence[Figure]:
    collect_rarely()  # as the daemon does
    with running_fleet() as fleet, swarm_of(fleet):
        return asyncio.run(_measure(fleet))


async def _measure(fleet: Fleet) -> Sequence[Figure]:
    api = fleet.api(_TimedApi)
    try:
        nodes = await add_nodes(api, scaled(NODES))
        connection = ClusterConnection(fleet.settings, api, fleet.folder)
        runtimes = [KubernetesRuntime(connection, node) for node in nodes]
        for runtime in runtimes:
            await runtime.setup()
        bare = [await _bare_rates(connection, api, nodes)]
        started_cpu_s = time.process_time()
        ours = await _our_rates(api, runtimes)
        cpu_s = time.process_time() - started_cpu_s
        bare.append(await _bare_rates(connection, api, nodes))
        for runtime in runtimes:
            await runtime.shutdown()
    finally:
        await api.close()
    taken, running = (statistics.fmean(values) for values in zip(*((r.taken, r.running) for r in bare), strict=True))
    detail = {"nodes": float(len(nodes)), "sessions": float(scaled(SESSIONS))}
    return [
        Figure(
            name="kubernetes-pods-per-second",
            value=ours.taken,
            unit="pods/s",
            reference=taken,
            reference_is=f"bare POSTs of the same pods by the same client, before and after; {KWOK_SAYS}",
            target=f">= {PODS_PER_S:g}, or the API server's own rate",
            holds=ours.taken >= min(PODS_PER_S, taken),
            detail={**detail, "before": bare[0].taken, "after": bare[1].taken},
        ),
        Figure(
            name="kubernetes-sessions-per-second",
            value=ours.running,
            unit="sessions/s",
            reference=running,
            reference_is=f"bare pods until the last runs; {KWOK_SAYS}",
            target="said: how fast the cluster binds and KWOK plays limits it",
            holds=True,
            detail={**detail, "own_cpu_ms_per_session": 1000 * cpu_s / scaled(SESSIONS)},
        ),
    ]


def _spec() -> WorkloadSpec:
    key = WorkloadKey(kernel_id=KernelId(uuid.uuid4()), attempt=1)
    return WorkloadSpec(key=key, session_id=SessionId(uuid.uuid4()), image="image")


async def _our_rates(api: _TimedApi, runtimes: Sequence[KubernetesRuntime]) -> _Rates:
    count = scaled(SESSIONS)

    async def create(number: int) -> None:
        await runtimes[number % len(runtimes)].create(_spec())

    started_at = time.perf_counter()
    await in_turns(create(number) for number in range(count))
    return _Rates(count / (api.created_at - started_at), count / (time.perf_counter() - started_at))


async def _bare_rates(connection: ClusterConnection, api: _TimedApi, nodes: Sequence[str]) -> _Rates:
    """Returns the rates of pods of our form that no runtime of ours waits for."""
    count, running = scaled(BARE_PODS), set[str]()
    is_over = asyncio.Event()
    selector = "=".join(*_BARE.items())

    def on_change(_before: Pod | None, after: Pod | None) -> None:
        if after is not None and after.status.phase == "Running":
            running.add(after.metadata.name)
        if len(running) >= count:
            is_over.set()

    async def post(number: int) -> None:
        manifest = compose_pod(_spec(), connection.settings, connection.facts, nodes[number % len(nodes)])
        metadata = {**manifest["metadata"], "labels": _BARE, "annotations": {}, "finalizers": []}
        await api.create(PODS, {**manifest, "metadata": metadata}, NAMESPACE)

    reflector = Reflector(api, PODS, NAMESPACE, label_selector=selector, on_change=on_change)
    following = asyncio.create_task(reflector.run())
    await reflector.synced.wait()
    started_at = time.perf_counter()
    await in_turns(post(number) for number in range(count))
    await is_over.wait()
    rates = _Rates(count / (api.created_at - started_at), count / (time.perf_counter() - started_at))
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await delete_pods(api, selector)
    return rates
