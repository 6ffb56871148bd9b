"""Reads the CPU affinity, NUMA nodes and usage of cores from Linux."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_NODE = re.compile(r"node(\d+)")
_CPU = re.compile(r"cpu(\d+)")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """The times of a core since boot, in seconds."""

    busy: float
    total: float


class CpuHost:
    """Reads below ``sys`` and ``proc``, which a test may replace by recorded trees."""

    def __init__(
        self, sys: Path = Path("/sys"), proc: Path = Path("/proc"), cores: frozenset[int] | None = None
    ) -> None:
        self._sys = sys
        self._proc = proc
        self._cores = cores

    def cores(self) -> list[int]:
        """Returns the cores that this process, and with it every workload, may use."""
        return sorted(os.sched_getaffinity(0) if self._cores is None else self._cores)

    def numa_node(self, core: int) -> int | None:
        """Returns the NUMA node of a core; None where the kernel has no NUMA support."""
        folder = self._sys / f"devices/system/cpu/cpu{core}"
        if not folder.is_dir():
            return None
        return next((int(m[1]) for p in folder.iterdir() if (m := _NODE.fullmatch(p.name))), None)

    def model_name(self) -> str | None:
        try:
            text = (self._proc / "cpuinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        match = re.search(r"^(?:model name|Model|cpu model|Processor)\s*:\s*(.+)$", text, re.MULTILINE)
        return match[1].strip() if match else None

    def times(self) -> dict[int, CpuTimes]:
        """Returns the times of every core; empty if they cannot be read."""
        try:
            text = (self._proc / "stat").read_text(encoding="ascii")
        except OSError:
            return {}
        ticks = os.sysconf("SC_CLK_TCK")
        by_core: dict[int, CpuTimes] = {}
        for line in text.splitlines():
            name, *fields = line.split()
            match = _CPU.fullmatch(name) if name.startswith("cpu") else None
            if match is None or len(fields) < 5:
                continue
            # user nice system idle iowait irq softirq steal; guest time is part of user time
            values = [int(f) / ticks for f in fields[:8]]
            total = sum(values)
            by_core[int(match[1])] = CpuTimes(busy=total - values[3] - values[4], total=total)
        return by_core
