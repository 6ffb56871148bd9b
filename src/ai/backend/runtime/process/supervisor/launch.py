"""Turns a child of the shim into the sandbox's first process.

The child joins its control groups, drops its privileges and executes the program.

Order matters: control groups while we still may; mounts that only this process sees, so that an unprivileged bubblewrap
can bind what lies under closed directories; the identity; the promise to die with the shim, which a change of identity
would clear; last the filter.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import socket
import stat
from typing import Any, NoReturn

from ai.backend.node.linux import cgroupfs, open_beneath, syscalls
from ai.backend.runtime.process.supervisor import gvisor

CHANNEL_FD = 3
SECCOMP_FD = 4
INFO_FD = 5
BLOCK_FD = 6
STAGE_FOLDER = "/tmp"  # exists on every host; covered by a tmpfs in this child's own mount namespace
DEVICE_FOLDER = f"{STAGE_FOLDER}/dev"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "fd": "/proc/self/fd",
    "core": "/proc/kcore",
    "ptmx": "pts/ptmx",
}


def become(
    plan: dict[str, Any],
    namespace_fd: int | None,
    channel_fd: int,
    log_fd: int,
    info_fd: int,
    block_fd: int,
    report_fd: int,
) -> NoReturn:
    """Turns this process into the first process of the workload. Writes a failure to ``report_fd``.

    It runs in a network namespace if there is one.
    """
    setup_step = "start"
    try:
        os.umask(0o022)
        signal.set_wakeup_fd(-1)
        for signal_number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
            signal.signal(signal_number, signal.SIG_DFL)
        if not plan["sandboxed"]:
            os.setsid()
        setup_step = "control groups"
        cgroupfs.join(plan["cgroups"])
        if namespace_fd is not None:
            setup_step = "network"
            enter_network(namespace_fd)
        setup_step = "limits"
        _set_limits(plan["rlimits"], plan["oom_score_adj"])
        setup_step = "files"
        filter_program = _read_file(plan["seccomp"]) if plan["seccomp"] and not plan["sandboxed"] else b""
        _arrange_fds(plan, channel_fd, log_fd, info_fd, block_fd, report_fd)
        report_fd = _REPORT_FD
        setup_step = "mounts"
        program_fd = os.open(plan["argv"][0], os.O_RDONLY | os.O_CLOEXEC) if plan["bundle"] else -1
        if plan["stage"]:
            _stage_sources(plan)
        if plan["bundle"]:
            gvisor.write_bundle(plan["bundle"], plan["environ"], has_network=namespace_fd is not None)
        if plan["veils"]:
            _cover_directories(plan["veils"])
        setup_step = "identity"
        if plan["namespace_uid"] is None:
            become_user(plan, plan["groups"])
        else:
            become_user_in_namespace(plan, CHANNEL_FD)
        if plan["nproc"] is not None:
            # Each user namespace that the sandbox makes gets this limit as the limit of all its processes.
            setup_step = "limits"
            _set_limit("RLIMIT_NPROC", plan["nproc"])
        setup_step = "parent"
        syscalls.die_with_parent()
        if os.getppid() == 1:
            os._exit(1)
        if not plan["sandboxed"]:
            setup_step = "filter"
            os.chdir(plan["cwd"])
            syscalls.forbid_new_privileges()
            if filter_program:
                syscalls.install_seccomp(filter_program)
        setup_step = "execute"
        if plan["bundle"]:
            gvisor.execute(program_fd, plan["argv"], has_network=namespace_fd is not None)
        os.execve(plan["argv"][0], plan["argv"], plan["environ"])
    except BaseException as error:  # noqa: BLE001  # whatever it was, this process must not go on as a second shim
        try:
            os.write(report_fd, f"{setup_step}: {error}".encode()[:500])
        except OSError:
            pass  # the shim has gone
    os._exit(127)


_REPORT_FD = 9


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _set_limits(limits_by_name: dict[str, int], oom_score_adj: int) -> None:
    for limit_name, limit in limits_by_name.items():
        _set_limit(limit_name, limit)
    try:
        cgroupfs.write("/proc/self/oom_score_adj", str(oom_score_adj))
    except OSError:
        return


def _set_limit(limit_name: str, limit: int) -> None:
    """Sets a resource limit of this process and its children, at most to the present hard limit."""
    resource_id = getattr(resource, limit_name)
    _, hard_limit = resource.getrlimit(resource_id)
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(limit, hard_limit)
    resource.setrlimit(resource_id, (limit, limit))


def _arrange_fds(
    plan: dict[str, Any], channel_fd: int, log_fd: int, info_fd: int, block_fd: int, report_fd: int
) -> None:
    """Moves the workload's descriptors to the standard streams and to this module's fixed numbers.

    Closes all other descriptors.
    """
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
    moved_by_target = {
        target_fd: _duplicate_above_20(source_fd) for target_fd, source_fd in source_by_target.items() if source_fd >= 0
    }
    moved_report_fd = _duplicate_above_20(report_fd)
    for target_fd, source_fd in moved_by_target.items():
        os.dup2(source_fd, target_fd, inheritable=True)
    os.dup2(moved_report_fd, _REPORT_FD, inheritable=False)
    os.closerange(7, _REPORT_FD)
    os.closerange(_REPORT_FD + 1, 4096)
    for target_fd in (CHANNEL_FD, SECCOMP_FD, INFO_FD, BLOCK_FD):
        if target_fd not in moved_by_target:
            try:
                os.close(target_fd)
            except OSError:
                continue


def _duplicate_above_20(fd: int) -> int:
    return fd if fd >= 20 else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20)


def _stage_sources(plan: dict[str, Any]) -> None:
    """Binds each source of the plan into the stage folder, in a new mount namespace of this process.

    The sources are opened there, as only then they can be bound.
    """
    staged_sources: list[dict[str, Any]] = plan["stage"]
    owner: list[int] | None = plan["owner"]
    if os.geteuid() != 0:
        syscalls.unshare_user()
    syscalls.unshare_mounts()
    source_fds = [
        open_beneath.open_source(staged_source["source"]) if staged_source["source"] else -1
        for staged_source in staged_sources
    ]
    size = gvisor.STAGE_BYTES if plan["bundle"] else 1024 * 1024
    syscalls.mount("tmpfs", STAGE_FOLDER, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, f"mode=755,size={size}")
    if not plan["bundle"]:
        _make_devices(plan["pty_limit"])
    for source_fd, staged_source in zip(source_fds, staged_sources, strict=True):
        if source_fd < 0:
            source_fd = _make_folder(f"{STAGE_FOLDER}/{staged_source['name']}.contents", staged_source["contents"])
        is_directory = stat.S_ISDIR(os.fstat(source_fd).st_mode)
        staged_path = f"{STAGE_FOLDER}/{staged_source['name']}"
        _bind_opened([(source_fd, staged_path)])
        _restrict(staged_path, staged_source["bind"])
        if staged_source["place"] is not None:
            outer_name, path_below = staged_source["place"]
            outer_path = f"{STAGE_FOLDER}/{outer_name}"
            place_fd = open_beneath.make_mount_point(outer_path, path_below, owner, is_directory=is_directory)
            syscalls.mount(staged_path, f"/proc/self/fd/{place_fd}", "", syscalls.MS_BIND | syscalls.MS_REC)
            os.close(place_fd)


def _make_folder(path: str, contents: dict[str, str]) -> int:
    """Makes a folder with files of these contents in the stage, in memory; returns its descriptor."""
    os.mkdir(path)
    for name, content in contents.items():
        fd = os.open(f"{path}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(fd, content.encode("latin-1"))
        os.close(fd)
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _make_devices(pty_limit: int) -> None:
    """Makes a /dev folder in the stage, with the usual devices and terminals of its own.

    Bubblewrap would mount seven times, and read all mounts after each.
    """
    os.mkdir(DEVICE_FOLDER)
    syscalls.mount("tmpfs", DEVICE_FOLDER, "tmpfs", syscalls.MS_NOSUID, "mode=755,size=64k")
    for name in _DEVICES:
        target = f"{DEVICE_FOLDER}/{name}"
        os.close(os.open(target, os.O_CREAT | os.O_CLOEXEC, 0o644))
        syscalls.mount(f"/dev/{name}", target, "", syscalls.MS_BIND)
    for name, linked_path in _DEVICE_LINKS.items():
        os.symlink(linked_path, f"{DEVICE_FOLDER}/{name}")
    os.mkdir(f"{DEVICE_FOLDER}/shm")
    os.mkdir(f"{DEVICE_FOLDER}/pts")
    options = f"ptmxmode=0666,mode=620,max={pty_limit}"
    syscalls.mount("devpts", f"{DEVICE_FOLDER}/pts", "devpts", syscalls.MS_NOSUID, options)


def _restrict(staged_path: str, bind_option: str) -> None:
    """Makes a staged mount read-only or without devices, as the given bind option of bubblewrap requires.

    Nothing in the sandbox's user namespace can undo that.
    """
    flags = 0 if bind_option == "--dev-bind" else syscalls.MS_NOSUID | syscalls.MS_NODEV
    if bind_option == "--ro-bind":
        flags |= syscalls.MS_RDONLY
    try:
        syscalls.restrict_mounts(staged_path, flags)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        # Before Linux 5.12: this mount alone, with the flags that it has; bubblewrap adds the others.
        flags |= os.statvfs(staged_path).f_flag & (syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
        syscalls.mount("none", staged_path, "", syscalls.MS_BIND | syscalls.MS_REMOUNT | flags)


def _cover_directories(veils: dict[str, list[list[str]]]) -> None:
    """Covers directories by empty directories with only the given sources, in this process's mount namespace."""
    syscalls.unshare_mounts()
    shown_pairs = [pair for pairs_of_directory in veils.values() for pair in pairs_of_directory]
    opened_sources = [
        (os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), target) for source, target in shown_pairs
    ]
    for covered_path in veils:
        syscalls.mount("tmpfs", covered_path, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755,size=64k")
    _bind_opened(opened_sources)


def _bind_opened(opened_sources: list[tuple[int, str]]) -> None:
    """Bind-mounts files and directories, given by open descriptors, on new target paths."""
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


def become_namespace_owner(plan: dict[str, Any]) -> None:
    """Changes this process to the user who owns the session's user namespace.

    This user has every capability in the namespace, which root may lack.
    """
    owner_uid = plan["namespace_uid"]
    if owner_uid is None:
        become_user(plan, plan["groups"])
    elif os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(owner_uid, owner_uid, owner_uid)
        os.setresuid(owner_uid, owner_uid, owner_uid)


def become_user_in_namespace(plan: dict[str, Any], channel_fd: int) -> None:
    """Changes this process to the session's user, in a new user namespace that another user owns.

    The kernel counts per-user limits for that other user, so that no session takes the share of others, while files
    belong to the session's user.

    The other end of ``channel_fd`` must be read by :func:`map_session_user` in a process of root's: this one has
    no powers outside of its namespace any more, and no user in it before that.
    """
    os.setgroups(plan["groups"])
    os.setresgid(plan["gid"], plan["gid"], plan["gid"])
    os.setresuid(plan["namespace_uid"], plan["namespace_uid"], plan["namespace_uid"])
    syscalls.unshare_to_user_namespace()
    os.write(channel_fd, b"m")
    if not os.read(channel_fd, 1):
        raise OSError(errno.EPERM, "the session's user namespace cannot be made")
    os.setresuid(plan["uid"], plan["uid"], plan["uid"])


def map_session_user(plan: dict[str, Any], pid: int, channel: socket.socket) -> None:
    """Maps the session's user into the user namespace of a child that runs :func:`become_user_in_namespace`.

    Does nothing if the child failed.

    Closes nothing. Raises OSError; the child fails then when the channel is closed.
    """
    if not channel.recv(1):
        return
    for map_name, mapped_id in (("uid_map", plan["uid"]), ("gid_map", plan["gid"])):
        cgroupfs.write(f"/proc/{pid}/{map_name}", f"{mapped_id} {mapped_id} 1")
    channel.send(b"m")


def try_user_namespace(plan: dict[str, Any]) -> None:
    """Tests that a session's user namespace can be made, in a child process that ends afterwards.

    Raises OSError, or SystemExit if the child failed.
    """
    own_channel, child_channel = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            own_channel.close()
            become_user_in_namespace(plan, child_channel.fileno())
            os._exit(0)
        finally:
            os._exit(1)
    child_channel.close()
    map_session_user(plan, pid, own_channel)
    own_channel.close()
    if os.waitpid(pid, 0)[1]:
        raise SystemExit(1)
