"""Starts a shim and the first process of its workload, in steps that can each be found on disk after a crash."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import socket
import time
from contextlib import suppress
from typing import Any

from ai.backend.node.linux import cgroupfs, proc, syscalls
from ai.backend.plugin.crash_points import crash_point
from ai.backend.runtime.process.supervisor import egress, launch

LOCK_TIMEOUT_S = 0.5
_RUNSC_LOST_CODE = 128
"""The exit code of `runsc` where its sandbox was killed."""


def write_json(file_name: str, content: dict[str, Any], *, is_durable: bool = False) -> None:
    """Replaces a file of the workload's directory atomically."""
    with open(file_name + ".tmp", "w", encoding="utf-8") as file:  # no pathlib here: memory
        file.write(json.dumps(content))  # in one piece: `dump` encodes in Python
        if is_durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(file_name + ".tmp", file_name)  # as above


class Leader:
    """Represents the workload's first process: bubblewrap, or the runner in the tiers without bubblewrap."""

    def __init__(self, pid: int, channel: socket.socket, log_fd: int) -> None:
        self.pid = pid
        self.helper_pid = 0
        self.channel = channel
        self.requests: socket.socket | None = None
        self.log = log_fd
        self.status: int | None = None
        self.has_children = True

    def reap(self) -> None:
        """Collects every child that has ended, orphans of the workload included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid, status = -1, 0
            if pid == self.pid:
                self.status = status
            elif pid <= 0:
                self.has_children = pid == 0
                return

    def outcome(self, *, sandboxed: bool) -> tuple[int | None, int | None]:
        """Returns how the workload's first process ended, as (exit code, signal); one of them is None.

        bubblewrap reports a death by signal n as code 128 + n.
        """
        if self.status is None:
            return None, signal.SIGKILL
        exit_code = os.waitstatus_to_exitcode(self.status)
        if exit_code < 0:
            return None, -exit_code
        if self.requests is not None and exit_code == _RUNSC_LOST_CODE:
            return None, signal.SIGKILL
        if sandboxed and 128 < exit_code <= 128 + 64:
            return None, exit_code - 128
        return exit_code, None

    def was_out_of_memory(self, groups: list[dict[str, Any]]) -> bool:
        """Returns True if the kernel killed any process in the given control groups for lack of memory."""
        for group in groups:
            if group["join"] != "cgroup.procs" and "/memory/" not in group["path"]:
                continue  # another hierarchy of version 1
            for file_name in ("memory.events", "memory.oom_control"):
                for line in cgroupfs.read(os.path.join(group["path"], file_name)).splitlines():  # memory
                    counter_name, _, value = line.partition(" ")
                    if counter_name == "oom_kill" and value.strip() not in {"", "0"}:
                        return True
        return False


def take_workload_lock() -> bool:
    """Takes the lock of the workload in the current directory for the shim's life; returns True if it got the lock.

    Returns False if another shim has the lock, or the directory is being removed.
    """
    try:
        lock_fd = os.open("lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
    try:
        return os.fstat(lock_fd).st_ino == os.stat("lock").st_ino  # no pathlib here: memory
    except OSError:
        return False


def listen() -> socket.socket:
    """Creates and returns the listening Unix socket ``shim.sock`` of the workload in the current directory.

    The path is relative, since absolute ones may be longer than the kernel allows.
    """
    with suppress(FileNotFoundError):
        os.unlink("shim.sock")  # as above
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.umask(0o077)
    listener.bind("shim.sock")
    listener.listen(16)
    listener.setblocking(False)
    return listener


def start_leader(plan: dict[str, Any], namespace_fd: int | None) -> Leader:
    """Forks the leader, and waits until the leader executes. Raises OSError with the child's error text."""
    shim_channel, runner_channel = socket.socketpair()
    log_read_fd, log_write_fd = os.pipe2(os.O_CLOEXEC)
    if plan["owner"] is not None:
        os.fchown(log_write_fd, *plan["owner"])  # so that a program may open its /dev/stdout
    report_read_fd, report_write_fd = os.pipe2(os.O_CLOEXEC)
    late_pid_limit = plan["nproc_late"]
    info_read_fd, info_write_fd = os.pipe2(os.O_CLOEXEC) if late_pid_limit else (-1, -1)
    block_read_fd, block_write_fd = os.pipe2(os.O_CLOEXEC) if late_pid_limit else (-1, -1)
    requests: socket.socket | None = None
    if plan["bundle"]:  # in the place of the descriptor on which bubblewrap reports
        requests, inner_requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        info_write_fd = inner_requests.detach()
    pid = os.fork()
    if pid == 0:
        launch.become(
            plan, namespace_fd, runner_channel.fileno(), log_write_fd, info_write_fd, block_read_fd, report_write_fd
        )
    runner_channel.close()
    if namespace_fd is not None:
        os.close(namespace_fd)
    for fd in (log_write_fd, report_write_fd, info_write_fd, block_read_fd):
        if fd >= 0:
            os.close(fd)
    try:
        if plan["namespace_uid"] is not None:
            launch.map_session_user(plan, pid, shim_channel)
    except OSError:
        shim_channel.close()  # of which the leader fails
    failure_text = os.read(report_read_fd, 4096)
    os.close(report_read_fd)
    if failure_text:
        os.waitpid(pid, 0)
        raise OSError(failure_text.decode(errors="replace"))
    os.set_blocking(log_read_fd, False)
    if late_pid_limit:
        _limit_processes(plan, info_read_fd, block_write_fd)
    leader = Leader(pid, shim_channel, log_read_fd)
    leader.requests = requests
    return leader


