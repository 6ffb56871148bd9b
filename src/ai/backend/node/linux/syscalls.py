"""The system calls that the standard library of Python 3.11 lacks (man 2 of each)."""

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
MS_NOSUID = 2
MS_NODEV = 4
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_BENEATH = 0x08
_SYS_OPENAT2 = 437  # the same on every architecture
_RENAME_NOREPLACE = 1
_SYNC_FILE_RANGE_WRITE = 2
_ATTEMPTS = 64
_DIRENT = struct.Struct("=QqHB")


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _result(result: int, path: bytes | str | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return result


def prctl(option: int, value: int) -> None:
    """Calls prctl(2). Raises OSError."""
    zero = ctypes.c_ulong(0)
    _check(_LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero), f"prctl({option})")


def die_with_parent() -> None:
    """Lets the kernel kill this process when its parent ends. A change of credentials resets it."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def become_subreaper() -> None:
    """Becomes the parent of orphaned descendants."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def install_seccomp(program: bytes) -> None:
    """Installs a BPF program (8 bytes an instruction) on this thread. Needs no_new_privs or CAP_SYS_ADMIN."""
    fprog = _SockFprog(len(program) // 8, program)
    zero = ctypes.c_ulong(0)
    mode = ctypes.c_ulong(SECCOMP_MODE_FILTER)
    _check(_LIBC.prctl(ctypes.c_int(PR_SET_SECCOMP), mode, ctypes.byref(fprog), zero, zero), "seccomp")


def unshare_mounts() -> None:
    """Enters a new mount namespace, from which nothing propagates back."""
    _check(_LIBC.unshare(ctypes.c_int(CLONE_NEWNS)), "unshare(CLONE_NEWNS)")
    mount("none", "/", "", MS_REC | MS_PRIVATE)


def unshare_network() -> None:
    """Enters a new network namespace, whose loopback is down."""
    _check(_LIBC.unshare(ctypes.c_int(CLONE_NEWNET)), "unshare(CLONE_NEWNET)")


def unshare_user() -> None:
    """Enters a user namespace in which a user keeps its identity and has root's powers until exec. Raises OSError."""
    uid, gid = os.geteuid(), os.getegid()
    _check(_LIBC.unshare(ctypes.c_int(CLONE_NEWUSER)), "unshare(CLONE_NEWUSER)")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def enter_namespace(fd: int, kind: int) -> None:
    """Moves this thread into a namespace; into a user namespace only a process of one thread. Raises OSError."""
    _check(_LIBC.setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, fstype: str, flags: int, data: str = "") -> None:
    """Mounts. Raises OSError."""
    result = _LIBC.mount(
        os.fsencode(source), os.fsencode(target), fstype.encode(), ctypes.c_ulong(flags), data.encode() or None
    )
    _check(result, f"mount {source} on {target}")


def unmount(target: str) -> None:
    """Detaches a mount at once, even if it is in use. Raises OSError."""
    _check(_LIBC.umount2(os.fsencode(target), ctypes.c_int(MNT_DETACH)), f"umount {target}")


def openat2(directory: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Opens beneath ``directory``, not inherited.

    Raises OSError: EXDEV: it leads out; EAGAIN: it does not hold still.
    """
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
    for attempt in range(_ATTEMPTS):
        try:
            return _result(_LIBC.syscall(_SYS_OPENAT2, directory, path, how, len(how)), path)
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.EINTR) or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


@cache
def has_openat2() -> bool:
    """Returns whether openat2 works: a kernel before 5.6 lacks it, and a seccomp filter may forbid it."""
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        os.close(openat2(root, b".", os.O_PATH | os.O_DIRECTORY))
    except OSError:
        return False
    finally:
        os.close(root)
    return True


def rename_noreplace(source_dir: int, source: str, target_dir: int, target: str) -> None:
    """Renames unless the target exists (FileExistsError). Without support it is checked first. Raises OSError."""
    names = os.fsencode(source), os.fsencode(target)
    try:
        _result(_LIBC.renameat2(source_dir, names[0], target_dir, names[1], _RENAME_NOREPLACE), source)
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
    """Writes out the file system of the descriptor."""
    _result(_LIBC.syncfs(fd))


def start_writeback(fd: int, offset: int, count: int) -> None:
    """Starts to write a part of a file to the disk without waiting; a hint that some file systems ignore."""
    _LIBC.sync_file_range(fd, ctypes.c_int64(offset), ctypes.c_int64(count), _SYNC_FILE_RANGE_WRITE)


def read_directory(fd: int, cursor: int, limit: int) -> tuple[list[str], int | None]:
    """Returns names from a position on (telldir(3)), and the next position, or None at the end."""
    buffer = ctypes.create_string_buffer(1 << 15)
    names: list[str] = []
    os.lseek(fd, cursor, os.SEEK_SET)
    while count := _result(_LIBC.getdents64(fd, buffer, len(buffer))):
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
    """Adds our own permissions to a directory that we own."""
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    try:
        if os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IRWXU)  # noqa: PTH101  # a descriptor, not a path
    finally:
        os.close(fd)
