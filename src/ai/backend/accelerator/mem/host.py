"""Reads the state of main memory from Linux."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_NODE = re.compile(r"node(\d+)")
_LINE = re.compile(r"(?:Node \d+ )?(?P<key>\w+):\s+(?P<kib>\d+) kB")
#: The limit of the container that the agent itself is in, where it is in one.
_LIMITS = ("fs/cgroup/memory.max", "fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The usage of memory in bytes."""

    total: int
    available: int


class MemoryHost:
    """Reads below ``sys`` and ``proc``, which a test may replace by recorded trees."""

    def __init__(self, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._sys = sys
        self._proc = proc

    def use(self) -> MemoryUse:
        """Returns the usage of the node, as far as this process may use it.

        Raises:
            OSError, KeyError: /proc/meminfo cannot be read or is not as expected.
        """
        fields = _fields(self._proc / "meminfo")
        total, available = fields["MemTotal"], fields.get("MemAvailable", fields["MemFree"])
        limit = self._limit()
        return (
            MemoryUse(total, available) if limit is None or limit > total else MemoryUse(limit, min(available, limit))
        )

    def nodes(self) -> dict[int, int]:
        """Maps NUMA nodes to their bytes; empty where the kernel has no NUMA support."""
        base = self._sys / "devices/system/node"
        if not base.is_dir():
            return {}
        sizes: dict[int, int] = {}
        for folder in base.iterdir():
            match = _NODE.fullmatch(folder.name)
            if match is not None and (folder / "meminfo").exists():
                total = _fields(folder / "meminfo").get("MemTotal", 0)
                if total:
                    sizes[int(match[1])] = total
        return dict(sorted(sizes.items()))

    def _limit(self) -> int | None:
        for name in _LIMITS:
            try:
                text = (self._sys / name).read_text(encoding="ascii").strip()
            except OSError:
                continue
            return int(text) if text.isdigit() else None
        return None


def _fields(path: Path) -> dict[str, int]:
    lines = path.read_text(encoding="ascii").splitlines()
    return {m["key"]: int(m["kib"]) * 1024 for line in lines if (m := _LINE.match(line))}
