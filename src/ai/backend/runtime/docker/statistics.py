"""Measures containers from control groups, or from the engine's API where the settings say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ai.backend.node.linux import cgroupfs
from ai.backend.node.linux.cgroups import CgroupDriver, CgroupV1, CgroupV2
from ai.backend.node.workload.statistics import accumulated, gauge, rate
from ai.backend.plugin.accelerator import Measurement
from ai.backend.runtime.docker.records import DockerRecord

_V1_CONTROLLERS = ("cpuacct", "memory", "pids", "blkio")


def cgroup_driver_of(cgroup_version: int, cgroup_root: Path) -> CgroupDriver:
    """Returns a driver that reads the files of the engine's control groups, and creates no group."""
    return CgroupV2(base=cgroup_root, controllers=frozenset()) if cgroup_version == 2 else CgroupV1(bases={})


def cgroups_of(first_pid: int, cgroup_root: Path, container_id: str) -> tuple[Mapping[str, Any], ...]:
    """Returns the control groups of the container whose first process is ``first_pid``; none on another machine."""
    groups: list[Mapping[str, Any]] = []
    for line in cgroupfs.read(f"/proc/{first_pid}/cgroup").splitlines():
        _, controllers, group_path = line.split(":", 2)
        if container_id not in group_path:
            continue
        if not controllers:
            groups.append({"path": f"{cgroup_root}{group_path}"})
        groups += [
            {"path": f"{cgroup_root}/{controller}{group_path}"}
            for controller in _V1_CONTROLLERS
            if controller in controllers.split(",")
        ]
    return tuple(groups)


_MAX_STATS = frozenset({"max"})


def pids_of(record: DockerRecord) -> tuple[int, ...]:
    """Returns the pid of every process in the container's control groups."""
    return tuple(cgroupfs.members([dict(group) for group in record.cgroups]))


def measurements_from_api(stats: Mapping[str, Any], record: DockerRecord) -> Sequence[Measurement]:
    """Returns the measurements in one answer of ``GET /containers/{id}/stats``."""
    measurements: list[Measurement] = []
    cpu_stats, memory_stats = stats.get("cpu_stats") or {}, stats.get("memory_stats") or {}
    cpu_usage_ns = (cpu_stats.get("cpu_usage") or {}).get("total_usage")
    if cpu_usage_ns is not None:
        measurements.append(accumulated("cpu_used", cpu_usage_ns / 1e6, "msec"))
        measurements.append(_cpu_utilisation(stats, record))
    if memory_stats.get("usage") is not None:
        memory_details = memory_stats.get("stats") or {}
        cache_bytes = memory_details.get("total_inactive_file", memory_details.get("inactive_file", 0))
        measurements.append(
            gauge("mem", max(0, memory_stats["usage"] - cache_bytes), "bytes", record.memory_bytes, _MAX_STATS)
        )
    disk_transfers = (stats.get("blkio_stats") or {}).get("io_service_bytes_recursive") or ()
    for metric, operation in (("io_read", "read"), ("io_write", "write")):
        transferred_bytes = [
            transfer["value"] for transfer in disk_transfers if str(transfer.get("op", "")).lower() == operation
        ]
        if transferred_bytes:
            measurements.append(accumulated(metric, sum(transferred_bytes), "bytes"))
    network_stats = stats.get("networks") or {}
    for metric, stats_field in (("net_rx", "rx_bytes"), ("net_tx", "tx_bytes")):
        if network_stats:
            measurements.append(
                rate(metric, sum(transfer.get(stats_field, 0) for transfer in network_stats.values()), "bps")
            )
    process_count = (stats.get("pids_stats") or {}).get("current")
    return [*measurements, *([gauge("pids", process_count, "count", None)] if process_count is not None else [])]


def _cpu_utilisation(stats: Mapping[str, Any], record: DockerRecord) -> Measurement:
    """Returns the CPU use between the engine's two samples, as a percentage of one core."""
    cpu_stats, previous_stats = stats["cpu_stats"], stats.get("precpu_stats") or {}
    used_ns = cpu_stats["cpu_usage"]["total_usage"] - (previous_stats.get("cpu_usage") or {}).get("total_usage", 0)
    system_ns = cpu_stats.get("system_cpu_usage", 0) - previous_stats.get("system_cpu_usage", 0)
    core_count = cpu_stats.get("online_cpus") or 1
    percent = (
        100.0 * core_count * used_ns / system_ns if system_ns > 0 and previous_stats.get("system_cpu_usage") else 0.0
    )
    return gauge("cpu_util", max(0.0, percent), "percent", (record.cpu_limit or float(core_count)) * 100)
