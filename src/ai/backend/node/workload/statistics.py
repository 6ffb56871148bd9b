"""Measures workloads (peer facts 3.6) from control groups if there are any, else from their processes in /proc.

The network is counted only for a workload that has a network of its own.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ai.backend.node.linux import cgroupfs, proc
from ai.backend.node.linux.cgroups import CgroupDriver, GroupFiles, Usage, content
from ai.backend.node.workload.file_trees import tree_size
from ai.backend.plugin.accelerator import Measurement, MetricKind
from ai.backend.plugin.runtime import ProcessView, WorkloadKey

_TRANSFERRED = re.compile(rb"^read_bytes: (\d+)\nwrite_bytes: (\d+)$", re.MULTILINE)
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_COMMAND_LIMIT = 256
_LIMIT = 1000
"""Limits the cost of listing a session that forks without end."""
HOME_SIZE_DUTY = 0.02
HOME_SIZE_MIN_AGE_S = 10.0
_MAX_ALLOWANCE_S = 0.2
_AVG_MAX = frozenset({"avg", "max"})
_MAX = frozenset({"max"})
Pids = Callable[[], Sequence[int]]
"""Returns every process of a workload at present."""


def transferred_bytes(pid: int) -> tuple[int, int] | None:
    """Returns the bytes that the process read from and wrote to disks; None without permission."""
    match = _TRANSFERRED.search(content(f"/proc/{pid}/io") or b"")
    return (int(match[1]), int(match[2])) if match is not None else None


def process_views(pids: Sequence[int]) -> list[ProcessView]:
    """Returns the measurements of those processes that live."""
    views = []
    for pid in pids[:_LIMIT]:
        fields = proc.stat_fields(pid)
        if fields is None or fields[0] in "ZX":
            continue
        measured = [
            accumulated("cpu_used", sum(map(int, fields[11:13])) * TICK_MS, "msec"),
            gauge("mem", proc.resident_bytes(pid), "bytes", None),
        ]
        transferred = zip(("io_read", "io_write"), transferred_bytes(pid) or (), strict=False)
        measured += [accumulated(key, n, "bytes") for key, n in transferred]
        started, shown_pid = int(fields[19]), _shown_pid(pid)
        views.append(
            ProcessView(pid=pid, started=started, shown_pid=shown_pid, command=_command(pid), measurements=measured)
        )
    return views


def _shown_pid(pid: int) -> int:
    for line in cgroupfs.read(f"/proc/{pid}/status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def _command(pid: int) -> str:
    """Returns the command line, or the short name of a process without one. Both are controlled by the user."""
    words = cgroupfs.read(f"/proc/{pid}/cmdline")[: 4 * _COMMAND_LIMIT].replace("\0", " ").strip()
    return (words or cgroupfs.read(f"/proc/{pid}/comm").strip())[:_COMMAND_LIMIT]


class Measurable(Protocol):
    """The parameters for measuring a workload; ``cgroups`` have a ``path`` each."""

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
    due: float
    size: int


@dataclass(slots=True)
class _WorkloadState:
    """The state of one workload between two rounds.

    ``network`` is a process, with its start time, in the workload's own network; None without one. ``transferred`` is
    the I/O of its processes, if it had to be read from them.
    """

    files: GroupFiles
    network: tuple[int, int] | None
    cpu_at: float = 0.0
    cpu_used_ms: float | None = None
    transferred: tuple[int, int] | None = None


class Meter:
    """Measures workloads, and stores their last samples for rates."""

    def __init__(self) -> None:
        self._states: dict[WorkloadKey, _WorkloadState] = {}
        self._homes: dict[WorkloadKey, _HomeSize] = {}
        self._allowance_s = _MAX_ALLOWANCE_S
        self._last_at = 0.0

    def forget(self, key: WorkloadKey) -> None:
        self._states.pop(key, None)
        self._homes.pop(key, None)

    def measure_all(
        self, workloads: Sequence[tuple[WorkloadKey, Measurable, Pids]], cgroups: CgroupDriver, at: float
    ) -> Mapping[WorkloadKey, Sequence[Measurement]]:
        """Measures. Blocks for a few file reads a workload. ``at`` is in seconds of a monotonic clock."""
        self._renew_home_sizes([record for _, record, _ in workloads], at)
        return {key: self._measure(key, record, pids, cgroups, at) for key, record, pids in workloads}

    def home_size(self, record: Measurable, at: float) -> int:
        """Returns the bytes in the home. Walks are spaced to cost at most a fiftieth of one core."""
        home = self._homes.get(record.key)
        if home is not None and at < home.due:
            return home.size
        started = time.perf_counter()
        size = tree_size(Path(record.home))
        cost = time.perf_counter() - started
        self._allowance_s -= cost
        self._homes[record.key] = _HomeSize(at + max(HOME_SIZE_MIN_AGE_S, cost / HOME_SIZE_DUTY), size)
        return size

    def _renew_home_sizes(self, records: Sequence[Measurable], at: float) -> None:
        """Walks the homes that are due, the longest waiting first, as long as all walks together cost a fiftieth."""
        earned = max(0.0, at - self._last_at) * HOME_SIZE_DUTY
        self._allowance_s, self._last_at = min(_MAX_ALLOWANCE_S, self._allowance_s + earned), at
        due_at = {r.key: home.due if (home := self._homes.get(r.key)) is not None else 0.0 for r in records}
        for record in sorted((r for r in records if due_at[r.key] <= at), key=lambda r: due_at[r.key]):
            if self._allowance_s <= 0:
                return
            self.home_size(record, at)

    def _measure(
        self, key: WorkloadKey, record: Measurable, pids: Pids, cgroups: CgroupDriver, at: float
    ) -> list[Measurement]:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _WorkloadState(GroupFiles(record.cgroups), _own_network(pids()))
        usage = _complete(cgroups.usage(state.files) if record.cgroups else Usage(), state, pids)
        measurements: list[Measurement] = []
        if usage.cpu_used_ms is not None:
            cores = record.cpu_limit or float(os.cpu_count() or 1)
            measurements.append(accumulated("cpu_used", usage.cpu_used_ms, "msec"))
            percent = _utilisation(state, usage.cpu_used_ms, at)
            measurements.append(gauge("cpu_util", percent, "percent", cores * 100, _AVG_MAX))
        if usage.memory is not None:
            measurements.append(gauge("mem", usage.memory, "bytes", record.memory_bytes, _AVG_MAX))
        transferred = {"io_read": usage.io_read, "io_write": usage.io_write}
        measurements += [accumulated(name, n, "bytes") for name, n in transferred.items() if n is not None]
        if usage.pids is not None:
            measurements.append(gauge("pids", usage.pids, "count", None, _MAX))
        if state.network is not None:
            measurements += _network(state, pids)
        if (home := self._homes.get(key)) is not None:
            measurements.append(gauge("io_scratch_size", home.size, "bytes", record.home_bytes))
        return measurements


def gauge(
    key: str, value: float, unit: str, capacity: float | None, stats: frozenset[str] = frozenset()
) -> Measurement:
    """Returns a measurement of a present value."""
    limit = None if capacity is None else float(capacity)
    return Measurement(key=key, value=float(value), unit_hint=unit, capacity=limit, stats=stats)


def accumulated(key: str, value: float, unit: str) -> Measurement:
    """Returns a measurement of a counter since the workload's start."""
    return Measurement(key=key, value=float(value), unit_hint=unit, kind=MetricKind.ACCUMULATED)


