"""Requests host processes from a zygote, which is started when a host is first needed, and again after its death."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

# Written out here, too: what forks hosts is not imported where none runs.
_REQUEST = b"host"
_ZYGOTE_END_S = 2.0


class HostChild:
    """Represents a host's process, which can be waited for and released.

    The pid is not reused until :meth:`release`.
    """

    def __init__(self, pid: int, life_socket: socket.socket) -> None:
        self.pid = pid
        self._life = life_socket
        self._end = asyncio.create_task(_next_number(life_socket), name=f"end of host {pid}")

    @property
    def has_ended(self) -> bool:
        return self._end.done()

    async def wait(self) -> int:
        """Waits for the end of the host and returns its exit status, negative for a signal."""
        status = await asyncio.shield(self._end)
        return -signal.SIGKILL if status is None else status  # without its zygote the kernel kills a host

    async def release(self) -> None:
        """Kills the host's process if it lives, and reaps it. May be called twice."""
        if self._life.fileno() < 0:
            return
        try:
            with suppress(OSError):  # its zygote is gone
                self._life.shutdown(socket.SHUT_WR)
            await self._end
            await _next_number(self._life)
        finally:
            self._life.close()


async def fork_host(
    calls_fd: int, choices_fd: int, output_fd: int, environment: Mapping[str, str], program: str = ""
) -> HostChild:
    """Starts a host process that uses the given descriptors, which the caller still owns.

    With ``program``, the path of an executable, that is the host. Raises OSError if no process can be started.
    """
    life_socket, zygote_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with zygote_socket:
            _request_host([calls_fd, choices_fd, output_fd, zygote_socket.fileno()], environment, program)
        life_socket.setblocking(False)
        if (pid := await _next_number(life_socket)) is None:
            raise OSError("its process could not be started")
        return HostChild(pid, life_socket)
    except BaseException:
        life_socket.close()
        raise


async def _next_number(life_socket: socket.socket) -> int | None:
    """Receives the zygote's next number about one host: first the pid, then the exit status. None at the end."""
    try:
        number_text = await asyncio.get_running_loop().sock_recv(life_socket, 64)
    except ConnectionError:
        return None
    return int(number_text) if number_text else None


def spawn(requests_fd: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a zygote, which reads requests from the descriptor ``requests_fd``, and returns its process."""
    return subprocess.Popen(
        [sys.executable, "-m", "ai.backend.pluginhost", str(requests_fd)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[requests_fd],
        env=dict(environment),
        start_new_session=True,
    )


class _Zygote:
    """Starts a zygote process, and sends it requests for hosts.

    The zygote inherits the working directory and the environment of this process.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.inherited_state = _inherited_state(environment)
        self._requests, zygote_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.process = spawn(zygote_socket.fileno(), environment)
        except BaseException:
            self._requests.close()
            raise
        finally:
            zygote_socket.close()

    def request(self, fds: Sequence[int], program: str) -> None:
        """Requests a host on these descriptors from the zygote. Raises OSError if the zygote is gone."""
        request = _REQUEST + b"\0" + os.fsencode(program) if program else _REQUEST
        socket.send_fds(self._requests, [request], fds)

    def retire(self) -> None:
        """Makes the zygote end with the last of its hosts. May be called twice."""
        self._requests.close()


_zygotes_lock = threading.Lock()
_zygotes: list[_Zygote] = []
"""The living zygotes. Hosts are requested from the last one; the others end with their last host."""


def _inherited_state(environment: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    return str(Path.cwd()), dict(environment)


def _request_host(fds: Sequence[int], environment: Mapping[str, str], program: str) -> None:
    """Requests a host from the last zygote, or from a new one. Raises OSError.

    A new zygote is started if the last one died or inherited other values.
    """
    with _zygotes_lock:
        for ended_zygote in [zygote for zygote in _zygotes if zygote.process.poll() is not None]:
            ended_zygote.retire()
            _zygotes.remove(ended_zygote)
        if _zygotes and _zygotes[-1].inherited_state == _inherited_state(environment):
            try:
                return _zygotes[-1].request(fds, program)
            except OSError:
                _zygotes[-1].process.kill()
        for zygote in _zygotes:
            zygote.retire()
        _zygotes.append(_Zygote(environment))
        return _zygotes[-1].request(fds, program)


@atexit.register
def _retire_zygotes() -> None:
    for zygote in _zygotes:
        zygote.retire()
    for zygote in _zygotes:
        try:
            zygote.process.wait(_ZYGOTE_END_S)
        except subprocess.TimeoutExpired:  # somebody else holds its socket, or a process that cannot be killed
            zygote.process.kill()
            zygote.process.wait()
