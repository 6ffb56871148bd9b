"""Provides the system calls that the standard library of Python 3.11 lacks (man 2 of each)."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
from functools import cache

_LIBC = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWNET = 0x4000_0000
NS_GET_USERNS = 0xB701
MNT_DETACH = 2
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_BENEATH = 0x08
_SYS_OPENAT2 = 437  # the same on every architecture
_SYS_MOUNT_SETATTR = 442  # likewise
_AT_RECURSIVE = 0x8000
_RENAME_NOREPLACE = 1
_SYNC_FILE_RANGE_WRITE = 2
_OPEN_ATTEMPTS = 64
_DIRECTORY_ENTRY = struct.Struct("=QqHB")


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _raise_if_failed(result: int, call_text: str) -> None:
    if result != 0:
        error_number = ctypes.get_errno()
        raise OSError(error_number, f"{call_text}: {os.strerror(error_number)}")


def _checked_result(result: int, path: bytes | str | None = None) -> int:
    if result < 0:
        error_number = ctypes.get_errno()
        raise OSError(error_number, os.strerror(error_number), path)
    return result


def prctl(option: int, value: int) -> None:
    """Calls prctl(2). Raises OSError."""
    unused_argument = ctypes.c_ulong(0)
    _raise_if_failed(
        _LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(value), unused_argument, unused_argument, unused_argument),
        f"prctl({option})",
    )


def die_with_parent() -> None:
    """Lets the kernel kill this process when the parent ends. A change of credentials resets this."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def become_subreaper() -> None:
    """Makes this process the parent of orphaned descendants."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def install_seccomp(program: bytes) -> None:
    """Installs a BPF program (8 bytes an instruction) on this thread. Needs no_new_privs or CAP_SYS_ADMIN."""
    filter_program = _SockFprog(len(program) // 8, program)
    unused_argument = ctypes.c_ulong(0)
    filter_mode = ctypes.c_ulong(SECCOMP_MODE_FILTER)
    _raise_if_failed(
        _LIBC.prctl(
            ctypes.c_int(PR_SET_SECCOMP), filter_mode, ctypes.byref(filter_program), unused_argument, unused_argument
        ),
        "seccomp",
    )


def unshare_mounts() -> None:
    """Enters a new mount namespace, from which nothing propagates back."""
    _raise_if_failed(_LIBC.unshare(ctypes.c_int(CLONE_NEWNS)), "unshare(CLONE_NEWNS)")
    mount("none", "/", "", MS_REC | MS_PRIVATE)


def unshare_network() -> None:
    """Enters a new network namespace, whose loopback is down."""
    _raise_if_failed(_LIBC.unshare(ctypes.c_int(CLONE_NEWNET)), "unshare(CLONE_NEWNET)")


def unshare_to_user_namespace() -> None:
    """Moves this process into a new user namespace, in which no user id is mapped yet. Raises OSError."""
    _raise_if_failed(_LIBC.unshare(ctypes.c_int(CLONE_NEWUSER)), "unshare(CLONE_NEWUSER)")


def unshare_user() -> None:
    """Moves this process into a new user namespace, in which its user id stays the same and has root's powers.

    The powers last until exec. Raises OSError.
    """
    uid, gid = os.geteuid(), os.getegid()
    unshare_to_user_namespace()
    for map_file_name, map_text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        fd = os.open(f"/proc/self/{map_file_name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, map_text.encode())
        finally:
            os.close(fd)


def enter_namespace(fd: int, namespace_type: int) -> None:
    """Moves this thread into an existing namespace. Raises OSError.

    Only a process of one thread can enter a user namespace.
    """
    _raise_if_failed(_LIBC.setns(ctypes.c_int(fd), ctypes.c_int(namespace_type)), "setns")


def mount(source: str, target: str, fstype: str, flags: int, data: str = "") -> None:
    """Mounts ``source`` at ``target``. Raises OSError."""
    result = _LIBC.mount(
        os.fsencode(source), os.fsencode(target), fstype.encode(), ctypes.c_ulong(flags), data.encode() or None
    )
    _raise_if_failed(result, f"mount {source} on {target}")


def restrict_mounts(target: str, flags: int) -> None:
    """Adds the flags MS_RDONLY, MS_NOSUID or MS_NODEV to the mount at ``target`` and to all mounts below the target.

    Raises OSError, ENOSYS before Linux 5.12.
    """
    mount_attributes = struct.pack("=QQQQ", flags, 0, 0, 0)  # the attributes have the same bits
    _checked_result(
        _LIBC.syscall(
            _SYS_MOUNT_SETATTR, -1, os.fsencode(target), _AT_RECURSIVE, mount_attributes, len(mount_attributes)
        ),
        target,
    )


def unmount(target: str) -> None:
    """Detaches a mount at once, even if it is in use. Raises OSError."""
    _raise_if_failed(_LIBC.umount2(os.fsencode(target), ctypes.c_int(MNT_DETACH)), f"umount {target}")


def openat2(directory_fd: int, path: bytes, flags: int, creation_mode: int = 0) -> int:
    """Opens a path beneath a directory by openat2(2), without inheritance by child processes.

    Raises OSError: EXDEV: it leads out; EAGAIN: it does not hold still.
    """
    open_how = struct.pack("=QQQ", flags | os.O_CLOEXEC, creation_mode, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
    for attempt in range(_OPEN_ATTEMPTS):
        try:
            return _checked_result(_LIBC.syscall(_SYS_OPENAT2, directory_fd, path, open_how, len(open_how)), path)
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.EINTR) or attempt == _OPEN_ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


@cache
def has_openat2() -> bool:
    """Returns True if openat2 works: a kernel before 5.6 lacks the call, and a seccomp filter may forbid it."""
    root_fd = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        os.close(openat2(root_fd, b".", os.O_PATH | os.O_DIRECTORY))
    except OSError:
        return False
    finally:
        os.close(root_fd)
    return True


def rename_noreplace(source_dir_fd: int, source: str, target_dir_fd: int, target: str) -> None:
    """Renames a file; if the target exists, raises FileExistsError instead. Raises OSError.

    If the kernel or the file system cannot do this in one step, the target is looked up before the file is renamed.
    """
    name_bytes = os.fsencode(source), os.fsencode(target)
    try:
        _checked_result(
            _LIBC.renameat2(source_dir_fd, name_bytes[0], target_dir_fd, name_bytes[1], _RENAME_NOREPLACE), source
        )
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
    else:
        return
    try:
        os.lstat(target, dir_fd=target_dir_fd)
    except FileNotFoundError:
        os.rename(source, target, src_dir_fd=source_dir_fd, dst_dir_fd=target_dir_fd)
        return
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)


def syncfs(fd: int) -> None:
    """Writes a descriptor's file system out to the disk."""
    _checked_result(_LIBC.syncfs(fd))


