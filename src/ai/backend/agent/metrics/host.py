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
        for name, mount_point in self._file_systems().items():
            try:
                disk_status = os.statvfs(mount_point)
            except OSError:
                continue
            yield Measurement(
                key="disk",
                value=float((disk_status.f_blocks - disk_status.f_bfree) * disk_status.f_frsize),
                capacity=float(disk_status.f_blocks * disk_status.f_frsize),
                unit_hint="bytes",
                stats=frozenset({"max"}),
                device_id=DeviceId(name),
            )

    def _file_systems(self) -> dict[str, str]:
        """Maps the names of file systems to mount points. A file system that is mounted several times is named once."""
        mount_point_of_name: dict[str, str] = {}
        seen_devices: set[int] = set()
        mounts: list[MountEntry] = []
        with suppress(OSError):
            mounts = read_mounts(self._proc)
        local_mounts = [
            (mount.source.removeprefix("/dev/"), mount.mount_point)
            for mount in mounts
            if mount.source.startswith("/dev/")
        ]
        for name, mount_point in [*local_mounts, ("data", str(self._data_dir))]:
            try:
                device_number = Path(mount_point).stat().st_dev
            except OSError:
                continue
            if device_number not in seen_devices and Path(mount_point).is_dir():
                seen_devices.add(device_number)
                mount_point_of_name.setdefault(name, mount_point)
        return mount_point_of_name

    def _networks(self) -> Iterator[Measurement]:
        """Yields the traffic of the network cards, or of all interfaces on a host without cards. Bridges would count
        the same bytes again.
        """
        bytes_of_interface = proc.interface_bytes(f"{self._proc}/net/dev")
        card_names = {name for name in bytes_of_interface if (self._sys / "class/net" / name / "device").exists()}
        for name in sorted(card_names or bytes_of_interface):
            for key, byte_count in zip(("net_rx", "net_tx"), bytes_of_interface[name], strict=True):
                device_id, metric_kind = DeviceId(name), MetricKind.RATE
                yield Measurement(
                    key=key, value=float(byte_count), unit_hint="bps", kind=metric_kind, device_id=device_id
                )
