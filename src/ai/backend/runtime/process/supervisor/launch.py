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
STAGE_FOLDER = "/tmp"  # exists on every host; covered by a tmpfs in this child's own mount namespace


def become(
    plan: dict[str, Any],
    namespace_fd: int | None,
    channel_fd: int,
    log_fd: int,
    info_fd: int,
    block_fd: int,
    report_fd: int,
) -> NoReturn:
    """Becomes the workload's leader, in a network namespace if there is one; writes a failure to ``report_fd``."""
    step = "start"
    try:
        os.umask(0o022)
        signal.set_wakeup_fd(-1)
        for signal_number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
            signal.signal(signal_number, signal.SIG_DFL)
        if not plan["sandboxed"]:
            os.setsid()
        step = "control groups"
        cgroupfs.join(plan["cgroups"])
        if namespace_fd is not None:
            step = "network"
            enter_network(namespace_fd)
        step = "limits"
        _set_limits(plan["rlimits"], plan["oom_score_adj"])
        step = "files"
        filter_program = _read_file(plan["seccomp"]) if plan["seccomp"] else b""
        _arrange_fds(plan, channel_fd, log_fd, info_fd, block_fd, report_fd)
        report_fd = _REPORT_FD
        step = "mounts"
        if plan["stage"]:
            _stage_sources(plan["stage"])
        if plan["veils"]:
            _cover_directories(plan["veils"])
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
            if filter_program:
                syscalls.install_seccomp(filter_program)
        step = "execute"
        os.execve(plan["argv"][0], plan["argv"], plan["environ"])
    except BaseException as error:  # noqa: BLE001  # whatever it was, this process must not go on as a second shim
        try:
            os.write(report_fd, f"{step}: {error}".encode()[:500])
        except OSError:
            pass  # the shim has gone
    os._exit(127)


_REPORT_FD = 9


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _set_limits(limits_by_name: dict[str, int], oom_score_adj: int) -> None:
    for limit_name, limit in limits_by_name.items():
        resource_id = getattr(resource, limit_name)
        _, hard_limit = resource.getrlimit(resource_id)
        if hard_limit != resource.RLIM_INFINITY:
            limit = min(limit, hard_limit)
        resource.setrlimit(resource_id, (limit, limit))
    try:
        cgroupfs.write("/proc/self/oom_score_adj", str(oom_score_adj))
    except OSError:
        return


def _arrange_fds(
    plan: dict[str, Any], channel_fd: int, log_fd: int, info_fd: int, block_fd: int, report_fd: int
) -> None:
    """Moves the descriptors to the standard streams and the fixed numbers above; closes all others."""
    null_fd = os.open("/dev/null", os.O_RDONLY)
    filter_fd = os.open(plan["seccomp"], os.O_RDONLY) if plan["seccomp"] and plan["sandboxed"] else -1
    source_by_target = {
        0: null_fd,
        1: log_fd,
        2: log_fd,
        CHANNEL_FD: channel_fd,
        SECCOMP_FD: filter_fd,
        INFO_FD: info_fd,
        BLOCK_FD: block_fd,
    }
    # Two moves, through numbers above all of the targets, so that no source is overwritten before its turn.
    parked_by_target = {
        target_fd: _duplicate_above_20(source_fd) for target_fd, source_fd in source_by_target.items() if source_fd >= 0
    }
    parked_report_fd = _duplicate_above_20(report_fd)
    for target_fd, source_fd in parked_by_target.items():
        os.dup2(source_fd, target_fd, inheritable=True)
    os.dup2(parked_report_fd, _REPORT_FD, inheritable=False)
    os.closerange(7, _REPORT_FD)
    os.closerange(_REPORT_FD + 1, 4096)
    for target_fd in (CHANNEL_FD, SECCOMP_FD, INFO_FD, BLOCK_FD):
        if target_fd not in parked_by_target:
            try:
                os.close(target_fd)
            except OSError:
                continue


def _duplicate_above_20(fd: int) -> int:
    return fd if fd >= 20 else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20)


def _stage_sources(staged_sources: list[list[str]]) -> None:
    """Binds each source below STAGE, in a mount namespace of this process, in which they must be opened to be bound."""
    if os.geteuid() != 0:
        syscalls.unshare_user()
    syscalls.unshare_mounts()
    opened_sources = [
        (open_beneath.open_source(source), f"{STAGE_FOLDER}/{stage_name}") for source, stage_name in staged_sources
    ]
    syscalls.mount("tmpfs", STAGE_FOLDER, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755,size=1m")
    _bind_opened(opened_sources)


def _cover_directories(veils: dict[str, list[list[str]]]) -> None:
    """Covers directories by empty directories with only the given sources, in this process's mount namespace."""
    syscalls.unshare_mounts()
    shown_pairs = [pair for pairs in veils.values() for pair in pairs]
    opened_sources = [
        (os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), target) for source, target in shown_pairs
    ]
    for covered_path in veils:
        syscalls.mount("tmpfs", covered_path, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755,size=64k")
    _bind_opened(opened_sources)


def _bind_opened(opened_sources: list[tuple[int, str]]) -> None:
    """Binds opened files and directories to new targets."""
    for source_fd, target in opened_sources:
        if stat.S_ISDIR(os.fstat(source_fd).st_mode):
            os.makedirs(target, mode=0o755, exist_ok=True)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_CLOEXEC, 0o644))
        syscalls.mount(f"/proc/self/fd/{source_fd}", target, "", syscalls.MS_BIND | syscalls.MS_REC)
        os.close(source_fd)


def enter_network(namespace_fd: int) -> None:
    """Enters a network namespace as root, or through the user namespace that owns it, as its user. Raises OSError."""
    try:
        syscalls.enter_namespace(namespace_fd, syscalls.CLONE_NEWNET)
    except PermissionError:
        user_namespace_fd = fcntl.ioctl(namespace_fd, syscalls.NS_GET_USERNS)
        syscalls.enter_namespace(user_namespace_fd, syscalls.CLONE_NEWUSER)
        syscalls.enter_namespace(namespace_fd, syscalls.CLONE_NEWNET)


def become_user(plan: dict[str, Any], groups: list[int]) -> None:
    """Changes to the session's user, if the plan names a user and this process is still root's."""
    if plan["uid"] is not None and os.geteuid() == 0:
        os.setgroups(groups)
        os.setresgid(plan["gid"], plan["gid"], plan["gid"])
        os.setresuid(plan["uid"], plan["uid"], plan["uid"])
