"""Assigns files to projects of xfs, and sets the projects' quotas: ioctl_xfs_fsgetxattr(2), quotactl(2).

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

import msgspec

from ai.backend.plugin.volume import FolderUsage
from ai.backend.volume.vfs import trees
from ai.backend.volume.vfs.open_directory import READ_FILE_FLAGS, open_fd

_FS_IOC_FSGETXATTR = 0x801C581F
_FS_IOC_FSSETXATTR = 0x401C5820
_XATTR_STRUCT = struct.Struct("=IIIII8s")  # struct fsxattr: flags, extsize, nextents, projid, cowextsize, pad
_PROJECT_INHERIT_FLAG = 0x200
_SYS_QUOTACTL_FD = 443  # Linux 5.14; the same on every architecture
_PROJECT_QUOTA_TYPE = 2
_GET_QUOTA_COMMAND, _SET_QUOTA_COMMAND = 0x800007, 0x800008
_BLOCK_LIMITS_MASK = 1
_BLOCK_BYTES = 1024
_QUOTA_STRUCT = struct.Struct("=8QI4x")  # if_dqblk: hard and soft blocks, bytes, hard and soft inodes, inodes, 2 times
_libc = ctypes.CDLL(None, use_errno=True)


def project_of(fd: int) -> int:
    """Returns the project of a file; 0 for none."""
    return int(_XATTR_STRUCT.unpack(fcntl.ioctl(fd, _FS_IOC_FSGETXATTR, bytes(_XATTR_STRUCT.size)))[3])


def set_project(fd: int, project_id: int) -> None:
    """Assigns a file or directory to a project; a directory passes it on to new entries."""
    flags, extent_size, extents, _, cow_size, padding = _XATTR_STRUCT.unpack(
        fcntl.ioctl(fd, _FS_IOC_FSGETXATTR, bytes(_XATTR_STRUCT.size))
    )
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        flags |= _PROJECT_INHERIT_FLAG
    fcntl.ioctl(fd, _FS_IOC_FSSETXATTR, _XATTR_STRUCT.pack(flags, extent_size, extents, project_id, cow_size, padding))


def adopt(directory_fd: int, project_id: int) -> None:
    """Assigns everything below a directory, and last the directory, to a project. To be repeated after a crash.

    Links are created anew, since they cannot be opened; devices, sockets and FIFOs stay outside. Raises Conflict: a
    directory is too deep, or not readable.
    """
    for parent_fd, name, status in trees.walk(directory_fd):
        with suppress(FileNotFoundError):
            if stat.S_ISLNK(status.st_mode):
                _replace_link(parent_fd, name, status)
            elif stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                with open_fd(name, READ_FILE_FLAGS | os.O_NOFOLLOW, dir_fd=parent_fd) as fd:
                    set_project(fd, project_id)
    set_project(directory_fd, project_id)


def _replace_link(parent_fd: int, name: str, status: os.stat_result) -> None:
    temporary_name = f".link-{status.st_ino:x}"
    with suppress(FileNotFoundError):
        os.unlink(temporary_name, dir_fd=parent_fd)
    os.symlink(os.readlink(name, dir_fd=parent_fd), temporary_name, dir_fd=parent_fd)
    os.chown(temporary_name, status.st_uid, status.st_gid, dir_fd=parent_fd, follow_symlinks=False)
    os.rename(temporary_name, name, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)


class Quotas(msgspec.Struct, frozen=True):
    """Reads and sets the project quotas of the xfs file system on which the descriptor ``fd`` is open.

    The caller keeps ``fd``. ``device`` is its block device, for kernels without quotactl_fd.
    """

    fd: int
    device: str

    def usage(self, project_id: int) -> FolderUsage:
        """Returns a project's usage. Raises OSError: EPERM without the privilege, ESRCH or ENOSYS without quotas."""
        try:
            fields = _QUOTA_STRUCT.unpack(self._call(_GET_QUOTA_COMMAND, project_id, bytes(_QUOTA_STRUCT.size)))
        except FileNotFoundError:  # nothing was ever written in it
            return FolderUsage(0, 0)
        return FolderUsage(fields[5], fields[2])

    def limit(self, project_id: int, limit_bytes: int | None) -> None:
        """Sets a limit in bytes, rounded to blocks; None for no limit. Zero bytes become one block."""
        blocks = 0 if limit_bytes is None else max(1, limit_bytes // _BLOCK_BYTES)
        self._call(_SET_QUOTA_COMMAND, project_id, _QUOTA_STRUCT.pack(blocks, 0, 0, 0, 0, 0, 0, 0, _BLOCK_LIMITS_MASK))

    def _call(self, command: int, project_id: int, data: bytes) -> bytes:
        buffer = ctypes.create_string_buffer(data, len(data))
        command_number = ctypes.c_int(command << 8 | _PROJECT_QUOTA_TYPE)
        result = _libc.syscall(_SYS_QUOTACTL_FD, self.fd, command_number, project_id, buffer)
        if result < 0 and ctypes.get_errno() == errno.ENOSYS:
            result = _libc.quotactl(command_number, os.fsencode(self.device), project_id, buffer)
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return buffer.raw
