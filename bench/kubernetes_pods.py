"""Measures sessions as pods on a real kubelet and containerd, against bare pods of the same image."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.kube.cluster import ClusterOptions, running_cluster

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.node.kube_api.objects import Pod
from ai.backend.node.kube_api.reflector import Reflector
from ai.backend.node.kube_api.resources import PODS
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.plugin.testing.runtime.suite import Talk
from bench.figures import Figure, benchmark, spread
from tests.kubernetes.runtime.sites import PYTHON_IMAGE, OpenRuntime, Site

ADDED_S, ROUND_TRIP_MS = 0.300, 10.0
_ROUNDS, _RUNS = 10, 200
_PAUSE_S = 1.5
"""Between rounds, so that the kubelet has removed what was there."""


@benchmark("kubernetes-create", "session create -> RUNNING on a real kubelet over a bare pod; a run's round trip there")
def kubernetes_create() -> Sequence[Figure]:
    with tempfile.TemporaryDirectory() as folder, running_cluster(ClusterOptions()) as cluster:
        site = Site(cluster)
        site.prepare(Path(folder))
        bare, ours, trips = asyncio.run(_measure(site, Path(folder)))
    added = statistics.median(ours) - statistics.median(bare)
    trip = statistics.median(trips)
    return [
        Figure(
            name="kubernetes-create",
            value=statistics.median(ours),
            unit="s",
            reference=statistics.median(bare),
            reference_is="a bare pod of the same image, POST -> Running in a watch, in turns on the same kubelet",
            target=f"<= {ADDED_S * 1000:g} ms more",
            holds=added <= ADDED_S,
            detail={**spread(ours), "added_s": added, "least_s": min(ours), "least_bare_s": min(bare)},
        ),
        Figure(
            name="kubernetes-run-round-trip",
            value=trip * 1000,
            unit="ms",
            target=f"<= {ROUND_TRIP_MS:g} ms from the agent to a runner in a pod and back",
            holds=trip * 1000 <= ROUND_TRIP_MS,
            detail=spread([value * 1000 for value in trips]),
        ),
    ]


async def _measure(site: Site, folder: Path) -> tuple[list[float], list[float], list[float]]:
    opened = site.open(folder)
    await opened.runtime.setup()
    bare: list[float] = []
    ours: list[float] = []
    trips: list[float] = []
    try:
        for number in range(_ROUNDS):
            bare.append(await _bare_pod(opened, f"bare-{number}"))
            await asyncio.sleep(_PAUSE_S)
            key = WorkloadKey(kernel_id=KernelId(uuid.uuid4()), attempt=1)
            started_at = time.perf_counter()
            await opened.runtime.create(WorkloadSpec(key=key, session_id=SessionId(uuid.uuid4()), image=PYTHON_IMAGE))
            ours.append(time.perf_counter() - started_at)
            if number == _ROUNDS - 1:
                trips = await _round_trips(opened, key)
            await opened.runtime.remove(key)
            await asyncio.sleep(_PAUSE_S)
    finally:
        await opened.runtime.shutdown()
        await opened.api.close()
    return bare, ours, trips


async def _bare_pod(opened: OpenRuntime, name: str) -> float:
    """Returns the seconds from the request for a pod to its phase Running."""
    running = asyncio.Event()

    def on_change(_before: Pod | None, after: Pod | None) -> None:
        if after is not None and after.metadata.name == name and after.status.phase == "Running":
            running.set()

    reflector = Reflector(opened.api, PODS, "default", on_change=on_change)
    following = asyncio.create_task(reflector.run())
    await reflector.synced.wait()
    container = {"name": "main", "image": PYTHON_IMAGE, "imagePullPolicy": "Never"}
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 0,
        "restartPolicy": "Never",
        "containers": [{**container, "command": ["/usr/bin/sleep", "1000"]}],
    }
    started_at = time.perf_counter()
    await opened.api.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")
    await running.wait()
    elapsed_s = time.perf_counter() - started_at
    await opened.api.delete(PODS, name, "default", grace_s=0)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return elapsed_s


async def _round_trips(opened: OpenRuntime, key: WorkloadKey) -> list[float]:
    """Returns the seconds from each run's request to its end."""
    talk = Talk(await opened.runtime.open_channel(key, epoch=1), 30.0)
    await talk.kind("ready")
    await talk.run("x = 1", "warm")
    trips: list[float] = []
    for number in range(_RUNS):
        started_at = time.perf_counter()
        await talk.run("x += 1", f"r{number}")
        trips.append(time.perf_counter() - started_at)
    await talk.close()
    return trips
