"""Five hundred sessions on one agent that only sleep: what each costs, and whether anything is left of them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from bench.cluster import Api, Cluster, lift_rate_limits, small_image_cluster
from bench.figures import Figure, benchmark
from bench.processes import belonging_to, proportional_mib, resident_mib, tree

COUNT = 500
WARM_UP = 25
AT_ONCE = 8
GROWTH_LIMIT = 1.10
SLEEP = "import time; time.sleep(3600)"
T = TypeVar("T")


class Users:
    """Creates and destroys sleepers, with one connection per thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._local = threading.local()

    @property
    def _api(self) -> Api:
        if not hasattr(self._local, "api"):
            self._local.api = self._cluster.user
        api: Api = self._local.api
        return api

    def create(self, name: str) -> str:
        return self._api.create(name, cpu="0", mem="32m")

    def start(self, number: int) -> str:
        name = self.create(f"sleeper-{number:04}")
        self._api.call("POST", f"/session/{name}", {"mode": "query", "code": SLEEP})
        return name

    def destroy(self, name: str) -> None:
        self._api.destroy(name)


def for_all(items: Sequence[T], action: Callable[[T], str | None]) -> tuple[list[str], float]:
    """Do something with every item, some at a time; return the results and how many seconds all took."""
    started = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = [result for result in pool.map(action, items) if result is not None]
    return results, time.perf_counter() - started


def left_after(cluster: Cluster, expected: int, *, timeout_s: float = 90.0) -> tuple[int, int]:
    """Wait until what sessions leave is gone; return how many processes and directories remain when time is up."""
    deadline = time.monotonic() + timeout_s
    while True:
        processes = max(0, len(belonging_to(cluster.data_dir)) - expected)
        directories = len(session_directories(cluster.data_dir))
        if (processes == 0 and directories == 0) or time.monotonic() > deadline:
            return processes, directories
        time.sleep(0.5)


@contextmanager
def nothing_left(data_dir: Path) -> Iterator[None]:
    """Kill what a broken run leaves of a cluster's sessions."""
    try:
        yield
    finally:
        for pid in belonging_to(data_dir):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def session_directories(data_dir: Path) -> list[Path]:
    """Return what sessions have below the agents' directories.

    The records of ended kernels are not counted: they are kept for an hour on purpose, so that a late command
    finds out that there is nothing to do.
    """
    folders = ("process/workloads", "process/homes")
    return [path for agent in (data_dir / "agents").iterdir() for name in folders for path in agent.glob(f"{name}/*")]


def daemons_mib(cluster: Cluster) -> float:
    """Return the resident memory of the cluster's own processes once it has settled."""
    time.sleep(10)
    return sum(resident_mib(pid) for pid in tree(cluster.pid))


@benchmark("sleepers", f"{COUNT} sessions on one agent, created and destroyed")
def sleepers() -> Sequence[Figure]:
    with small_image_cluster() as cluster:
        lift_rate_limits(cluster)
        users = Users(cluster)
        for_all(for_all(range(WARM_UP), users.start)[0], users.destroy)
        left_after(cluster, 0, timeout_s=10)
        before = daemons_mib(cluster)
        processes = belonging_to(cluster.data_dir)

        names, creating = for_all(range(COUNT), users.start)
        alive = belonging_to(cluster.data_dir)
        per_session = proportional_mib([pid for pid in alive if pid not in processes]) / COUNT

        _, destroying = for_all(names, users.destroy)
        left_processes, left_directories = left_after(cluster, len(processes))
        after = daemons_mib(cluster)
    leaked = left_processes + left_directories
    return [
        Figure(
            name="sleepers-leaked",
            value=float(leaked),
            unit="processes and directories",
            target="0",
            holds=leaked == 0,
            detail={
                "processes": float(left_processes),
                "directories": float(left_directories),
                "create_s": creating,
                "destroy_s": destroying,
                "mib_per_session": per_session,
            },
        ),
        Figure(
            name="sleepers-memory-after",
            value=after,
            unit="MiB",
            reference=before,
            reference_is=f"the same daemons before, after {WARM_UP} sessions to warm up",
            target=f"<= {GROWTH_LIMIT:g} times the reference",
            holds=after <= GROWTH_LIMIT * before,
        ),
    ]
