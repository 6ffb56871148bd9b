"""The first zygote of hosts of a program that was forked itself (see .forked): forked with it, not executed later."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from ai.backend.pluginhost import fork
from ai.backend.pluginhost.zygote import Zygote

_execute = fork.spawn


class _Child:
    """As much of ``subprocess.Popen`` as is asked of a zygote."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self._pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._status


def prepare() -> None:
    """To be called first, while there is one thread: a process waits to become the first zygote."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if (pid := os.fork()) == 0:
        ours.close()
        _wait_to_be_zygote(theirs)
    theirs.close()
    waiting = [_Child(pid)]

    def spawn(requests: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        if not waiting:
            return _execute(requests, environment)
        surroundings = {"cwd": os.getcwd(), "env": dict(environment)}
        socket.send_fds(ours, [json.dumps(surroundings).encode()], [requests])
        ours.close()
        child: Any = waiting.pop()
        return child  # type: ignore[no-any-return]  # as much of one as is asked

    setattr(fork, "spawn", spawn)  # noqa: B010  # a function cannot be assigned otherwise


def _wait_to_be_zygote(requests: socket.socket) -> None:
    data, fds, _, _ = socket.recv_fds(requests, 1 << 17, 1, socket.MSG_CMSG_CLOEXEC)
    if data:
        surroundings = json.loads(data)
        requests.close()
        os.setsid()
        os.chdir(surroundings["cwd"])
        os.environ.clear()
        os.environ.update(surroundings["env"])
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        faulthandler.enable()
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]  # it is a text stream
        Zygote(socket.socket(fileno=fds[0])).run()
    os._exit(0)
