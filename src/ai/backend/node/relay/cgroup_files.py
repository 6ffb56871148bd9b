"""Reads from inside a session's container how much it uses: its own control groups (version 1 or 2) and network."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

ROOT = "/sys/fs/cgroup"
_MAX_PIDS = 4096


def measure(root: str = ROOT, proc: str = "/proc") -> Dict[str, Any]:
    """Returns the present resource usage of this container as a mapping; None for a value that cannot be read.

    The keys are ``cpu_ms``, ``mem``, ``io_read``, ``io_write``, ``net_rx``, ``net_tx`` and ``pids``, the ids of the
    processes as this container numbers them.
    """
    is_v2 = os.path.exists(os.path.join(root, "cgroup.controllers"))
    measurements = _measure_v2(root) if is_v2 else _measure_v1(root)
    received_bytes, sent_bytes = _network_bytes(proc)
    return dict(measurements, net_rx=received_bytes, net_tx=sent_bytes, pids=_list_pids(proc))


def oom_kills(root: str = ROOT) -> int:
    """Returns how often the memory limit has ended a process of this container; 0 where the kernel does not count."""
    for path in ("memory.events", "memory/memory.oom_control"):
        kill_count = _read_field(os.path.join(root, path), "oom_kill")
        if kill_count is not None:
            return kill_count
    return 0


def _measure_v2(root: str) -> Dict[str, Any]:
    cpu_us = _read_field(os.path.join(root, "cpu.stat"), "usage_usec")
    used_bytes, inactive_bytes = (
        _read_number(os.path.join(root, "memory.current")),
        _read_field(os.path.join(root, "memory.stat"), "inactive_file"),
    )
    read_bytes = written_bytes = None
    io_stat_text = _read_text(os.path.join(root, "io.stat"))
    if io_stat_text is not None:
        counters = [counter_text.partition("=") for counter_text in io_stat_text.split()]
        read_bytes = sum(int(value) for name, _, value in counters if name == "rbytes")
        written_bytes = sum(int(value) for name, _, value in counters if name == "wbytes")
    return {
        "cpu_ms": None if cpu_us is None else cpu_us / 1e3,
        "mem": None if used_bytes is None else max(0, used_bytes - (inactive_bytes or 0)),
        "io_read": read_bytes,
        "io_write": written_bytes,
    }


def _measure_v1(root: str) -> Dict[str, Any]:
    cpu_ns = None
    for cpu_folder in ("cpuacct", "cpu,cpuacct", "cpu"):
        cpu_ns = _read_number(os.path.join(root, cpu_folder, "cpuacct.usage")) if cpu_ns is None else cpu_ns
    memory_folder = os.path.join(root, "memory")
    used_bytes = _read_number(os.path.join(memory_folder, "memory.usage_in_bytes"))
    inactive_bytes = _read_field(os.path.join(memory_folder, "memory.stat"), "total_inactive_file")
    read_bytes = written_bytes = None
    io_text = _read_text(os.path.join(root, "blkio", "blkio.throttle.io_service_bytes_recursive"))
    if io_text is not None:
        rows = [line.split() for line in io_text.splitlines()]
        read_bytes = sum(int(row[2]) for row in rows if len(row) == 3 and row[1] == "Read")
        written_bytes = sum(int(row[2]) for row in rows if len(row) == 3 and row[1] == "Write")
    return {
        "cpu_ms": None if cpu_ns is None else cpu_ns / 1e6,
        "mem": None if used_bytes is None else max(0, used_bytes - (inactive_bytes or 0)),
        "io_read": read_bytes,
        "io_write": written_bytes,
    }


def _network_bytes(proc: str) -> "tuple[Optional[int], Optional[int]]":
    interfaces_text = _read_text(os.path.join(proc, "net/dev"))
    if interfaces_text is None:
        return None, None
    received_bytes = sent_bytes = 0
    for line in interfaces_text.splitlines()[2:]:
        interface, _, counters = line.partition(":")
        fields = counters.split()
        if interface.strip() != "lo" and len(fields) >= 9:
            received_bytes, sent_bytes = received_bytes + int(fields[0]), sent_bytes + int(fields[8])
    return received_bytes, sent_bytes


def _list_pids(proc: str) -> "list[int]":
    return sorted(int(name) for name in os.listdir(proc) if name.isdigit())[:_MAX_PIDS]


def _read_text(path: str) -> "Optional[str]":
    try:
        with open(path, errors="replace") as file:
            return file.read(65536)
    except OSError:
        return None


def _read_number(path: str) -> "Optional[int]":
    number_text = _read_text(path)
    try:
        return None if number_text is None else int(number_text)
    except ValueError:
        return None


def _read_field(path: str, name: str) -> "Optional[int]":
    for line in (_read_text(path) or "").splitlines():
        line_words = line.split()
        if len(line_words) == 2 and line_words[0] == name and line_words[1].isdigit():
            return int(line_words[1])
    return None