def _limit_processes(plan: dict[str, Any], info_fd: int, block_fd: int) -> None:
    """Sets the limit on the number of processes of a sandbox that waits to start.

    Sets it as the session's user if root lacks the capability.
    """
    info_json = b""
    while chunk := os.read(info_fd, 4096):
        info_json += chunk
        if info_json.rstrip().endswith(b"}"):
            break
    os.close(info_fd)
    try:
        _set_process_limit(plan, info_json)
    except (OSError, ValueError, KeyError):
        helper_pid = os.fork()
        if helper_pid == 0:
            with suppress(BaseException):
                launch.become_user(plan, [])
                _set_process_limit(plan, info_json)
            os._exit(0)
        os.waitpid(helper_pid, 0)
    os.write(block_fd, b"1")
    os.close(block_fd)


def _set_process_limit(plan: dict[str, Any], info_json: bytes) -> None:
    """Sets the limit on the number of processes of bubblewrap's child, whose pid is in the report ``info_json``.

    Raises OSError, ValueError and KeyError.
    """
    pid_limit = plan["nproc_late"]
    resource.prlimit(json.loads(info_json)["child-pid"], resource.RLIMIT_NPROC, (pid_limit, pid_limit))


def run_shim(directory: str, report_fd: int, namespace_fd: int | None) -> None:
    """Takes the workload's lock, starts the workload's first process, and runs the shim until its end.

    The first process starts in the network namespace if there is one.
    """
    from ai.backend.runtime.process.supervisor.shim import Shim

    crash_point("shim.forked")
    os.chdir(directory)
    if not take_workload_lock():
        send_report(report_fd, {"ok": False, "error": "another shim has it"})
        return
    crash_point("shim.locked")
    with open("plan.json", encoding="utf-8") as plan_file:  # no pathlib here: memory
        plan = json.load(plan_file)
    if plan["secret_variables"]:  # the workload has them from now on, and the file no longer
        public_variables = {
            name: value for name, value in plan["environ"].items() if name not in plan["secret_variables"]
        }
        write_json("plan.json", {**plan, "environ": public_variables})
    syscalls.become_subreaper()
    identity = {
        "version": 1,
        "boot_id": proc.boot_id(),
        "shim": [os.getpid(), proc.start_time(os.getpid())],
        "leader": None,
    }
    try:
        write_json("shim.json", identity)
        cgroupfs.build(plan["cgroups"])
        crash_point("shim.cgroups")
        wakeup_read_fd, wakeup_write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it only has to wake the loop
        signal.set_wakeup_fd(wakeup_write_fd, warn_on_full_buffer=False)
        listener = listen()
        helper_pid = 0
        if plan["egress"]:
            namespace_fd, helper_pid = egress.make_network(plan, namespace_fd)
            identity["helper"] = [helper_pid, proc.start_time(helper_pid)]
            write_json("shim.json", identity)
        leader = start_leader(plan, namespace_fd)
        leader.helper_pid = helper_pid
    except (OSError, ValueError) as error:
        if identity.get("helper"):
            os.kill(identity["helper"][0], signal.SIGKILL)  # type: ignore[index]  # a pair, as set above
        cgroupfs.remove(plan["cgroups"])
        send_report(report_fd, {"ok": False, "error": str(error)})
        return
    crash_point("shim.spawned")
    identity["leader"] = [leader.pid, proc.start_time(leader.pid)]
    write_json("shim.json", identity)
    crash_point("shim.recorded")
    send_report(report_fd, {"ok": True, **identity})
    Shim(plan, listener, wakeup_read_fd, leader).run()


def send_report(report_fd: int, message: dict[str, Any]) -> None:
    """Sends one message to the process that requested the workload, if it still listens, and closes the descriptor."""
    with suppress(OSError):
        os.write(report_fd, json.dumps(message).encode())
    os.close(report_fd)
