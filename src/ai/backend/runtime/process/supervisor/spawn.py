"""Starts a shim: from the zygote's fork to a running leader, so that each step can be found after a crash."""

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
from ai.backend.runtime.process.supervisor import launch

LOCK_PATIENCE_S = 0.5


def write_json(name: str, content: dict[str, Any], *, durable: bool = False) -> None:
    """Replaces a file of the workload's directory atomically."""
    with open(name + ".tmp", "w", encoding="utf-8") as file:  # no pathlib here: memory
        json.dump(content, file)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(name + ".tmp", name)  # as above


class Leader:
    """The workload's first process: bubblewrap, or the runner itself in the tiers without it."""

    def __init__(self, pid: int, channel: socket.socket, log: int) -> None:
        self.pid = pid
        self.channel = channel
        self.log = log
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
        """Exit code or signal. bubblewrap tells its child's death by signal n as code 128 + n."""
        if self.status is None:
            return None, signal.SIGKILL
        code = os.waitstatus_to_exitcode(self.status)
        if code < 0:
            return None, -code
        if sandboxed and 128 < code <= 128 + 64:
            return None, code - 128
        return code, None

    def was_out_of_memory(self, groups: list[dict[str, Any]]) -> bool:
        """Returns True if the kernel killed any process of these groups for lack of memory."""
        for group in groups:
            for name in ("memory.events", "memory.oom_control"):
                for line in cgroupfs.read(os.path.join(group["path"], name)).splitlines():  # memory
                    key, _, value = line.partition(" ")
                    if key == "oom_kill" and value.strip() not in {"", "0"}:
                        return True
        return False


def hold_lock() -> bool:
    """Takes the workload's lock permanently; False if it is taken, or if the directory is being removed."""
    try:
        fd = os.open("lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
    try:
        return os.fstat(fd).st_ino == os.stat("lock").st_ino  # no pathlib here: memory
    except OSError:
        return False


def listen() -> socket.socket:
    """Opens the workload's socket by a relative path: absolute ones may be longer than the kernel allows."""
    with suppress(FileNotFoundError):
        os.unlink("shim.sock")  # as above
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.umask(0o077)
    listener.bind("shim.sock")
    listener.listen(16)
    listener.setblocking(False)
    return listener


def start_leader(plan: dict[str, Any], network: int | None) -> Leader:
    """Forks the leader and see it execute. Raises OSError with the child's own words."""
    ours, theirs = socket.socketpair()
    log_read, log_write = os.pipe2(os.O_CLOEXEC)
    report_read, report_write = os.pipe2(os.O_CLOEXEC)
    late = plan["nproc_late"]
    info_read, info_write = os.pipe2(os.O_CLOEXEC) if late else (-1, -1)
    block_read, block_write = os.pipe2(os.O_CLOEXEC) if late else (-1, -1)
    pid = os.fork()
    if pid == 0:
        launch.become(plan, network, theirs.fileno(), log_write, info_write, block_read, report_write)
    theirs.close()
    if network is not None:
        os.close(network)
    for fd in (log_write, report_write, info_write, block_read):
        if fd >= 0:
            os.close(fd)
    failure = os.read(report_read, 4096)
    os.close(report_read)
    if failure:
        os.waitpid(pid, 0)
        raise OSError(failure.decode(errors="replace"))
    os.set_blocking(log_read, False)
    if late:
        _limit_processes(plan, info_read, block_write)
    return Leader(pid, ours, log_read)


def _limit_processes(plan: dict[str, Any], info: int, block: int) -> None:
    """Limits the number of processes while the sandbox waits, as the session's user: root may lack the capability."""
    text = b""
    while chunk := os.read(info, 4096):
        text += chunk
        if text.rstrip().endswith(b"}"):
            break
    os.close(info)
    helper = os.fork()
    if helper == 0:
        with suppress(BaseException):
            launch.become_user(plan, [])
            limit = plan["nproc_late"]
            resource.prlimit(json.loads(text)["child-pid"], resource.RLIMIT_NPROC, (limit, limit))
        os._exit(0)
    os.waitpid(helper, 0)
    os.write(block, b"1")
    os.close(block)


def prepare(directory: str, report: int, network: int | None) -> None:
    """Does everything between the fork and the loop, in the namespace of ``network`` if there is one."""
    from ai.backend.runtime.process.supervisor.shim import Shim

    crash_point("shim.forked")
    os.chdir(directory)
    if not hold_lock():
        tell(report, {"ok": False, "error": "another shim has it"})
        return
    crash_point("shim.locked")
    with open("plan.json", encoding="utf-8") as file:  # no pathlib here: memory
        plan = json.load(file)
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
        wakeup_read, wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        listener = listen()
        leader = start_leader(plan, network)
    except (OSError, ValueError) as error:
        cgroupfs.remove(plan["cgroups"])
        tell(report, {"ok": False, "error": str(error)})
        return
    crash_point("shim.spawned")
    identity["leader"] = [leader.pid, proc.start_time(leader.pid)]
    write_json("shim.json", identity)
    crash_point("shim.recorded")
    tell(report, {"ok": True, **identity})
    Shim(plan, listener, wakeup_read, leader).run()


def tell(report: int, message: dict[str, Any]) -> None:
    """Sends one message to the requester of the workload, if it still listens."""
    with suppress(OSError):
        os.write(report, json.dumps(message).encode())
    os.close(report)


def _nothing(number: int, frame: object) -> None:
    """Does nothing: SIGCHLD only has to wake the loop."""
