"""Statistics of containers: from control groups, or from the engine's API where the settings say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ai.backend.node.linux import cgroupfs
from ai.backend.node.linux.cgroups import CgroupDriver, CgroupV1, CgroupV2
from ai.backend.node.workload.statistics import accumulated, gauge, rate
from ai.backend.plugin.accelerator import Measurement
from ai.backend.runtime.docker.records import DockerRecord

_V1 = ("cpuacct", "memory", "pids", "blkio")


def driver_of(version: int, root: Path) -> CgroupDriver:
    """Returns the driver that reads the files of the engine's control groups; it creates none."""
    return CgroupV2(base=root, controllers=frozenset()) if version == 2 else CgroupV1(bases={})


def groups_of(pid: int, root: Path, container_id: str) -> tuple[Mapping[str, Any], ...]:
    """Returns the container's control groups by the number of its first process; none if that is of another machine."""
    found: list[Mapping[str, Any]] = []
    for line in cgroupfs.read(f"/proc/{pid}/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if container_id not in path:
            continue
        if not names:
            found.append({"path": f"{root}{path}"})
        found += [{"path": f"{root}/{name}{path}"} for name in _V1 if name in names.split(",")]
    return tuple(found)


def pids_of(record: DockerRecord) -> tuple[int, ...]:
    """Returns every process of the container."""
    return tuple(cgroupfs.members([dict(group) for group in record.cgroups]))


def from_api(stats: Mapping[str, Any], record: DockerRecord) -> Sequence[Measurement]:
    """Returns the measurements in one answer of ``GET /containers/{id}/stats``."""
    found: list[Measurement] = []
    cpu, memory = stats.get("cpu_stats") or {}, stats.get("memory_stats") or {}
    usage = (cpu.get("cpu_usage") or {}).get("total_usage")
    if usage is not None:
        found.append(accumulated("cpu_used", usage / 1e6, "msec"))
        found.append(_utilisation(stats, record))
    if memory.get("usage") is not None:
        details = memory.get("stats") or {}
        cache = details.get("total_inactive_file", details.get("inactive_file", 0))
        found.append(gauge("mem", max(0, memory["usage"] - cache), "bytes", record.memory_bytes))
    transferred = (stats.get("blkio_stats") or {}).get("io_service_bytes_recursive") or ()
    for key, operation in (("io_read", "read"), ("io_write", "write")):
        amounts = [entry["value"] for entry in transferred if str(entry.get("op", "")).lower() == operation]
        if amounts:
            found.append(accumulated(key, sum(amounts), "bytes"))
    networks = stats.get("networks") or {}
    for key, field in (("net_rx", "rx_bytes"), ("net_tx", "tx_bytes")):
        if networks:
            found.append(rate(key, sum(entry.get(field, 0) for entry in networks.values()), "bps"))
    current = (stats.get("pids_stats") or {}).get("current")
    return [*found, *([gauge("pids", current, "count", None)] if current is not None else [])]


def _utilisation(stats: Mapping[str, Any], record: DockerRecord) -> Measurement:
    """Returns the percentage of one core between the two samples of the engine."""
    now, before = stats["cpu_stats"], stats.get("precpu_stats") or {}
    used = now["cpu_usage"]["total_usage"] - (before.get("cpu_usage") or {}).get("total_usage", 0)
    system = now.get("system_cpu_usage", 0) - before.get("system_cpu_usage", 0)
    cores = now.get("online_cpus") or 1
    percent = 100.0 * cores * used / system if system > 0 and before.get("system_cpu_usage") else 0.0
    return gauge("cpu_util", max(0.0, percent), "percent", (record.cpu_limit or float(cores)) * 100)
