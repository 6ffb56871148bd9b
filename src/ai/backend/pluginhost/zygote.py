"""Forks hosts from a process that has imported what every host needs, and no plugin.

A request is four descriptors in one packet: calls, choices, output and life. On ``life`` the zygote sends the host's
pid and, once it has ended, its exit status, a packet each. The host stays a zombie until the agent shuts its end of
``life``, so that its pid is not reused; then the zygote closes its end. A host whose ``life`` is shut is killed.

What a host has started ends with it, also what was detached: a host keeps its orphans as its children
(``PR_SET_CHILD_SUBREAPER``) until it ends; then they become the zygote's, which kills all children but hosts.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import traceback
from typing import NoReturn

from ai.backend.node.linux import proc, syscalls
from ai.backend.pluginhost.server import serve

REQUEST = b"host"


class Zygote:
    """Serves requests on a SOCK_SEQPACKET socket until its other end is closed, as it is however the agent dies, and no
    host is left."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._hosts: dict[int, int] = {}
        """The descriptor of each ``life``, and the host's pid."""
        self._unreported: set[int] = set()
        """Those of them whose host's end is still to be told."""
        self._shut: set[int] = set()
        """Those of them whose host is to be reaped."""
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()

    def run(self) -> None:
        syscalls.become_subreaper()
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for fd in (self._requests.fileno(), self._woken):
            self._poll.register(fd, select.POLLIN)
        # Hosts share the pages of what is loaded as long as nobody writes to them, and a collection does.
        gc.collect()
        gc.freeze()
        is_open = True
        while is_open or self._hosts or self._end_orphans():
            for fd, _ in self._poll.poll():
                if fd == self._woken:
                    os.read(fd, 4096)
                elif fd in self._hosts:
                    self._shut_down(fd)
                elif not self._take_request():
                    self._poll.unregister(fd)
                    is_open = False
            self._report_ends()
            self._end_orphans()

    def _take_request(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._requests, 16, 4, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return False
        if data != REQUEST:
            return False
        calls, choices, output, life = fds
        try:
            pid = os.fork()
        except OSError:
            _close(*fds)  # the end of ``life`` says it
            return True
        if pid == 0:
            self._become_host(*fds)
        _close(calls, choices, output)
        self._hosts[life] = pid
        self._unreported.add(life)
        self._poll.register(life, select.POLLRDHUP | select.POLLHUP)
        _send_number(life, pid)
        return True

    def _become_host(self, calls: int, choices: int, output: int, life: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            zygote = os.getppid()
            os.setsid()
            syscalls.die_with_parent()  # also while a vendor's library blocks it
            if os.getppid() != zygote:
                os._exit(1)
            syscalls.become_subreaper()
            os.dup2(output, 1)
            os.dup2(output, 2)
            self._requests.close()
            _close(output, life, self._woken, self._wake, *self._hosts)
            serve(calls, choices)
        except BaseException:  # noqa: BLE001  # this process must never return into the zygote's loop
            traceback.print_exc()
        finally:
            os._exit(1)

    def _shut_down(self, life: int) -> None:
        self._poll.unregister(life)
        self._shut.add(life)
        os.kill(self._hosts[life], signal.SIGKILL)  # nothing happens to one that has ended

    def _report_ends(self) -> None:
        for life in list(self._unreported):
            ended = os.waitid(os.P_PID, self._hosts[life], os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._unreported.discard(life)
                _send_number(life, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)
        for life in self._shut - self._unreported:
            os.waitpid(self._hosts.pop(life), 0)
            self._shut.discard(life)
            os.close(life)

    def _end_orphans(self) -> bool:
        """Ends adopted children; returns True if any still runs. Its end wakes the loop."""
        hosts = {os.getpid(), *self._hosts.values()}
        orphans = [pid for pid in proc.children(os.getpid()) if pid not in hosts]
        proc.send(orphans, signal.SIGKILL)
        return any(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid in orphans)


def _send_number(life: int, number: int) -> None:
    try:
        os.write(life, b"%d" % number)
    except OSError:
        return  # the agent is gone


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
