"""Project ids of files and quotas of projects: ioctl_xfs_fsgetxattr(2), quotactl(2).

A directory with the inherit flag gives its project to new entries, and the kernel refuses links and renames into it
from another project. Limits need CAP_SYS_ADMIN.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass

from ai.backend.plugin.volume import FolderUsage
from ai.backend.volume.vfs import trees
from ai.backend.volume.vfs.open_directory import READ_FILE

_FS_IOC_FSGETXATTR = 0x801C581F
_FS_IOC_FSSETXATTR = 0x401C5820
_XATTR = struct.Struct("=IIIII8s")  # struct fsxattr: flags, extsize, nextents, projid, cowextsize, pad
_PROJECT_INHERIT = 0x200
_SYS_QUOTACTL_FD = 443  # Linux 5.14; the same on every architecture
_PROJECT_QUOTA = 2
_GET_QUOTA, _SET_QUOTA = 0x800007, 0x800008
_BLOCK_LIMITS = 1
_BLOCK = 1024
_QUOTA = struct.Struct("=8QI4x")  # struct if_dqblk: hard and soft blocks, bytes, hard and soft inodes, inodes, 2 times
_libc = ctypes.CDLL(None, use_errno=True)


def project_of(fd: int) -> int:
    """Returns the project of a file; 0 for none."""
    return int(_XATTR.unpack(fcntl.ioctl(fd, _FS_IOC_FSGETXATTR, bytes(_XATTR.size)))[3])


def set_project(fd: int, project: int) -> None:
    """Assigns a file or directory to a project; a directory passes it on to new entries."""
    flags, extent_size, extents, _, cow_size, rest = _XATTR.unpack(
        fcntl.ioctl(fd, _FS_IOC_FSGETXATTR, bytes(_XATTR.size))
    )
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        flags |= _PROJECT_INHERIT
    fcntl.ioctl(fd, _FS_IOC_FSSETXATTR, _XATTR.pack(flags, extent_size, extents, project, cow_size, rest))


def adopt(directory: int, project: int) -> None:
    """Assigns everything below a directory, and last itself, to a project. To be repeated after a crash.

    Links are created anew, since they cannot be opened; devices, sockets and FIFOs stay outside. Raises Conflict: a
    directory is too deep, or not readable.
    """
    for parent, name, status in trees.walk(directory):
        with suppress(FileNotFoundError):
            if stat.S_ISLNK(status.st_mode):
                _renew_link(parent, name, status)
            elif stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                fd = os.open(name, READ_FILE | os.O_NOFOLLOW, dir_fd=parent)
                try:
                    set_project(fd, project)
                finally:
                    os.close(fd)
    set_project(directory, project)


def _renew_link(parent: int, name: str, status: os.stat_result) -> None:
    temporary = f".link-{status.st_ino:x}"
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=parent)
    os.symlink(os.readlink(name, dir_fd=parent), temporary, dir_fd=parent)
    os.chown(temporary, status.st_uid, status.st_gid, dir_fd=parent, follow_symlinks=False)
    os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)


@dataclass(frozen=True, slots=True)
class Quotas:
    """Reads and sets the quotas of the file system that ``fd`` is on; the caller keeps ``fd``. ``device`` is its block
    device, for kernels without quotactl_fd."""

    fd: int
    device: str

    def usage(self, project: int) -> FolderUsage:
        """Returns a project's usage. Raises OSError: EPERM without the privilege, ESRCH or ENOSYS without quotas."""
        try:
            fields = _QUOTA.unpack(self._call(_GET_QUOTA, project, bytes(_QUOTA.size)))
        except FileNotFoundError:  # nothing was ever written in it
            return FolderUsage(0, 0)
        return FolderUsage(fields[5], fields[2])

    def limit(self, project: int, limit: int | None) -> None:
        """Sets a limit in bytes, rounded to blocks; None for no limit. Zero bytes become one block."""
        blocks = 0 if limit is None else max(1, limit // _BLOCK)
        self._call(_SET_QUOTA, project, _QUOTA.pack(blocks, 0, 0, 0, 0, 0, 0, 0, _BLOCK_LIMITS))

    def _call(self, command: int, project: int, data: bytes) -> bytes:
        buffer = ctypes.create_string_buffer(data, len(data))
        number = ctypes.c_int(command << 8 | _PROJECT_QUOTA)
        result = _libc.syscall(_SYS_QUOTACTL_FD, self.fd, number, project, buffer)
        if result < 0 and ctypes.get_errno() == errno.ENOSYS:
            result = _libc.quotactl(number, os.fsencode(self.device), project, buffer)
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return buffer.raw
