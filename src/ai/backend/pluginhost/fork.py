"""Starts the zygote when a host is first needed, and again after its death, and requests hosts of it."""

from __future__ import annotations

import asyncio
import atexit
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
_END_S = 2.0


class HostChild:
    """The process of a host. Its pid is not reused until :meth:`release`."""

    def __init__(self, pid: int, life: socket.socket) -> None:
        self.pid = pid
        self._life = life
        self._end = asyncio.create_task(_next_number(life), name=f"end of host {pid}")

    @property
    def has_ended(self) -> bool:
        return self._end.done()

    async def wait(self) -> int:
        """Waits for the exit status, negative for a signal."""
        status = await asyncio.shield(self._end)
        return -signal.SIGKILL if status is None else status  # without its zygote the kernel kills a host

    async def release(self) -> None:
        """Has the process reaped, and killed if it lives. Safe twice."""
        if self._life.fileno() < 0:
            return
        try:
            with suppress(OSError):  # its zygote is gone
                self._life.shutdown(socket.SHUT_WR)
            await self._end
            await _next_number(self._life)
        finally:
            self._life.close()


async def fork_host(calls: int, choices: int, output: int, environment: Mapping[str, str]) -> HostChild:
    """Returns a host on these descriptors, which stay the caller's. Raises OSError if there can be no process."""
    life, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs:
            _request([calls, choices, output, theirs.fileno()], environment)
        life.setblocking(False)
        if (pid := await _next_number(life)) is None:
            raise OSError("its process could not be started")
        return HostChild(pid, life)
    except BaseException:
        life.close()
        raise


async def _next_number(life: socket.socket) -> int | None:
    """Reads the next number from the zygote; None at its end."""
    try:
        message = await asyncio.get_running_loop().sock_recv(life, 64)
    except ConnectionError:
        return None
    return int(message) if message else None


def spawn(requests: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Returns the process of a zygote, which reads from the descriptor ``requests``."""
    return subprocess.Popen(
        [sys.executable, "-m", "ai.backend.pluginhost", str(requests)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[requests],
        env=dict(environment),
        start_new_session=True,
    )


class _Zygote:
    """A zygote that inherits the working directory and the environment of this process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.inherited_state = _inherited_state(environment)
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.process = spawn(theirs.fileno(), environment)
        except BaseException:
            self._requests.close()
            raise
        finally:
            theirs.close()

    def request(self, fds: Sequence[int]) -> None:
        """Raises OSError if it is gone."""
        socket.send_fds(self._requests, [_REQUEST], fds)

    def retire(self) -> None:
        """Lets the zygote end with the last of its hosts. Safe twice."""
        self._requests.close()


_lock = threading.Lock()
_zygotes: list[_Zygote] = []
"""Hosts are asked of the last one; the others end with theirs."""


def _inherited_state(environment: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    return str(Path.cwd()), dict(environment)


def _request(fds: Sequence[int], environment: Mapping[str, str]) -> None:
    """Asks the last zygote, or a new one if that has died or inherited other values. Raises OSError."""
    with _lock:
        for dead in [one for one in _zygotes if one.process.poll() is not None]:
            dead.retire()
            _zygotes.remove(dead)
        if _zygotes and _zygotes[-1].inherited_state == _inherited_state(environment):
            try:
                return _zygotes[-1].request(fds)
            except OSError:
                _zygotes[-1].process.kill()
        for one in _zygotes:
            one.retire()
        _zygotes.append(_Zygote(environment))
        return _zygotes[-1].request(fds)


@atexit.register
def _end_all() -> None:
    for zygote in _zygotes:
        zygote.retire()
    for zygote in _zygotes:
        try:
            zygote.process.wait(_END_S)
        except subprocess.TimeoutExpired:  # somebody else holds its socket, or a process that cannot be killed
            zygote.process.kill()
            zygote.process.wait()
