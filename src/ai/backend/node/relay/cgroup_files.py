"""Reads from inside a session's container how much it uses: its own control groups (version 1 or 2) and network."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

ROOT = "/sys/fs/cgroup"
_MAX_PIDS = 4096


def measure(root: str = ROOT, proc: str = "/proc") -> Dict[str, Any]:
    """Returns ``cpu_ms``, ``mem``, ``io_read``, ``io_write``, ``net_rx``, ``net_tx`` and ``pids`` as this container
    numbers them. What cannot be read is None."""
    is_v2 = os.path.exists(os.path.join(root, "cgroup.controllers"))
    values = _measure_v2(root) if is_v2 else _measure_v1(root)
    received, sent = _network(proc)
    return dict(values, net_rx=received, net_tx=sent, pids=_pids(proc))


def oom_kills(root: str = ROOT) -> int:
    """Returns how often the memory limit has ended a process of this container; 0 where the kernel does not count."""
    for path in ("memory.events", "memory/memory.oom_control"):
        count = _field(os.path.join(root, path), "oom_kill")
        if count is not None:
            return count
    return 0


def _measure_v2(root: str) -> Dict[str, Any]:
    cpu_us = _field(os.path.join(root, "cpu.stat"), "usage_usec")
    used, inactive = (
        _number(os.path.join(root, "memory.current")),
        _field(os.path.join(root, "memory.stat"), "inactive_file"),
    )
    read = written = None
    text = _read(os.path.join(root, "io.stat"))
    if text is not None:
        pairs = [word.partition("=") for word in text.split()]
        read = sum(int(value) for name, _, value in pairs if name == "rbytes")
        written = sum(int(value) for name, _, value in pairs if name == "wbytes")
    return {
        "cpu_ms": None if cpu_us is None else cpu_us / 1e3,
        "mem": None if used is None else max(0, used - (inactive or 0)),
        "io_read": read,
        "io_write": written,
    }


def _measure_v1(root: str) -> Dict[str, Any]:
    cpu_ns = None
    for folder in ("cpuacct", "cpu,cpuacct", "cpu"):
        cpu_ns = _number(os.path.join(root, folder, "cpuacct.usage")) if cpu_ns is None else cpu_ns
    memory = os.path.join(root, "memory")
    used = _number(os.path.join(memory, "memory.usage_in_bytes"))
    inactive = _field(os.path.join(memory, "memory.stat"), "total_inactive_file")
    read = written = None
    text = _read(os.path.join(root, "blkio", "blkio.throttle.io_service_bytes_recursive"))
    if text is not None:
        rows = [line.split() for line in text.splitlines()]
        read = sum(int(row[2]) for row in rows if len(row) == 3 and row[1] == "Read")
        written = sum(int(row[2]) for row in rows if len(row) == 3 and row[1] == "Write")
    return {
        "cpu_ms": None if cpu_ns is None else cpu_ns / 1e6,
        "mem": None if used is None else max(0, used - (inactive or 0)),
        "io_read": read,
        "io_write": written,
    }


def _network(proc: str) -> "tuple[Optional[int], Optional[int]]":
    text = _read(os.path.join(proc, "net/dev"))
    if text is None:
        return None, None
    received = sent = 0
    for line in text.splitlines()[2:]:
        name, _, counters = line.partition(":")
        fields = counters.split()
        if name.strip() != "lo" and len(fields) >= 9:
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def _pids(proc: str) -> "list[int]":
    return sorted(int(name) for name in os.listdir(proc) if name.isdigit())[:_MAX_PIDS]


def _read(path: str) -> "Optional[str]":
    try:
        with open(path, errors="replace") as file:
            return file.read(65536)
    except OSError:
        return None


def _number(path: str) -> "Optional[int]":
    text = _read(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _field(path: str, name: str) -> "Optional[int]":
    for line in (_read(path) or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None
