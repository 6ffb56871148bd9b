"""Reads the table of mounts (proc(5)), free space, and files that are unlinked but open."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

_ESCAPED_CHARACTER = re.compile(r"\\([0-7]{3})")
RESERVE_DIVISOR = 20  # a twentieth of a small file system is enough of a reserve
ENTRY_LIMIT = 1_000_000


class MountEntry(msgspec.Struct, frozen=True):
    """Describes a mounted file system, as one entry of the table of mounts.

    ``options`` are those of the mount itself, ``super_options`` those of its file system.
    """

    mount_point: str
    source: str
    fstype: str
    options: tuple[str, ...]
    super_options: tuple[str, ...]


def read_mounts(proc: Path = Path("/proc")) -> list[MountEntry]:
    """Returns every mount, in the order of mounting. Raises OSError."""
    return parse_mountinfo((proc / "self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))


def parse_mountinfo(text: str) -> list[MountEntry]:
    """Parses the text of /proc/PID/mountinfo; a malformed line is left out."""
    mounts: list[MountEntry] = []
    for line in text.split("\n"):  # names may hold other line breaks
        mount_text, _, file_system_text = line.partition(" - ")
        mount_fields, file_system_fields = mount_text.split(" "), file_system_text.split(" ")
        if len(mount_fields) < 6 or len(file_system_fields) < 3:
            continue
        mounts.append(
            MountEntry(
                mount_point=_unescape_octal(mount_fields[4]),
                source=_unescape_octal(file_system_fields[1]),
                fstype=file_system_fields[0],
                options=tuple(mount_fields[5].split(",")),
                super_options=tuple(file_system_fields[2].split(",")),
            )
        )
    return mounts


def _unescape_octal(text: str) -> str:
    return _ESCAPED_CHARACTER.sub(lambda match: chr(int(match[1], 8)), text)


def needed_bytes(path: Path, reserve_bytes: int) -> int:
    """Returns how many bytes must be kept free on the file system of ``path``.

    This is the reserve, or a twentieth of the file system's size if that is less.
    """
    file_system_status = os.statvfs(path)
    return min(reserve_bytes, file_system_status.f_blocks * file_system_status.f_frsize // RESERVE_DIVISOR)


def is_low(path: Path, reserve_bytes: int) -> bool:
    """Returns True if the file system of ``path`` has less free space than must be kept free.

    Returns False if the file system cannot be examined.
    """
    try:
        file_system_status = os.statvfs(path)
        return file_system_status.f_bavail * file_system_status.f_frsize < needed_bytes(path, reserve_bytes)
    except OSError:
        return False


def recent_files(directory: Path, device: int, since: float) -> dict[int, int]:
    """Returns the bytes of files on a device that were changed since a time (ctime), by inode; follows no links."""
    bytes_by_inode: dict[int, int] = {}
    pending_directories = [str(directory)]
    entry_limit = ENTRY_LIMIT
    while pending_directories and entry_limit > 0:
        try:
            with os.scandir(pending_directories.pop()) as entries:
                for entry in entries:
                    entry_limit -= 1
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        pending_directories.append(entry.path)
                    elif status.st_dev == device and status.st_ctime >= since:
                        bytes_by_inode[status.st_ino] = status.st_blocks * 512
        except OSError:
            continue
    return bytes_by_inode


def open_inodes(pids: Iterable[int], device: int) -> set[int]:
    """Returns the inodes of a device that processes have open for writing."""
    inodes: set[int] = set()
    for pid in pids:
        try:
            fd_names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208  # thousands of names: a Path for each would be slow
        except OSError:
            continue
        for fd_name in fd_names:
            fd_path = f"/proc/{pid}/fd/{fd_name}"
            try:
                if os.lstat(fd_path).st_mode & stat.S_IWUSR and (file_status := os.stat(fd_path)).st_dev == device:  # noqa: PTH116  # a Path for each would be slow
                    inodes.add(file_status.st_ino)
            except OSError:
                continue
    return inodes


def unlinked_bytes(pids: Iterable[int], home: Path) -> int:
    """Returns the bytes below ``home`` in unlinked files that processes hold open."""
    try:
        home_device_number = home.stat().st_dev
    except OSError:
        return 0
    size_of_inode: dict[int, int] = {}
    for pid in pids:
        fd_directory = f"/proc/{pid}/fd"
        try:
            fd_names = os.listdir(fd_directory)  # noqa: PTH208  # thousands of names: a Path for each would be slow
        except OSError:
            continue
        for fd_name in fd_names:
            try:
                file_status = os.stat(f"{fd_directory}/{fd_name}")  # noqa: PTH116  # a Path for each would be slow
            except OSError:
                continue
            if (
                stat.S_ISREG(file_status.st_mode)
                and file_status.st_nlink == 0
                and file_status.st_dev == home_device_number
            ):
                size_of_inode[file_status.st_ino] = file_status.st_blocks * 512
    return sum(size_of_inode.values())
