"""Measures disks and networks of this host from /proc and /sys."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ai.backend.common.ids import DeviceId
from ai.backend.node.linux import proc
from ai.backend.node.linux.disk_space import MountEntry, read_mounts
from ai.backend.plugin.accelerator import Measurement, MetricKind


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
                status = os.statvfs(point)
            except OSError:
                continue
            yield Measurement(
                key="disk",
                value=float((status.f_blocks - status.f_bfree) * status.f_frsize),
                capacity=float(status.f_blocks * status.f_frsize),
                unit_hint="bytes",
                stats=frozenset({"max"}),
                device_id=DeviceId(name),
            )

    def _file_systems(self) -> dict[str, str]:
        """Maps names to mount points, each file system once however often it is mounted."""
        points: dict[str, str] = {}
        seen: set[int] = set()
        mounts: list[MountEntry] = []
        with suppress(OSError):
            mounts = read_mounts(self._proc)
        local = [(m.source.removeprefix("/dev/"), m.mount_point) for m in mounts if m.source.startswith("/dev/")]
        for name, point in [*local, ("data", str(self._data_dir))]:
            try:
                number = Path(point).stat().st_dev
            except OSError:
                continue
            if number not in seen and Path(point).is_dir():
                seen.add(number)
                points.setdefault(name, point)
        return points

    def _networks(self) -> Iterator[Measurement]:
        """Yields the traffic of cards only, where there are any: bridges would count the same bytes again."""
        counted = proc.interface_bytes(f"{self._proc}/net/dev")
        cards = {name for name in counted if (self._sys / "class/net" / name / "device").exists()}
        for name in sorted(cards or counted):
            for key, n in zip(("net_rx", "net_tx"), counted[name], strict=True):
                device_id, kind = DeviceId(name), MetricKind.RATE
                yield Measurement(key=key, value=float(n), unit_hint="bps", kind=kind, device_id=device_id)