def rate(key: str, value: float, unit: str) -> Measurement:
    """Returns a measurement of a counter whose growth per second matters."""
    return Measurement(key=key, value=float(value), unit_hint=unit, kind=MetricKind.RATE)


def _utilisation(state: _WorkloadState, cpu_used_ms: float, at: float) -> float:
    before, before_at = state.cpu_used_ms, state.cpu_at
    state.cpu_used_ms, state.cpu_at = cpu_used_ms, at
    if before is None or at <= before_at:
        return 0.0
    return max(0.0, (cpu_used_ms - before) / (at - before_at) / 10)


def _own_network(pids: Sequence[int]) -> tuple[int, int] | None:
    """Returns a process, with its start time, that is in another network than we are."""
    ours = Path("/proc/self/ns/net").readlink()
    for pid in pids:
        try:
            theirs = Path(f"/proc/{pid}/ns/net").readlink()
        except OSError:
            continue
        started = proc.start_time(pid)
        if theirs != ours and started is not None:
            return pid, started
    return None


def _network(state: _WorkloadState, pids: Pids) -> list[Measurement]:
    pid, started = state.network or (0, 0)
    if not proc.is_same(pid, started):
        state.network = _own_network(pids()) or state.network
        pid, started = state.network or (0, 0)
        if not proc.is_same(pid, started):
            return []
    counted = proc.interface_bytes(f"/proc/{pid}/net/dev").values()
    return [rate(key, sum(n[i] for n in counted), "bps") for i, key in enumerate(("net_rx", "net_tx"))]


def _complete(usage: Usage, state: _WorkloadState, pids: Pids) -> Usage:
    """Fills in missing values from the present processes, which include the use of their ended children."""
    if state.transferred is not None and usage.cpu_used_ms == state.cpu_used_ms:  # without a processor, no I/O
        usage = replace(usage, io_read=state.transferred[0], io_write=state.transferred[1])
    if None not in (usage.cpu_used_ms, usage.memory, usage.pids, usage.io_read, usage.io_write):
        return usage
    listed = state.files.read("cgroup.procs")
    members = [int(pid) for pid in listed.split()] if listed else pids()
    if not members:
        return usage  # it has ended: zeros would hide what it used
    if usage.cpu_used_ms is None:
        all_fields = [fields for pid in members if (fields := proc.stat_fields(pid)) is not None]
        usage = replace(usage, cpu_used_ms=sum(sum(map(int, fields[11:15])) for fields in all_fields) * TICK_MS)
    if usage.memory is None:
        usage = replace(usage, memory=sum(map(proc.resident_bytes, members)))
    if usage.io_read is None or usage.io_write is None:
        transferred = [count for pid in members if (count := transferred_bytes(pid)) is not None]
        if transferred:
            state.transferred = read, written = sum(r for r, _ in transferred), sum(w for _, w in transferred)
            usage = replace(usage, io_read=read, io_write=written)
    return usage if usage.pids is not None else replace(usage, pids=len(members))
