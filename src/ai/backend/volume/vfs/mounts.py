"""Finds the mount and the disk of a path, and the disk's statistics (proc(5) mountinfo, the kernel's block/stat)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ai.backend.node.linux.disk_space import read_mounts
from ai.backend.plugin.volume import Mount, VolumeMetric

_SECTOR_BYTES = 512


def mount_of(path: Path) -> Mount | None:
    """Returns the mount in which an existing path lies, or None if it is unknown."""
    real_path = os.path.realpath(path)
    mounts = [
        mount_entry
        for mount_entry in read_mounts()
        if real_path == mount_entry.mount_point or real_path.startswith(mount_entry.mount_point.rstrip("/") + "/")
    ]
    if not mounts:
        return None
    top_mount = max(reversed(mounts), key=lambda mount: len(mount.mount_point))  # the last of equal ones is on top
    return Mount(
        top_mount.mount_point,
        top_mount.source,
        top_mount.fstype,
        tuple(dict.fromkeys([*top_mount.options, *top_mount.super_options])),
    )


def disk_of(path: Path) -> Path | None:
    """Returns the kernel's statistics file for the disk of a path; None if it is on no disk (tmpfs, NFS ...)."""
    device_numbers = [path.stat().st_dev]
    if (mount := mount_of(path)) is not None and mount.source.startswith("/dev/"):
        with suppress(OSError):  # a container shows the mount, and not its device
            device_numbers.append(Path(mount.source).stat().st_rdev)  # btrfs and overlays have numbers of their own
    for device_number in device_numbers:
        statistics_file = Path(f"/sys/dev/block/{os.major(device_number)}:{os.minor(device_number)}/stat")
        if statistics_file.exists():
            return statistics_file
    return None


def disk_metric(disk: Path) -> VolumeMetric:
    """Returns the I/O counters in a disk's statistics file, whose path :func:`disk_of` returns.

    See kernel documentation, block/stat.
    """
    read_count, _, read_sectors, read_ms, write_count, _, write_sectors, write_ms = map(
        int, disk.read_text().split()[:8]
    )
    return VolumeMetric(
        iops_read=read_count,
        iops_write=write_count,
        io_bytes_read=read_sectors * _SECTOR_BYTES,
        io_bytes_write=write_sectors * _SECTOR_BYTES,
        io_usec_read=read_ms * 1000,
        io_usec_write=write_ms * 1000,
    )
