"""Measures gathering, reporting and storing the statistics of five hundred workloads."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.cluster import Cluster, lift_rate_limits, small_image_cluster, temporary_folder
from bench.figures import Figure, benchmark
from bench.sleepers import COUNT, Users, for_all, nothing_left

INTERVAL_S = 5
NEVER_S = 1_000_000
SETTLE_S = 15.0
WINDOW_S = 60.0
LIMIT_PERCENT = 5.0


def cpu_percent(pid: int, window_s: float) -> float:
    """Return how much of one core a process uses, all its threads and none of its children counted."""
    before = _ticks(pid)
    time.sleep(window_s)
    return (_ticks(pid) - before) / os.sysconf("SC_CLK_TCK") / window_s * 100


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _settled_percent(cluster: Cluster, workloads: int) -> float:
    time.sleep(SETTLE_S)
    percent = cpu_percent(cluster.pid, WINDOW_S)
    sys.stderr.write(f"  {workloads} workloads: {percent:.2f} % of one core\n")
    return percent


@benchmark("statistics", f"gathering the statistics of {COUNT} workloads at the default interval")
def statistics() -> Sequence[Figure]:
    """The same cluster with the same sessions, over which it is started without and with statistics."""
    with temporary_folder() as folder, nothing_left(folder):
        with small_image_cluster(folder, BENCH_STATISTICS_S=str(NEVER_S)) as cluster:
            lift_rate_limits(cluster)
            names, _ = for_all(range(COUNT), Users(cluster).start)
            without = _settled_percent(cluster, len(names))
        with small_image_cluster(folder, BENCH_STATISTICS_S=str(INTERVAL_S)) as cluster:
            whole = _settled_percent(cluster, len(names))
            for_all(names, Users(cluster).destroy)
    value = whole - without
    return [
        Figure(
            name="statistics-cpu",
            value=value,
            unit="% of one core",
            reference=without,
            reference_is="the same cluster and sessions without statistics",
            target=f"<= {LIMIT_PERCENT:g} % of one core",
            holds=value <= LIMIT_PERCENT,
            detail={"workloads": float(len(names)), "whole": whole, "interval_s": float(INTERVAL_S)},
        )
    ]
