"""A Kubernetes cluster of nodes that KWOK plays, with relays of a swarm, for the benchmarks of a shard.

KWOK proves no kubelet. The sizes of record are those of ``FULL``; ``BENCH_KUBE_SCALE=0.02`` makes a fiftieth of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from tools.kube import kwok
from tools.kube.cluster import Cluster, ClusterOptions, running_cluster

from ai.backend.infra.retry import Backoff
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.configuration import read_kubeconfig
from ai.backend.node.kube_api.objects import Node
from ai.backend.node.kube_api.resources import NODES
from ai.backend.runtime.kubernetes.certificates import make_certificate
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings
from bench.relay_swarm import SwarmSettings
from tests.kubernetes.runtime.sites import free_port

NAMESPACE = "sessions"
IN_FLIGHT = 2000
"""How many sessions are being created at a time: a manager sends all that it has scheduled. Of their requests the
client of the API has 128 under way at most."""
KWOK_SAYS = "the nodes are KWOK's and run nothing, etcd does not sync, all processes share this machine's cores"
_READY_TIMEOUT_S = 900.0
_GRACE = "15m"
"""After how long the cluster gives up a node without a heartbeat. KWOK's come late where all processes share two cores;
what the loss of a node does is measured elsewhere.
"""
ApiT = TypeVar("ApiT", bound=KubeApi)


def scaled(full: int) -> int:
    """Returns a size of record, or the part of it that BENCH_KUBE_SCALE asks for."""
    return max(1, round(full * float(os.environ.get("BENCH_KUBE_SCALE", "1"))))


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running cluster without a real node, and where the swarm dials."""

    cluster: Cluster
    folder: Path
    port: int
    settings: KubernetesRuntimeSettings

    def api(self, kind: type[ApiT]) -> ApiT:
        """Returns a client with all rights, which the caller closes."""
        return kind(read_kubeconfig(self.cluster.kubeconfig), lambda: Backoff(0.1, 2.0, jitter=0.5))


@contextmanager
def running_fleet() -> Iterator[Fleet]:
    """Starts the cluster, with one namespace for sessions and no nodes yet; ends it afterwards."""
    sys.stderr.write(f"KWOK: {KWOK_SAYS}\n")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with (
        tempfile.TemporaryDirectory() as folder,
        running_cluster(
            ClusterOptions(has_node=False, has_kwok=True, controller_manager=(f"--node-monitor-grace-period={_GRACE}",))
        ) as cluster,
    ):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        cluster.wait_for(lambda: bool(cluster.request("GET", account)), "the namespace's account")
        certificate, key = make_certificate(Path(folder) / "relay")
        port = free_port()
        settings = KubernetesRuntimeSettings(
            namespace=NAMESPACE,
            runner_image="runner",
            runner_volume="image",
            relay_listen=f"127.0.0.1:{port}",
            relay_target=f"shard:{port}",
            relay_certificate=certificate,
            relay_key=key,
            network_policy="none",
            taint_key=kwok.NODE_ANNOTATION,
            schedule_timeout_s=_READY_TIMEOUT_S,
        )
        yield Fleet(cluster, Path(folder), port, settings)


@contextmanager
def swarm_of(fleet: Fleet) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the relays of the pods in a process of their own."""
    settings = SwarmSettings(
        kubeconfig=str(fleet.cluster.kubeconfig),
        namespace=NAMESPACE,
        host="127.0.0.1",
        port=fleet.port,
        authority=str(fleet.settings.relay_certificate),
        signing_key=str(fleet.cluster.authority.folder / "tokens.key"),
    )
    path = fleet.folder / "swarm.json"
    path.write_bytes(msgspec.json.encode(settings))
    command = [sys.executable, "-m", "bench.relay_swarm", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError("the swarm of relays did not start")
            yield process
        finally:
            process.kill()


async def in_turns(works: Iterable[Coroutine[Any, Any, None]], limit: int = IN_FLIGHT) -> None:
    """Runs all of these, at most ``limit`` at a time; the first failure ends it."""
    turns = asyncio.Semaphore(limit)

    async def run(work: Coroutine[Any, Any, None]) -> None:
        async with turns:
            await work

    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(run(work))


async def add_nodes(api: KubeApi, count: int) -> list[str]:
    """Makes so many nodes, and returns their names once all are ready."""
    names = [f"kwok-{number}" for number in range(count)]

    async def add(name: str) -> None:
        await api.create(NODES, kwok.node(name))

    await in_turns(add(name) for name in names)
    async with asyncio.timeout(_READY_TIMEOUT_S):
        while True:
            nodes, _ = await api.list(NODES)
            if sum(is_node_ready(node) for node in nodes) >= count:
                return names
            await asyncio.sleep(0.5)


def is_node_ready(node: Node) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)


async def delete_pods(api: KubeApi, selector: str) -> None:
    """Removes the pods that match, and returns once none is left."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    query = {"labelSelector": selector}
    await api.request("DELETE", path, query=query, body={"gracePeriodSeconds": 0}, timeout_s=120)
    async with asyncio.timeout(_READY_TIMEOUT_S):
        while True:
            if not json.loads(await api.request("GET", path, query={**query, "limit": "1"}))["items"]:
                return
            await asyncio.sleep(0.2)
