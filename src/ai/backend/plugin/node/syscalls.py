"""The system calls that the standard library of Python 3.11 lacks."""

from __future__ import annotations

import ctypes
import os
import signal

_LIBC = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWNET = 0x4000_0000
CLONE_NEWNET = 0x4000_0000
NS_GET_USERNS = 0xB701
MNT_DETACH = 2
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MS_NOSUID = 2
MS_NODEV = 4


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def prctl(option: int, value: int) -> None:
    """Raises OSError."""
    zero = ctypes.c_ulong(0)
    _check(_LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero), f"prctl({option})")


def die_with_parent() -> None:
    """Be killed when the parent ends. Lost by a change of credentials, so set it after that."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def become_subreaper() -> None:
    """Orphaned descendants become children of this process."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def install_seccomp(program: bytes) -> None:
    """Install a BPF program (8 bytes an instruction) on this thread. Needs no_new_privs or CAP_SYS_ADMIN."""
    fprog = _SockFprog(len(program) // 8, program)
    zero = ctypes.c_ulong(0)
    mode = ctypes.c_ulong(SECCOMP_MODE_FILTER)
    _check(_LIBC.prctl(ctypes.c_int(PR_SET_SECCOMP), mode, ctypes.byref(fprog), zero, zero), "seccomp")


def unshare_mounts() -> None:
    """A mount namespace of our own, from which nothing propagates back."""
    _check(_LIBC.unshare(ctypes.c_int(CLONE_NEWNS)), "unshare(CLONE_NEWNS)")
    mount("none", "/", "", MS_REC | MS_PRIVATE)


def unshare_network() -> None:
    """A network namespace of our own, with a loopback that is down."""
    _check(_LIBC.unshare(ctypes.c_int(CLONE_NEWNET)), "unshare(CLONE_NEWNET)")


def unshare_user() -> None:
    """A user namespace in which an ordinary user keeps its identity and has root's powers, until it executes something.

    Raises:
        OSError: the kernel does not let this user have one.
    """
    uid, gid = os.geteuid(), os.getegid()
    _check(_LIBC.unshare(ctypes.c_int(CLONE_NEWUSER)), "unshare(CLONE_NEWUSER)")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def enter_namespace(fd: int, kind: int) -> None:
    """Move this thread into a namespace; into a user namespace only a process of one thread. Raises OSError."""
    _check(_LIBC.setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, fstype: str, flags: int, data: str = "") -> None:
    """Raises OSError."""
    result = _LIBC.mount(
        os.fsencode(source), os.fsencode(target), fstype.encode(), ctypes.c_ulong(flags), data.encode() or None
    )
    _check(result, f"mount {source} on {target}")


def unmount(target: str) -> None:
    """Detach it at once, whoever still uses it. Raises OSError."""
    _check(_LIBC.umount2(os.fsencode(target), ctypes.c_int(MNT_DETACH)), f"umount {target}")
