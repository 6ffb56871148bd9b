"""Measures single processes of a workload from /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ai.backend.node.linux import cgroupfs, proc
from ai.backend.node.linux.cgroups import content
from ai.backend.plugin.accelerator import Measurement, MetricKind
from ai.backend.plugin.runtime import ProcessView

_TRANSFERRED = re.compile(rb"^read_bytes: (\d+)\nwrite_bytes: (\d+)$", re.MULTILINE)
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_COMMAND_LIMIT = 256
_LIMIT = 1000
"""Limits the cost of listing a session that forks without end."""


def transferred_bytes(pid: int) -> tuple[int, int] | None:
    """Return the bytes that the process read from and wrote to disks; None without permission."""
    match = _TRANSFERRED.search(content(f"/proc/{pid}/io") or b"")
    return (int(match[1]), int(match[2])) if match is not None else None


def views(pids: Sequence[int]) -> list[ProcessView]:
    """Return those of the processes that live."""
    result = []
    for pid in pids[:_LIMIT]:
        fields = proc.stat_fields(pid)
        if fields is None or fields[0] in "ZX":
            continue
        measured = [
            _accumulated("cpu_used", sum(map(int, fields[11:13])) * TICK_MS, "msec"),
            Measurement(key="mem", value=float(proc.resident_bytes(pid)), unit_hint="bytes"),
        ]
        transferred = transferred_bytes(pid)
        if transferred is not None:
            measured += [
                _accumulated(key, n, "bytes") for key, n in zip(("io_read", "io_write"), transferred, strict=True)
            ]
        result.append(
            ProcessView(
                pid=pid,
                started=int(fields[19]),
                shown_pid=_shown_pid(pid),
                command=_command(pid),
                measurements=measured,
            )
        )
    return result


def _accumulated(key: str, value: float, unit: str) -> Measurement:
    return Measurement(key=key, value=float(value), unit_hint=unit, kind=MetricKind.ACCUMULATED)


def _shown_pid(pid: int) -> int:
    """Return the number in the innermost namespace; the host's if there is no other."""
    for line in cgroupfs.read(f"/proc/{pid}/status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def _command(pid: int) -> str:
    """Return the command line, or the short name of a process without one. Both are controlled by the user."""
    words = cgroupfs.read(f"/proc/{pid}/cmdline")[: 4 * _COMMAND_LIMIT].replace("\0", " ").strip()
    return (words or cgroupfs.read(f"/proc/{pid}/comm").strip())[:_COMMAND_LIMIT]
