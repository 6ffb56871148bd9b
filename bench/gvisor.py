"""Measures what gVisor adds to the start of a session in Docker, and of a bare pod on a real kubelet."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from tools.kube.cluster import Cluster, ClusterOptions, running_cluster

from bench.docker import docker_cluster
from bench.figures import Figure, benchmark, spread
from tests.support.docker_engine import PYTHON_IMAGE
from tests.support.kubernetes import busybox_pod, why_no_gvisor, why_not

RATIO_LIMIT = 2.0
ROUNDS = 11
WARM_UP = 2


@benchmark("gvisor-docker", "Docker session create -> RUNNING in gVisor over the same in runc")
def gvisor_docker() -> Sequence[Figure]:
    if (reason := why_no_gvisor()) is not None:
        raise RuntimeError(f"this benchmark needs gVisor: {reason}")
    with docker_cluster() as (cluster, _):
        api = cluster.user

        def start(runtime_class: str) -> Callable[[], float]:
            def once() -> float:
                started = time.perf_counter()
                name = api.create(image=PYTHON_IMAGE, mem="128m", runtimeClass=runtime_class)
                taken = time.perf_counter() - started
                api.destroy(name)
                return taken

            return once

        return [_ratio("gvisor-docker-session", start("runsc"), start("runc"), "the same session in runc")]


@benchmark("gvisor-pod", "bare pod -> Running in gVisor over the same in runc, on a real kubelet")
def gvisor_pod() -> Sequence[Figure]:
    if (reason := why_not()) is not None:
        raise RuntimeError(f"this benchmark needs a Kubernetes cluster: {reason}")
    with running_cluster(ClusterOptions(has_gvisor=True)) as cluster:
        gvisor, runc = _pod_start(cluster, runtimeClassName="gvisor"), _pod_start(cluster)
        return [_ratio("gvisor-pod", gvisor, runc, "the same pod in runc, both on a real kubelet")]


def _pod_start(cluster: Cluster, **spec: str) -> Callable[[], float]:
    """Return what makes a pod, takes the time until it runs, and removes it."""

    def once() -> float:
        place = "/api/v1/namespaces/default/pods"
        pod = busybox_pod("measured", **spec)
        started = time.perf_counter()
        cluster.request("POST", place, pod)
        cluster.wait_for_phase("measured")
        taken = time.perf_counter() - started
        cluster.kubectl("delete", "pod", "measured", "--wait")
        return taken

    return once


def _ratio(name: str, ours: Callable[[], float], theirs: Callable[[], float], reference_is: str) -> Figure:
    """Measure both in turns, so that a busy machine slows both; the figure is of the medians, in milliseconds."""
    samples: list[float] = []
    floors: list[float] = []
    for number in range(WARM_UP + ROUNDS):
        floor, sample = theirs() * 1000, ours() * 1000
        if number >= WARM_UP:
            samples.append(sample)
            floors.append(floor)
    value, reference = statistics.median(samples), statistics.median(floors)
    return Figure(
        name=name,
        value=value,
        unit="ms",
        reference=reference,
        reference_is=reference_is,
        target=f"<= {RATIO_LIMIT:g} times as long",
        holds=value <= RATIO_LIMIT * reference,
        detail=spread(samples),
    )
