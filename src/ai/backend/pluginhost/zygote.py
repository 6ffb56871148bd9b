"""Forks hosts from a process that has imported what every host needs, and no plugin.

A request is four descriptors in one packet: calls, choices, output and life. On ``life`` the zygote sends the host's
pid and, once it has ended, its exit status, a packet each. The host stays a zombie until the agent shuts its end of
``life``, so that its pid is not reused; then the zygote closes its end. A host whose ``life`` is shut is killed.

A request may name an executable: the host then becomes it, with the same parent, session, output and environment, with
the calls as descriptor :data:`.protocol.CALLS_FD`, and without any way to gain privileges (set-user-id bits, file
capabilities).

What a host has started ends with it, also what was detached: a host keeps its orphans as its children
(``PR_SET_CHILD_SUBREAPER``) until it ends; then they become the zygote's, which kills all children but hosts and those
whose environment says :data:`~ai.backend.plugin.programs.OUTLIVES_VARIABLE`: daemons that workloads use, as those of
MPS, live on as workloads do.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import time
import traceback
from pathlib import Path
from typing import NoReturn

from ai.backend.node.linux import proc, syscalls
from ai.backend.plugin.programs import OUTLIVES_VARIABLE
from ai.backend.pluginhost.protocol import CALLS_FD, NOT_EXECUTED, PROTOCOL_VARIABLE, PROTOCOLS
from ai.backend.pluginhost.server import serve

REQUEST = b"host"
_MAX_REQUEST_BYTES = 8192
_EXEC_TIMEOUT_S, _EXEC_CHECK_S = 0.2, 0.005
"""For how long a process may have no environment because it executes a program, and how often this is looked at."""


class Zygote:
    """Forks host processes on request, and reports their pids and exit statuses to the agent.

    Requests come on a SOCK_SEQPACKET socket. Ends when the agent has closed its end and no host is left. The kernel
    closes the agent's end however the agent dies.
    """

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._hosts: dict[int, int] = {}
        """Maps the descriptor of each host's ``life`` to the host's pid."""
        self._unreported: set[int] = set()
        """The descriptors of hosts whose end is not reported yet."""
        self._to_reap: set[int] = set()
        """The descriptors of hosts that are to be reaped."""
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()

    def run(self) -> None:
        syscalls.become_subreaper()
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ready_fd in (self._requests.fileno(), self._woken):
            self._poll.register(ready_fd, select.POLLIN)
        # Hosts share the pages of what is loaded as long as nobody writes to them, and a collection does.
        gc.collect()
        gc.freeze()
        is_open = True
        while is_open or self._hosts or self._end_orphans():
            for ready_fd, _ in self._poll.poll():
                if ready_fd == self._woken:
                    os.read(ready_fd, 4096)
                elif ready_fd in self._hosts:
                    self._shut_down(ready_fd)
                elif not self._take_request():
                    self._poll.unregister(ready_fd)
                    is_open = False
            self._report_ends()
            self._end_orphans()

    def _take_request(self) -> bool:
        try:
            request_bytes, fds, _, _ = socket.recv_fds(self._requests, _MAX_REQUEST_BYTES, 4, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return False
        request, _, program = request_bytes.partition(b"\0")
        if request != REQUEST:
            return False
        calls_fd, choices_fd, output_fd, life_fd = fds
        try:
            pid = os.fork()
        except OSError:
            _close(*fds)  # the end of ``life`` says it
            return True
        if pid == 0:
            self._become_host(calls_fd, choices_fd, output_fd, life_fd, program)
        _close(calls_fd, choices_fd, output_fd)
        self._hosts[life_fd] = pid
        self._unreported.add(life_fd)
        self._poll.register(life_fd, select.POLLRDHUP | select.POLLHUP)
        _send_number(life_fd, pid)
        return True

    def _become_host(self, calls_fd: int, choices_fd: int, output_fd: int, life_fd: int, program: bytes) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            zygote_pid = os.getppid()
            os.setsid()
            syscalls.die_with_parent()  # also while a vendor's library blocks it
            if os.getppid() != zygote_pid:
                os._exit(1)
            syscalls.become_subreaper()
            os.dup2(output_fd, 1)
            os.dup2(output_fd, 2)
            self._requests.close()
            _close(output_fd, life_fd, self._woken, self._wake, *self._hosts)
            if program:
                _become_program(calls_fd, choices_fd, program)
            serve(calls_fd, choices_fd)
        except BaseException:  # noqa: BLE001  # this process must never return into the zygote's loop
            traceback.print_exc()
        finally:
            os._exit(1)

    def _shut_down(self, life_fd: int) -> None:
        self._poll.unregister(life_fd)
        self._to_reap.add(life_fd)
        os.kill(self._hosts[life_fd], signal.SIGKILL)  # nothing happens to one that has ended

    def _report_ends(self) -> None:
        for life_fd in list(self._unreported):
            exit_info = os.waitid(os.P_PID, self._hosts[life_fd], os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if exit_info is not None:
                self._unreported.discard(life_fd)
                _send_number(
                    life_fd, exit_info.si_status if exit_info.si_code == os.CLD_EXITED else -exit_info.si_status
                )
        for life_fd in self._to_reap - self._unreported:
            os.waitpid(self._hosts.pop(life_fd), 0)
            self._to_reap.discard(life_fd)
            os.close(life_fd)

    def _end_orphans(self) -> bool:
        """Kills the processes that ended hosts have left. Returns True if any of them still runs.

        Processes that may outlive their hosts are not killed. Blocks for up to :data:`_EXEC_TIMEOUT_S` if one of the
        others has no environment.
        """
        own_pids = {os.getpid(), *self._hosts.values()}
        deadline = time.monotonic() + _EXEC_TIMEOUT_S
        child_pids = [pid for pid in proc.children(os.getpid()) if pid not in own_pids]
        orphan_pids = [pid for pid in child_pids if not _outlives(pid, deadline)]
        proc.send(orphan_pids, signal.SIGKILL)
        return any(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid in orphan_pids)


def _outlives(pid: int, deadline: float) -> bool:
    """True for a running child process that its plugin started to outlive the host.

    An ended process is reaped as others are. While a process executes a new program, its environment is empty for a
    moment, although its parent already knows that the program exists: the environment is read again until
    ``deadline``, on the monotonic clock.
    """
    while True:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        has_ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if environment or has_ended or time.monotonic() >= deadline:
            return f"{OUTLIVES_VARIABLE}=1".encode() in environment.split(b"\0")
        time.sleep(_EXEC_CHECK_S)


def _become_program(calls_fd: int, choices_fd: int, program: bytes) -> NoReturn:
    """Replaces this process by an executable plugin, after closing every other descriptor above 2.

    On a failure prints the reason, and exits with :data:`.protocol.NOT_EXECUTED`.
    """
    # recv_fds of the standard library leaves out its flags: what was received is inherited.
    for received_fd in (calls_fd, choices_fd):
        os.set_inheritable(received_fd, False)
    os.dup2(calls_fd, CALLS_FD)
    os.set_inheritable(CALLS_FD, True)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    syscalls.forbid_new_privileges()
    try:
        os.execve(program, [program], {**os.environ, PROTOCOL_VARIABLE: str(PROTOCOLS[-1])})
    except (OSError, ValueError) as e:
        os.write(2, f"it cannot be executed: {e}\n".encode(errors="replace"))
    os._exit(NOT_EXECUTED)


def _send_number(life_fd: int, number: int) -> None:
    try:
        os.write(life_fd, b"%d" % number)
    except OSError:
        return  # the agent is gone


def _close(*fds: int) -> None:
    for one_fd in fds:
        os.close(one_fd)
