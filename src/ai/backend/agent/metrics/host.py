"""Measures disks and networks of this host from /proc and /sys."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ai.backend.common.ids import DeviceId
from ai.backend.node.linux.disk_space import read_mounts
from ai.backend.plugin.accelerator import Measurement, MetricKind

_DISK_STATS = frozenset({"max"})


class HostMeter:
    """Measures local file systems, the one of ``data_dir``, and interfaces that carry traffic off the host."""

    def __init__(self, data_dir: Path, *, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._data_dir = data_dir
        self._proc = proc
        self._sys = sys

    def measure(self) -> Sequence[Measurement]:
        return [*self._disks(), *self._networks()]

    def _disks(self) -> Iterator[Measurement]:
        for name, point in self._file_systems().items():
            try:
                of = os.statvfs(point)
            except OSError:
                continue
            yield Measurement(
                key="disk",
                value=float((of.f_blocks - of.f_bfree) * of.f_frsize),
                capacity=float(of.f_blocks * of.f_frsize),
                unit_hint="bytes",
                stats=_DISK_STATS,
                device_id=DeviceId(name),
            )

    def _file_systems(self) -> dict[str, str]:
        """Maps names to mount points, each file system once however often it is mounted."""
        found: dict[str, str] = {}
        seen: set[int] = set()
        try:
            mounts = read_mounts(self._proc)
        except OSError:
            mounts = []
        local = [(m.source.removeprefix("/dev/"), m.mount_point) for m in mounts if m.source.startswith("/dev/")]
        for name, point in [*local, ("data", str(self._data_dir))]:
            try:
                number = Path(point).stat().st_dev
            except OSError:
                continue
            if number not in seen and Path(point).is_dir():
                seen.add(number)
                found.setdefault(name, point)
        return found

    def _networks(self) -> Iterator[Measurement]:
        """Yields the traffic of cards only, where there are any: bridges would count the same bytes again."""
        counted = read_interfaces(self._proc / "net/dev")
        cards = {name for name in counted if (self._sys / "class/net" / name / "device").exists()}
        for name in sorted(cards or counted):
            for key, value in zip(("net_rx", "net_tx"), counted[name], strict=True):
                yield Measurement(
                    key=key,
                    value=float(value),
                    unit_hint="bps",
                    kind=MetricKind.RATE,
                    device_id=DeviceId(name),
                )


def read_interfaces(path: Path) -> dict[str, tuple[int, int]]:
    """Maps interfaces without the loopback to bytes received and sent, from a file such as /proc/net/dev."""
    found: dict[str, tuple[int, int]] = {}
    for line in _lines(path):
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and len(fields) >= 9 and name.strip() != "lo":
            found[name.strip()] = (int(fields[0]), int(fields[8]))
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
