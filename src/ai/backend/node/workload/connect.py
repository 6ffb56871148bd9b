"""Connects to ports inside a workload, by a socket that is created in the workload's network.

A process in that network (the relay of a container, a child of a shim) creates the socket and hands it over. A relay
runs as the session's user, so the received descriptor is checked and not trusted.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from ai.backend.common.errors import Unavailable
from ai.backend.node.relay.framing import encode
from ai.backend.plugin.runtime import PortExposure

_TIMEOUT_S = 5.0
_ANSWER_BYTES = 4096
_LEAST, _MOST = 16 * 1024, 256 * 1024
_LOOPBACK = "127.0.0.1"
_LISTENING = "0A"
_PROBES = ThreadPoolExecutor(max_workers=16, thread_name_prefix="ports")
"""Separate threads, so that a hostile workload that delays its callers blocks no other work of the agent."""
_AT_ONCE = 2
_TURNS: WeakValueDictionary[Path, asyncio.Semaphore] = WeakValueDictionary()
"""Limits, by workload directory, how many threads a workload can occupy."""


class SocketStream:
    """A :class:`~ai.backend.common.wire.link.ByteStream` on a connected socket, which it owns."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[str, asyncio.Future[None]] = {}
        self._read_size = _LEAST
        self._unsent: deque[memoryview] = deque()
        self._queued = 0
        self._is_waiting_to_send = False
        self._failure: str | None = None
        self._is_cut = False
        sock.setblocking(False)
        with suppress(OSError):  # a unix socket has none
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def read(self) -> bytes:
        while not self._is_cut:
            try:
                data = self._sock.recv(self._read_size, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                await self._until("read")
            except OSError as error:
                raise Unavailable(f"the connection was cut: {error.strerror}") from error
            else:
                if len(data) == self._read_size:
                    self._read_size = min(_MOST, 4 * self._read_size)
                elif len(data) < self._read_size // 8:
                    self._read_size = max(_LEAST, self._read_size // 2)
                return data
        raise Unavailable("the connection was cut")

    async def write(self, data: bytes) -> None:
        """Sends data. Returns while a little is still queued, so that the next piece is fetched meanwhile."""
        self._require_uncut()
        self._unsent.append(memoryview(data))
        self._queued += len(data)
        if len(self._unsent) == 1:
            self._flush()
        await self._until_queued(_MOST)

    async def write_eof(self) -> None:
        await self._until_queued(0)
        with suppress(OSError):  # the far side has gone already, as whoever reads will hear
            self._sock.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        if self._is_cut:
            return
        self._is_cut = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        for waiter in self._waiters.values():
            _wake(waiter)
        self._sock.close()

    def _require_uncut(self) -> None:
        if self._failure is not None:
            raise Unavailable(f"the connection was cut: {self._failure}")
        if self._is_cut:
            raise Unavailable("the connection was cut")

    async def _until_queued(self, limit: int) -> None:
        self._require_uncut()
        while self._queued > limit:
            await self._until("write")
            self._require_uncut()

    def _flush(self) -> None:
        """Sends what the socket takes; the loop calls again when it takes more."""
        try:
            while self._unsent:
                sent = self._sock.send(self._unsent[0], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self._queued -= sent
                if sent == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][sent:]
        except (BlockingIOError, InterruptedError):
            if not self._is_waiting_to_send:
                self._is_waiting_to_send = True
                self._loop.add_writer(self._sock, self._flush)
        except OSError as error:
            self._failure = error.strerror or str(error)
            self._unsent.clear()
            self._queued = 0
        if not self._unsent and self._is_waiting_to_send:
            self._is_waiting_to_send = False
            self._loop.remove_writer(self._sock)
        if (waiter := self._waiters.get("write")) is not None:
            _wake(waiter)

    async def _until(self, what: str) -> None:
        waiter = self._waiters[what] = self._loop.create_future()
        if what == "read":
            self._loop.add_reader(self._sock, _wake, waiter)
        try:
            await waiter
        finally:
            self._waiters.pop(what, None)
            if what == "read" and not self._is_cut:
                self._loop.remove_reader(self._sock)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def connect_inside(directory: Path, port: int) -> SocketStream:
    """Connects to 127.0.0.1 in the network of the directory's workload. Raises Unavailable."""
    return SocketStream(await _in_thread(directory, _connect_inside, directory, port))


async def connect_on_host(directory: Path, port: int, pids: Iterable[int]) -> SocketStream:
    """Connects to 127.0.0.1 on the host if one of the workload's processes listens there. Raises Unavailable."""
    return SocketStream(await _in_thread(directory, _connect_on_host, port, tuple(pids)))


async def exposure_of(directory: Path) -> PortExposure:
    """Returns in which network a workload is, as its shim or relay reports. Raises Unavailable."""
    exposure: PortExposure = await _in_thread(directory, _exposure_of, directory)
    return exposure


async def _in_thread(directory: Path, call: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a call when it is the workload's turn. Raises Unavailable if the calls before it take too long."""
    turns = _TURNS.setdefault(directory, asyncio.Semaphore(_AT_ONCE))
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await turns.acquire()
    except TimeoutError:
        raise Unavailable("the workload does not answer those who asked before") from None
    try:
        working = asyncio.get_running_loop().run_in_executor(_PROBES, call, *arguments)
    except BaseException:
        turns.release()
        raise
    working.add_done_callback(lambda _: turns.release())  # when the thread is free, not when the caller has gone
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        working.add_done_callback(_discard)
        raise


def _discard(working: asyncio.Future[Any]) -> None:
    if not working.cancelled() and working.exception() is None and isinstance(working.result(), socket.socket):
        working.result().close()


def _exposure_of(directory: Path) -> PortExposure:
    exposure, sock = _request_socket(directory)
    if sock is not None:
        sock.close()
    return exposure


def _connect_inside(directory: Path, port: int) -> socket.socket:
    _, sock = _request_socket(directory)
    if sock is None:
        raise Unavailable("the workload has no network of its own")
    return _connected(sock, port)


def _connect_on_host(port: int, pids: tuple[int, ...]) -> socket.socket:
    listeners = listeners_of(port)
    if not listeners or not listeners <= sockets_of(pids):
        raise Unavailable(f"nothing of this session listens on port {port}")
    return _connected(socket.socket(socket.AF_INET, socket.SOCK_STREAM), port)


def _connected(sock: socket.socket, port: int) -> socket.socket:
    try:
        sock.settimeout(_TIMEOUT_S)
        sock.connect((_LOOPBACK, port))
    except OSError as error:
        sock.close()
        reason = error.strerror or "no answer"
        raise Unavailable(f"nothing listens on port {port} of the workload ({reason})") from error
    return sock


def _request_socket(directory: Path) -> tuple[PortExposure, socket.socket | None]:
    deadline = time.monotonic() + _TIMEOUT_S
    try:
        handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
                _limit(line, deadline)
                line.connect(f"/proc/self/fd/{handle}/shim.sock")
                _limit(line, deadline)
                line.sendall(encode({"t": "socket"}))
                answer, sock = _receive(line, deadline)
        finally:
            os.close(handle)
    except (OSError, ValueError, RecursionError) as error:
        raise Unavailable("the workload's relay does not answer") from error
    if answer.get("t") != "socket":
        if sock is not None:
            sock.close()
        raise Unavailable(f"there is no way into the workload's network: {str(answer.get('reason'))[:200]}")
    return PortExposure.PRIVATE if sock is not None else PortExposure.HOST, sock


def _limit(line: socket.socket, deadline: float) -> None:
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    line.settimeout(remaining_s)


def _receive(line: socket.socket, deadline: float) -> tuple[dict[str, Any], socket.socket | None]:
    """Returns the answer and its descriptors until the deadline. Raises OSError, ValueError, RecursionError."""
    data = bytearray()
    handed: list[int] = []
    try:
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            _limit(line, deadline)
            piece, ancillary, _, _ = line.recvmsg(
                _ANSWER_BYTES - len(data), socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC
            )
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    handed.append(int.from_bytes(content[:4], sys.byteorder))
            if not piece:
                raise ConnectionResetError
            data += piece
        answer = json.loads(bytes(data[4:]))
        if not isinstance(answer, dict):
            raise ValueError("no object")
        return answer, _adopt(handed)
    finally:
        for fd in handed:
            os.close(fd)


def _adopt(handed: list[int]) -> socket.socket | None:
    """Takes the single socket of the right kind from the list. Raises ValueError."""
    if not handed:
        return None
    sock = socket.socket(fileno=handed.pop())
    if (sock.family, sock.type & 0xF) != (socket.AF_INET, socket.SOCK_STREAM) or handed:
        sock.close()
        raise ValueError("something else was handed over")
    return sock


def listeners_of(port: int) -> frozenset[int]:
    """Returns inodes of the host's sockets that may listen on a port of 127.0.0.1; IPv6 only without any of IPv4."""
    local = {"0100007F", "00000000", "0" * 32, "0000000000000000FFFF00000100007F"}
    inodes: set[int] = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                address, _, number = fields[1].partition(":")
                if fields[3] == _LISTENING and int(number, 16) == port and address in local:
                    inodes.add(int(fields[9]))
        if inodes:
            break
    return frozenset(inodes)


def sockets_of(pids: Iterable[int]) -> frozenset[int]:
    """Returns inodes of the sockets that these processes hold; unreadable processes have none."""
    inodes: set[int] = set()
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208  # names, not paths
                with suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115  # as above
                    if target.startswith("socket:["):
                        inodes.add(int(target[8:-1]))
    return frozenset(inodes)
