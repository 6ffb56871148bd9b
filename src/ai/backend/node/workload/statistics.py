"""Measures workloads (peer facts 3.6) from control groups if there are any, else from their processes in /proc.

The network is counted only for a workload that has a network of its own.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ai.backend.common.structs import replace
from ai.backend.node.linux import cgroupfs, proc
from ai.backend.node.linux.cgroups import CgroupDriver, GroupFiles, Usage, read_content
from ai.backend.node.workload.file_trees import tree_size
from ai.backend.plugin.accelerator import Measurement, MetricKind
from ai.backend.plugin.runtime import ProcessView, WorkloadKey

_IO_COUNTERS = re.compile(rb"^read_bytes: (\d+)\nwrite_bytes: (\d+)$", re.MULTILINE)
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_MAX_COMMAND_LENGTH = 256
_MAX_PROCESSES = 1000
"""Limits the cost of listing a session that forks without end."""
HOME_SIZE_DUTY = 0.02
HOME_SIZE_MIN_AGE_S = 10.0
_MAX_ALLOWANCE_S = 0.2
_AVG_MAX_STATISTICS = frozenset({"avg", "max"})
_MAX_STATISTICS = frozenset({"max"})
Pids = Callable[[], Sequence[int]]
"""Returns every process of a workload at present."""


def transferred_bytes(pid: int) -> tuple[int, int] | None:
    """Returns the bytes that the process read from and wrote to disks; None without permission."""
    counters = _IO_COUNTERS.search(read_content(f"/proc/{pid}/io") or b"")
    return (int(counters[1]), int(counters[2])) if counters is not None else None


def process_views(pids: Sequence[int]) -> list[ProcessView]:
    """Returns the running processes among ``pids``, each with its measurements."""
    views = []
    for pid in pids[:_MAX_PROCESSES]:
        fields = proc.stat_fields(pid)
        if fields is None or fields[0] in "ZX":
            continue
        measurements = [
            accumulated("cpu_used", sum(map(int, fields[11:13])) * TICK_MS, "msec"),
            gauge("mem", proc.resident_bytes(pid), "bytes", None),
        ]
        transferred_counts = zip(("io_read", "io_write"), transferred_bytes(pid) or (), strict=False)
        measurements += [accumulated(metric_key, byte_count, "bytes") for metric_key, byte_count in transferred_counts]
        start_tick, shown_pid = int(fields[19]), _pid_in_namespace(pid)
        views.append(
            ProcessView(
                pid=pid, started=start_tick, shown_pid=shown_pid, command=_command_of(pid), measurements=measurements
            )
        )
    return views


def _pid_in_namespace(pid: int) -> int:
    for line in cgroupfs.read(f"/proc/{pid}/status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def _command_of(pid: int) -> str:
    """Returns a process's command line, or its short name. Both are controlled by the user."""
    command_text = cgroupfs.read(f"/proc/{pid}/cmdline")[: 4 * _MAX_COMMAND_LENGTH].replace("\0", " ").strip()
    return (command_text or cgroupfs.read(f"/proc/{pid}/comm").strip())[:_MAX_COMMAND_LENGTH]


