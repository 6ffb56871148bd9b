"""Statistics of workloads (peer facts 3.6), from control groups where there are any, else from the process tree."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ai.backend.plugin.accelerator import Measurement, MetricKind
from ai.backend.plugin.runtime import WorkloadKey
from ai.backend.runtime.process.cgroups import CgroupDriver, Usage
from ai.backend.runtime.process.records import Record, WorkloadDirectory
from ai.backend.runtime.process.session_files import tree_size
from ai.backend.runtime.process.supervisor import cgroupfs, proc

_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
HOME_SIZE_DUTY = 0.02
HOME_SIZE_MIN_AGE_S = 10.0


def pids_of(record: Record, directory: WorkloadDirectory) -> tuple[int, ...]:
    """Every process of the workload, without its shim."""
    members = cgroupfs.members([dict(group) for group in record.cgroups])
    if members:
        return tuple(members)
    shim = (directory.identity() or {}).get("shim")
    if not shim or not proc.is_same(shim[0], shim[1]):
        return ()
    return tuple(proc.descendants(shim[0]))


@dataclass(slots=True)
class _Sample:
    at: float
    cpu_used_ms: float


@dataclass(slots=True)
class _HomeSize:
    due: float
    size: int


class Meter:
    """Remembers the last sample of each workload, for rates."""

    def __init__(self) -> None:
        self._samples: dict[WorkloadKey, _Sample] = {}
        self._homes: dict[WorkloadKey, _HomeSize] = {}

    def forget(self, key: WorkloadKey) -> None:
        self._samples.pop(key, None)
        self._homes.pop(key, None)

    def measure_all(
        self, wanted: Sequence[tuple[WorkloadKey, Record, WorkloadDirectory]], cgroups: CgroupDriver, at: float
    ) -> Mapping[WorkloadKey, Sequence[Measurement]]:
        """Blocks for a few file reads a workload."""
        return {key: self._measure(key, record, directory, cgroups, at) for key, record, directory in wanted}

    def home_size(self, record: Record, at: float) -> int:
        """Bytes in the home; walked again only so often that it costs at most a fiftieth of one core."""
        known = self._homes.get(record.key)
        if known is not None and at < known.due:
            return known.size
        started = os.times().elapsed
        size = tree_size(Path(record.home))
        cost = os.times().elapsed - started
        self._homes[record.key] = _HomeSize(at + max(HOME_SIZE_MIN_AGE_S, cost / HOME_SIZE_DUTY), size)
        return size

    def _measure(
        self, key: WorkloadKey, record: Record, directory: WorkloadDirectory, cgroups: CgroupDriver, at: float
    ) -> list[Measurement]:
        usage = cgroups.usage([dict(group) for group in record.cgroups]) if record.cgroups else Usage()
        usage = _complete(usage, record, directory)
        found: list[Measurement] = []
        cpu = usage.cpu_used_ms
        if cpu is not None:
            cores = record.cpu_limit or float(os.cpu_count() or 1)
            found.append(Measurement(key="cpu_used", value=cpu, unit_hint="msec", kind=MetricKind.ACCUMULATED))
            found.append(
                Measurement(
                    key="cpu_util",
                    value=self._utilisation(key, cpu, at),
                    unit_hint="percent",
                    capacity=cores * 100,
                    stats=frozenset({"avg", "max"}),
                )
            )
        if usage.memory is not None:
            limit = None if record.memory_bytes is None else float(record.memory_bytes)
            found.append(
                Measurement(
                    key="mem", value=usage.memory, unit_hint="bytes", capacity=limit, stats=frozenset({"avg", "max"})
                )
            )
        for name, value in (("io_read", usage.io_read), ("io_write", usage.io_write)):
            if value is not None:
                found.append(
                    Measurement(
                        key=name,
                        value=value,
                        unit_hint="bytes",
                        kind=MetricKind.ACCUMULATED,
                        stats=frozenset({"rate"}),
                    )
                )
        if usage.pids is not None:
            found.append(Measurement(key="pids", value=usage.pids, unit_hint="count", stats=frozenset({"max"})))
        scratch = float(self.home_size(record, at))
        capacity = None if record.home_bytes is None else float(record.home_bytes)
        found.append(Measurement(key="io_scratch_size", value=scratch, unit_hint="bytes", capacity=capacity))
        return found

    def _utilisation(self, key: WorkloadKey, cpu_used_ms: float, at: float) -> float:
        """Percent of one core since the last sample."""
        last = self._samples.get(key)
        self._samples[key] = _Sample(at, cpu_used_ms)
        if last is None or at <= last.at:
            return 0.0
        return max(0.0, (cpu_used_ms - last.cpu_used_ms) / (at - last.at) / 10)


def _complete(usage: Usage, record: Record, directory: WorkloadDirectory) -> Usage:
    """Fill what no group counts from the processes that live now."""
    if usage.cpu_used_ms is not None and usage.memory is not None and usage.pids is not None:
        return usage
    cpu, memory, count = 0.0, 0, 0
    read = write = 0
    for pid in pids_of(record, directory):
        fields = proc.stat_fields(pid)
        if fields is None:
            continue
        count += 1
        cpu += sum(map(int, fields[11:15])) * _TICK_MS
        memory += proc.resident_bytes(pid)
        transferred = dict(
            line.split(": ") for line in cgroupfs.read(f"/proc/{pid}/io").splitlines() if line.count(": ") == 1
        )
        read += int(transferred.get("read_bytes", 0))
        write += int(transferred.get("write_bytes", 0))
    return Usage(
        cpu_used_ms=cpu if usage.cpu_used_ms is None else usage.cpu_used_ms,
        memory=memory if usage.memory is None else usage.memory,
        memory_peak=usage.memory_peak,
        io_read=read if usage.io_read is None else usage.io_read,
        io_write=write if usage.io_write is None else usage.io_write,
        pids=count if usage.pids is None else usage.pids,
    )
