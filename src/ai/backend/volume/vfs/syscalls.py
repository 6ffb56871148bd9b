"""System calls that Python's ``os`` lacks: openat2, renameat2, getdents64, syncfs, sync_file_range (man 2 of each)."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from functools import cache

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_BENEATH = 0x08
_SYS_OPENAT2 = 437  # the same on every architecture
_RENAME_NOREPLACE = 1
_SYNC_FILE_RANGE_WRITE = 2
_ATTEMPTS = 64
_libc = ctypes.CDLL(None, use_errno=True)
_DIRENT = struct.Struct("=QqHB")


def _check(result: int, path: bytes | str | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return result


def openat2(directory: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open beneath ``directory``; the descriptor is not inherited.

    Raises:
        OSError: EXDEV: the path leads out of the directory; EAGAIN: it does not hold still.
    """
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
    for attempt in range(_ATTEMPTS):
        try:
            return _check(_libc.syscall(_SYS_OPENAT2, directory, path, how, len(how)), path)
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.EINTR) or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


@cache
def has_openat2() -> bool:
    """Tried once: a kernel before 5.6 lacks it, and a seccomp filter may forbid it."""
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        os.close(openat2(root, b".", os.O_PATH | os.O_DIRECTORY))
    except OSError:
        return False
    finally:
        os.close(root)
    return True


def rename_noreplace(source_dir: int, source: str, target_dir: int, target: str) -> None:
    """Rename unless the target exists. Where the file system cannot do that at once, look first and rename then.

    Raises:
        FileExistsError: it exists.
        OSError: EINVAL: a directory into itself.
    """
    names = os.fsencode(source), os.fsencode(target)
    try:
        _check(_libc.renameat2(source_dir, names[0], target_dir, names[1], _RENAME_NOREPLACE), source)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
    else:
        return
    try:
        os.lstat(target, dir_fd=target_dir)
    except FileNotFoundError:
        os.rename(source, target, src_dir_fd=source_dir, dst_dir_fd=target_dir)
        return
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)


def syncfs(fd: int) -> None:
    """Write out the file system that the descriptor is on."""
    _check(_libc.syncfs(fd))


def start_writeback(fd: int, offset: int, count: int) -> None:
    """Let the disk begin to write a part of a file, and do not wait. A hint, which is not taken everywhere."""
    _libc.sync_file_range(fd, ctypes.c_int64(offset), ctypes.c_int64(count), _SYNC_FILE_RANGE_WRITE)


def read_directory(fd: int, cursor: int, limit: int) -> tuple[list[str], int | None]:
    """Names from a position on, and the position after them; None: that was all.

    Positions are the file system's own (telldir(3)), so they stay right while others add and remove entries.
    """
    buffer = ctypes.create_string_buffer(1 << 15)
    names: list[str] = []
    os.lseek(fd, cursor, os.SEEK_SET)
    while count := _check(_libc.getdents64(fd, buffer, len(buffer))):
        data, at = buffer.raw[:count], 0
        while at < count:
            _, after, length, _ = _DIRENT.unpack_from(data, at)
            name = data[at + _DIRENT.size : data.index(b"\0", at + _DIRENT.size)]
            at += length
            if name not in (b".", b".."):
                if len(names) == limit:
                    return names, cursor
                names.append(os.fsdecode(name))
            cursor = after
    return names, None


def unlock(directory: int | None, name: str) -> None:
    """Let ourselves into a directory of ours, whatever its mode."""
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    try:
        if os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IRWXU)  # noqa: PTH101  # a descriptor, not a path
    finally:
        os.close(fd)