class Measurable(Protocol):
    """Describes a workload that can be measured: its key, control groups, home directory and limits.

    Each of the ``cgroups`` has a ``path``.
    """

    @property
    def key(self) -> WorkloadKey: ...
    @property
    def cgroups(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def home(self) -> str: ...
    @property
    def memory_bytes(self) -> int | None: ...
    @property
    def cpu_limit(self) -> float | None: ...
    @property
    def home_bytes(self) -> int | None: ...


@dataclass(slots=True)
class _HomeSize:
    due_at: float
    size_bytes: int


@dataclass(slots=True)
class _WorkloadState:
    """Holds the values of one workload that the next round of measurements needs from the round before.

    ``network`` is a process, with its start time, in the workload's own network; None without one. ``transferred`` is
    the I/O of its processes, if it had to be read from them.
    """

    files: GroupFiles
    network: tuple[int, int] | None
    cpu_measured_at: float = 0.0
    cpu_used_ms: float | None = None
    transferred: tuple[int, int] | None = None


class Meter:
    """Measures the resource usage of workloads, and keeps each workload's last values to compute rates."""

    def __init__(self) -> None:
        self._states: dict[WorkloadKey, _WorkloadState] = {}
        self._homes: dict[WorkloadKey, _HomeSize] = {}
        self._allowance_s = _MAX_ALLOWANCE_S
        self._last_at = 0.0

    def forget(self, key: WorkloadKey) -> None:
        self._states.pop(key, None)
        self._homes.pop(key, None)

    def measure_all(
        self, workloads: Sequence[tuple[WorkloadKey, Measurable, Pids]], cgroups: CgroupDriver, now_s: float
    ) -> Mapping[WorkloadKey, Sequence[Measurement]]:
        """Measures all workloads, and returns the measurements of each.

        Blocks for a few file reads each. ``now_s`` is in seconds of a monotonic clock.
        """
        self._renew_home_sizes([record for _, record, _ in workloads], now_s)
        return {key: self._measure(key, record, pids, cgroups, now_s) for key, record, pids in workloads}

    def home_size(self, record: Measurable, now_s: float) -> int:
        """Returns the bytes in a workload's home, from a stored measurement if that is recent enough.

        Walks of homes are spaced to cost at most a fiftieth of one core.
        """
        stored_size = self._homes.get(record.key)
        if stored_size is not None and now_s < stored_size.due_at:
            return stored_size.size_bytes
        started_at_s = time.perf_counter()
        size_bytes = tree_size(Path(record.home))
        walk_s = time.perf_counter() - started_at_s
        self._allowance_s -= walk_s
        self._homes[record.key] = _HomeSize(now_s + max(HOME_SIZE_MIN_AGE_S, walk_s / HOME_SIZE_DUTY), size_bytes)
        return size_bytes

    def _renew_home_sizes(self, records: Sequence[Measurable], now_s: float) -> None:
        """Measures the sizes of homes that are not measured yet or whose stored sizes are too old, longest due first.

        Stops when all walks together have cost a fiftieth of one core.
        """
        earned_s = max(0.0, now_s - self._last_at) * HOME_SIZE_DUTY
        self._allowance_s, self._last_at = min(_MAX_ALLOWANCE_S, self._allowance_s + earned_s), now_s
        due_at_of_home = {
            record.key: home.due_at if (home := self._homes.get(record.key)) is not None else 0.0 for record in records
        }
        for record in sorted(
            (record for record in records if due_at_of_home[record.key] <= now_s),
            key=lambda record: due_at_of_home[record.key],
        ):
            if self._allowance_s <= 0:
                return
            self.home_size(record, now_s)

    def _measure(
        self, key: WorkloadKey, record: Measurable, pids: Pids, cgroups: CgroupDriver, now_s: float
    ) -> list[Measurement]:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _WorkloadState(GroupFiles(record.cgroups), _own_network(pids()))
        usage = _with_process_values(cgroups.usage(state.files) if record.cgroups else Usage(), state, pids)
        measurements: list[Measurement] = []
        if usage.cpu_used_ms is not None:
            core_limit = record.cpu_limit or float(os.cpu_count() or 1)
            measurements.append(accumulated("cpu_used", usage.cpu_used_ms, "msec"))
            percent = _cpu_percent(state, usage.cpu_used_ms, now_s)
            measurements.append(gauge("cpu_util", percent, "percent", core_limit * 100, _AVG_MAX_STATISTICS))
        if usage.memory is not None:
            measurements.append(gauge("mem", usage.memory, "bytes", record.memory_bytes, _AVG_MAX_STATISTICS))
        byte_count_of_metric = {"io_read": usage.io_read, "io_write": usage.io_write}
        measurements += [
            accumulated(metric_name, byte_count, "bytes")
            for metric_name, byte_count in byte_count_of_metric.items()
            if byte_count is not None
        ]
        if usage.pids is not None:
            measurements.append(gauge("pids", usage.pids, "count", None, _MAX_STATISTICS))
        if state.network is not None:
            measurements += _network_measurements(state, pids)
        if (home := self._homes.get(key)) is not None:
            measurements.append(gauge("io_scratch_size", home.size_bytes, "bytes", record.home_bytes, _MAX_STATISTICS))
        return measurements


def gauge(
    key: str, value: float, unit: str, capacity: float | None, stats: frozenset[str] = frozenset()
) -> Measurement:
    """Returns a measurement whose value is a present amount, such as memory in use."""
    capacity_value = None if capacity is None else float(capacity)
    return Measurement(key=key, value=float(value), unit_hint=unit, capacity=capacity_value, stats=stats)


def accumulated(key: str, value: float, unit: str) -> Measurement:
    """Returns a measurement of a counter since the workload's start."""
    return Measurement(key=key, value=float(value), unit_hint=unit, kind=MetricKind.ACCUMULATED)


def rate(key: str, value: float, unit: str) -> Measurement:
    """Returns a measurement of a counter that users see as growth per second."""
    return Measurement(key=key, value=float(value), unit_hint=unit, kind=MetricKind.RATE)


def _cpu_percent(state: _WorkloadState, cpu_used_ms: float, now_s: float) -> float:
    earlier_used_ms, earlier_at = state.cpu_used_ms, state.cpu_measured_at
    state.cpu_used_ms, state.cpu_measured_at = cpu_used_ms, now_s
    if earlier_used_ms is None or now_s <= earlier_at:
        return 0.0
    return max(0.0, (cpu_used_ms - earlier_used_ms) / (now_s - earlier_at) / 10)


def _own_network(pids: Sequence[int]) -> tuple[int, int] | None:
    """Returns the pid and start time of a process in another network namespace than the agent's; None if none is."""
    own_namespace = Path("/proc/self/ns/net").readlink()
    for pid in pids:
        try:
            process_namespace = Path(f"/proc/{pid}/ns/net").readlink()
        except OSError:
            continue
        start_tick = proc.start_time(pid)
        if process_namespace != own_namespace and start_tick is not None:
            return pid, start_tick
    return None


def _network_measurements(state: _WorkloadState, pids: Pids) -> list[Measurement]:
    pid, start_tick = state.network or (0, 0)
    if not proc.is_same(pid, start_tick):
        state.network = _own_network(pids()) or state.network
        pid, start_tick = state.network or (0, 0)
        if not proc.is_same(pid, start_tick):
            return []
    interface_counters = proc.interface_bytes(f"/proc/{pid}/net/dev").values()
    return [
        rate(metric_key, sum(byte_counts[direction_index] for byte_counts in interface_counters), "bps")
        for direction_index, metric_key in enumerate(("net_rx", "net_tx"))
    ]


def _with_process_values(usage: Usage, state: _WorkloadState, pids: Pids) -> Usage:
    """Returns ``usage`` with its missing values computed from the workload's processes and their ended children."""
    if state.transferred is not None and usage.cpu_used_ms == state.cpu_used_ms:  # without a processor, no I/O
        usage = replace(usage, io_read=state.transferred[0], io_write=state.transferred[1])
    if None not in (usage.cpu_used_ms, usage.memory, usage.pids, usage.io_read, usage.io_write):
        return usage
    cgroup_pids = state.files.read("cgroup.procs")
    member_pids = [int(pid) for pid in cgroup_pids.split()] if cgroup_pids else pids()
    if not member_pids:
        return usage  # it has ended: zeros would hide what it used
    if usage.cpu_used_ms is None:
        fields_of_processes = [fields for pid in member_pids if (fields := proc.stat_fields(pid)) is not None]
        usage = replace(
            usage, cpu_used_ms=sum(sum(map(int, fields[11:15])) for fields in fields_of_processes) * TICK_MS
        )
    if usage.memory is None:
        usage = replace(usage, memory=sum(map(proc.resident_bytes, member_pids)))
    if usage.io_read is None or usage.io_write is None:
        counts_of_processes = [
            byte_counts for pid in member_pids if (byte_counts := transferred_bytes(pid)) is not None
        ]
        if counts_of_processes:
            state.transferred = total_read_bytes, total_written_bytes = (
                sum(read_bytes for read_bytes, _ in counts_of_processes),
                sum(written_bytes for _, written_bytes in counts_of_processes),
            )
            usage = replace(usage, io_read=total_read_bytes, io_write=total_written_bytes)
    return usage if usage.pids is not None else replace(usage, pids=len(member_pids))
