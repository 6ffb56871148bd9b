"""The last steps of a child before it becomes the sandbox: it joins its groups, drops its powers and executes.

Order matters: control groups while we still may; mounts that only this process sees, so that an unprivileged bubblewrap
can bind what lies under closed directories; the identity; the promise to die with the shim, which a change of identity
would clear; last the filter.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import stat
from typing import Any, NoReturn

from ai.backend.node.linux import cgroupfs, open_beneath, syscalls

CHANNEL_FD = 3
SECCOMP_FD = 4
INFO_FD = 5
BLOCK_FD = 6
STAGE = "/tmp"  # exists on every host; covered by a tmpfs in this child's own mount namespace


def become(
    plan: dict[str, Any], network: int | None, channel: int, log: int, info: int, block: int, report: int
) -> NoReturn:
    """Becomes the workload's leader, in a network namespace if there is one; writes a failure to ``report``."""
    step = "start"
    try:
        os.umask(0o022)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        if not plan["sandboxed"]:
            os.setsid()
        step = "control groups"
        cgroupfs.join(plan["cgroups"])
        if network is not None:
            step = "network"
            syscalls.enter_namespace(network, syscalls.CLONE_NEWNET)
        step = "limits"
        _limit(plan["rlimits"], plan["oom_score_adj"])
        step = "files"
        program = _read(plan["seccomp"]) if plan["seccomp"] else b""
        _arrange_fds(plan, channel, log, info, block, report)
        report = _REPORT_FD
        step = "mounts"
        if plan["stage"]:
            _stage(plan["stage"])
        if plan["veils"]:
            _veil(plan["veils"])
        step = "identity"
        become_user(plan, plan["groups"])
        step = "parent"
        syscalls.die_with_parent()
        if os.getppid() == 1:
            os._exit(1)
        if not plan["sandboxed"]:
            step = "filter"
            os.chdir(plan["cwd"])
            syscalls.forbid_new_privileges()
            if program:
                syscalls.install_seccomp(program)
        step = "execute"
        os.execve(plan["argv"][0], plan["argv"], plan["environ"])
    except BaseException as error:  # noqa: BLE001  # whatever it was, this process must not go on as a second shim
        try:
            os.write(report, f"{step}: {error}".encode()[:500])
        except OSError:
            pass  # the shim has gone
    os._exit(127)


_REPORT_FD = 9


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _limit(limits: dict[str, int], oom_score_adj: int) -> None:
    for name, value in limits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))
    try:
        cgroupfs.write("/proc/self/oom_score_adj", str(oom_score_adj))
    except OSError:
        return


def _arrange_fds(plan: dict[str, Any], channel: int, log: int, info: int, block: int, report: int) -> None:
    """Sets the standard streams and the fixed numbers above; nothing else stays open over the execution."""
    null = os.open("/dev/null", os.O_RDONLY)
    program = os.open(plan["seccomp"], os.O_RDONLY) if plan["seccomp"] and plan["sandboxed"] else -1
    sources = {0: null, 1: log, 2: log, CHANNEL_FD: channel, SECCOMP_FD: program, INFO_FD: info, BLOCK_FD: block}
    # Two moves, through numbers above all of the targets, so that no source is overwritten before its turn.
    parked = {target: _above(source) for target, source in sources.items() if source >= 0}
    keep_report = _above(report)
    for target, source in parked.items():
        os.dup2(source, target, inheritable=True)
    os.dup2(keep_report, _REPORT_FD, inheritable=False)
    os.closerange(7, _REPORT_FD)
    os.closerange(_REPORT_FD + 1, 4096)
    for target in (CHANNEL_FD, SECCOMP_FD, INFO_FD, BLOCK_FD):
        if target not in parked:
            try:
                os.close(target)
            except OSError:
                continue


def _above(fd: int) -> int:
    return fd if fd >= 20 else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20)


def _stage(sources: list[list[str]]) -> None:
    """Binds each source below STAGE, in a mount namespace of this process, in which they must be opened to be bound."""
    if os.geteuid() != 0:
        syscalls.unshare_user()
    syscalls.unshare_mounts()
    opened = [(open_beneath.open_source(source), f"{STAGE}/{name}") for source, name in sources]
    syscalls.mount("tmpfs", STAGE, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755,size=1m")
    _bind(opened)


def _veil(veils: dict[str, list[list[str]]]) -> None:
    """Covers directories by empty ones that show only the given sources, in this process's mount namespace."""
    syscalls.unshare_mounts()
    shown = [pair for pairs in veils.values() for pair in pairs]
    opened = [(os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), target) for source, target in shown]
    for cover in veils:
        syscalls.mount("tmpfs", cover, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755,size=64k")
    _bind(opened)


def _bind(opened: list[tuple[int, str]]) -> None:
    """Binds opened files and directories to their targets, which it makes."""
    for fd, target in opened:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            os.makedirs(target, mode=0o755, exist_ok=True)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_CLOEXEC, 0o644))
        syscalls.mount(f"/proc/self/fd/{fd}", target, "", syscalls.MS_BIND | syscalls.MS_REC)
        os.close(fd)


def become_user(plan: dict[str, Any], groups: list[int]) -> None:
    """Becomes the session's user, unless the plan names none or this process is not root's any more."""
    if plan["uid"] is not None and os.geteuid() == 0:
        os.setgroups(groups)
        os.setresgid(plan["gid"], plan["gid"], plan["gid"])
        os.setresuid(plan["uid"], plan["uid"], plan["uid"])