def start_writeback(fd: int, offset: int, byte_count: int) -> None:
    """Starts to write a part of a file to the disk without waiting; a hint that some file systems ignore."""
    _LIBC.sync_file_range(fd, ctypes.c_int64(offset), ctypes.c_int64(byte_count), _SYNC_FILE_RANGE_WRITE)


def read_directory(fd: int, cursor: int, max_names: int) -> tuple[list[str], int | None]:
    """Returns the next names in a directory from the position ``cursor`` on, and the next position.

    Returns at most ``max_names`` names. The next position is None at the end; see telldir(3).
    """
    buffer = ctypes.create_string_buffer(1 << 15)
    names: list[str] = []
    os.lseek(fd, cursor, os.SEEK_SET)
    while byte_count := _checked_result(_LIBC.getdents64(fd, buffer, len(buffer))):
        entries_bytes, entry_offset = buffer.raw[:byte_count], 0
        while entry_offset < byte_count:
            _, next_cursor, entry_length, _ = _DIRECTORY_ENTRY.unpack_from(entries_bytes, entry_offset)
            name = entries_bytes[
                entry_offset + _DIRECTORY_ENTRY.size : entries_bytes.index(b"\0", entry_offset + _DIRECTORY_ENTRY.size)
            ]
            entry_offset += entry_length
            if name not in (b".", b".."):
                if len(names) == max_names:
                    return names, cursor
                names.append(os.fsdecode(name))
            cursor = next_cursor
    return names, None


def unlock(directory_fd: int | None, name: str) -> None:
    """Adds the owner's read, write and search permissions to a directory that belongs to the user of this process.

    If the owner lacks a permission, the mode becomes 0700.
    """
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory_fd)
    try:
        if os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IRWXU)  # noqa: PTH101  # a descriptor, not a path
    finally:
        os.close(fd)
