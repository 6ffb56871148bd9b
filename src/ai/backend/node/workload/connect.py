"""Connects to ports inside a workload, by a socket that is created in the workload's network.

A process in that network (the relay of a container, a child of a shim) creates the socket and hands it over. A relay
runs as the session's user, so the received descriptor is checked and not trusted.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from ai.backend.common.errors import Unavailable
from ai.backend.node.linux.open_beneath import WALK, open_through_no_link
from ai.backend.node.relay.framing import encode
from ai.backend.plugin.runtime import SERVICE_SOCKETS, PortExposure

_TIMEOUT_S = 5.0
_MAX_ANSWER_BYTES = 4096
_MIN_READ_BYTES, _MAX_READ_BYTES = 16 * 1024, 256 * 1024
_LOOPBACK_ADDRESS = "127.0.0.1"
_LISTENING_STATE = "0A"
_CALL_THREADS = ThreadPoolExecutor(max_workers=16, thread_name_prefix="ports")
"""Separate threads, so that a hostile workload that delays its callers blocks no other work of the agent."""
_MAX_CONCURRENT_CALLS = 2
_SEMAPHORE_OF_WORKLOAD: WeakValueDictionary[Path, asyncio.Semaphore] = WeakValueDictionary()
"""Limits, by workload directory, how many threads a workload can occupy."""


class SocketStream:
    """Implements :class:`~ai.backend.common.wire.link.ByteStream` on a connected socket, which it owns."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[str, asyncio.Future[None]] = {}
        self._read_size = _MIN_READ_BYTES
        self._unsent: deque[memoryview] = deque()
        self._queued_bytes = 0
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
                await self._wait_until_ready("read")
            except OSError as error:
                raise Unavailable(f"the connection was cut: {error.strerror}") from error
            else:
                if len(data) == self._read_size:
                    self._read_size = min(_MAX_READ_BYTES, 4 * self._read_size)
                elif len(data) < self._read_size // 8:
                    self._read_size = max(_MIN_READ_BYTES, self._read_size // 2)
                return data
        raise Unavailable("the connection was cut")

    async def write(self, data: bytes) -> None:
        """Sends data. Returns while a part of the data may still be queued.

        So the caller fetches the next piece meanwhile.
        """
        self._raise_if_cut()
        self._unsent.append(memoryview(data))
        self._queued_bytes += len(data)
        if len(self._unsent) == 1:
            self._flush()
        await self._wait_until_queued(_MAX_READ_BYTES)

    async def write_eof(self) -> None:
        await self._wait_until_queued(0)
        with suppress(OSError):  # the far side has gone already, as whoever reads will hear
            self._sock.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        if self._is_cut:
            return
        self._is_cut = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        for waiter in self._waiters.values():
            _wake_waiter(waiter)
        self._sock.close()

    def detach(self) -> socket.socket:
        """Gives up the socket of an unused stream, and returns the socket to the caller, who must close it."""
        self._is_cut = True
        return self._sock

    def _raise_if_cut(self) -> None:
        if self._failure is not None:
            raise Unavailable(f"the connection was cut: {self._failure}")
        if self._is_cut:
            raise Unavailable("the connection was cut")

    async def _wait_until_queued(self, max_queued_bytes: int) -> None:
        self._raise_if_cut()
        while self._queued_bytes > max_queued_bytes:
            await self._wait_until_ready("write")
            self._raise_if_cut()

    def _flush(self) -> None:
        """Sends as much as the socket takes; the event loop calls again when the socket takes more."""
        try:
            while self._unsent:
                sent_bytes = self._sock.send(self._unsent[0], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self._queued_bytes -= sent_bytes
                if sent_bytes == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][sent_bytes:]
        except (BlockingIOError, InterruptedError):
            if not self._is_waiting_to_send:
                self._is_waiting_to_send = True
                self._loop.add_writer(self._sock, self._flush)
        except OSError as error:
            self._failure = error.strerror or str(error)
            self._unsent.clear()
            self._queued_bytes = 0
        if not self._unsent and self._is_waiting_to_send:
            self._is_waiting_to_send = False
            self._loop.remove_writer(self._sock)
        if (waiter := self._waiters.get("write")) is not None:
            _wake_waiter(waiter)

    async def _wait_until_ready(self, direction: str) -> None:
        waiter = self._waiters[direction] = self._loop.create_future()
        if direction == "read":
            self._loop.add_reader(self._sock, _wake_waiter, waiter)
        try:
            await waiter
        finally:
            self._waiters.pop(direction, None)
            if direction == "read" and not self._is_cut:
                self._loop.remove_reader(self._sock)


def _wake_waiter(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def connect_inside(directory: Path, port: int) -> SocketStream:
    """Connects to 127.0.0.1 in the network of the directory's workload. Raises Unavailable."""
    return SocketStream(await _run_in_thread(directory, _connect_inside, directory, port))


async def connect_on_host(directory: Path, home: Path, port: int, pids: Iterable[int]) -> SocketStream:
    """Connects to a service port of a workload that shares the host's network. Raises Unavailable.

    Connects to the port's unix socket in the workload's home, or to 127.0.0.1 if one of the workload's processes
    listens there.
    """
    return SocketStream(await _run_in_thread(directory, _connect_on_host, home, port, tuple(pids)))


async def exposure_of(directory: Path) -> PortExposure:
    """Returns the exposure of a workload's ports (``PortExposure``), as the workload's shim or relay reports it.

    Raises Unavailable.
    """
    exposure: PortExposure = await _run_in_thread(directory, _exposure_of, directory)
    return exposure


async def _run_in_thread(directory: Path, call: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a blocking call for a workload in a thread, with a limit of concurrent calls per workload.

    Raises Unavailable if earlier calls take too long.
    """
    turn_semaphore = _SEMAPHORE_OF_WORKLOAD.setdefault(directory, asyncio.Semaphore(_MAX_CONCURRENT_CALLS))
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await turn_semaphore.acquire()
    except TimeoutError:
        raise Unavailable("the workload does not answer those who asked before") from None
    try:
        call_future = asyncio.get_running_loop().run_in_executor(_CALL_THREADS, call, *arguments)
    except BaseException:
        turn_semaphore.release()
        raise
    call_future.add_done_callback(lambda _: turn_semaphore.release())  # the thread is free, not the caller gone
    try:
        return await asyncio.shield(call_future)
    except asyncio.CancelledError:
        call_future.add_done_callback(_close_unused)
        raise


def _close_unused(call_future: asyncio.Future[Any]) -> None:
    if (
        not call_future.cancelled()
        and call_future.exception() is None
        and isinstance(call_future.result(), socket.socket)
    ):
        call_future.result().close()


def _exposure_of(directory: Path) -> PortExposure:
    exposure, sock = _request_socket(directory)
    if sock is not None:
        sock.close()
    return exposure


def _connect_inside(directory: Path, port: int) -> socket.socket:
    try:
        _, sock = _request_socket(directory)
    except _SocketRefused:
        return _request_connection(directory, port)
    if sock is None:
        raise Unavailable("the workload has no network of its own")
    return _connect_to_loopback(sock, port)


def _connect_on_host(home: Path, port: int, pids: tuple[int, ...]) -> socket.socket:
    service_socket = _connect_in_home(home, port)
    if service_socket is not None:
        return service_socket
    listener_inodes = listeners_of(port)
    if not listener_inodes or not listener_inodes <= sockets_of(pids):
        raise Unavailable(f"nothing of this session listens on port {port}")
    return _connect_to_loopback(socket.socket(socket.AF_INET, socket.SOCK_STREAM), port)


def _connect_in_home(home: Path, port: int) -> socket.socket | None:
    """Connects to the unix socket of a service in a workload's home. Returns None if there is no socket.

    Follows no link, since the session writes in the home. Raises Unavailable if the service does not answer.
    """
    try:
        home_fd = os.open(home, WALK)
        try:
            socket_fd = open_through_no_link(home_fd, (SERVICE_SOCKETS, str(port)), os.O_PATH)
        finally:
            os.close(home_fd)
    except OSError:
        return None
    try:
        if not stat.S_ISSOCK(os.fstat(socket_fd).st_mode):
            return None
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(_TIMEOUT_S)
            sock.connect(f"/proc/self/fd/{socket_fd}")
        except OSError as error:
            sock.close()
            raise Unavailable(f"the service at port {port} does not answer ({error.strerror or error})") from error
        return sock
    finally:
        os.close(socket_fd)


def _connect_to_loopback(sock: socket.socket, port: int) -> socket.socket:
    try:
        sock.settimeout(_TIMEOUT_S)
        sock.connect((_LOOPBACK_ADDRESS, port))
    except OSError as error:
        sock.close()
        reason = error.strerror or "no answer"
        raise Unavailable(f"nothing listens on port {port} of the workload ({reason})") from error
    return sock


class _SocketRefused(Unavailable):
    """Raised when a relay or shim cannot hand over a socket, as under gVisor."""


def _request_socket(directory: Path) -> tuple[PortExposure, socket.socket | None]:
    deadline = time.monotonic() + _TIMEOUT_S
    try:
        with _reach_relay(directory, deadline) as relay_socket:
            relay_socket.sendall(encode({"t": "socket"}))
            answer, sock = _receive_answer(relay_socket, deadline)
    except (OSError, ValueError, RecursionError) as error:
        raise Unavailable("the workload's relay does not answer") from error
    if answer.get("t") != "socket":
        if sock is not None:
            sock.close()
        raise _SocketRefused(f"there is no way into the workload's network: {str(answer.get('reason'))[:200]}")
    return PortExposure.PRIVATE if sock is not None else PortExposure.HOST, sock


def _request_connection(directory: Path, port: int) -> socket.socket:
    """Asks the relay to connect to the port and to copy the bytes; returns the connection to the relay."""
    deadline = time.monotonic() + _TIMEOUT_S
    try:
        with _reach_relay(directory, deadline) as relay_socket:
            relay_socket.sendall(encode({"t": "connect", "port": port}))
            # Not a byte more than the answer: the service may speak first.
            length = int.from_bytes(_receive_exactly(relay_socket, 4, deadline), "big")
            if length > _MAX_ANSWER_BYTES:
                raise ValueError("too long an answer")
            answer = json.loads(_receive_exactly(relay_socket, length, deadline))
            if isinstance(answer, dict) and answer.get("t") == "connected":
                return relay_socket.dup()
    except (OSError, ValueError, RecursionError) as error:
        raise Unavailable("there is no way into the workload's network") from error
    reason = str(answer.get("reason"))[:200] if isinstance(answer, dict) else "no answer"
    raise Unavailable(f"nothing listens on port {port} of the workload ({reason})")


@contextmanager
def _reach_relay(directory: Path, deadline: float) -> Iterator[socket.socket]:
    """Yields a socket that is connected to the relay or shim of a workload, for one question. Raises OSError."""
    directory_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as relay_socket:
            _limit_wait(relay_socket, deadline)
            relay_socket.connect(f"/proc/self/fd/{directory_fd}/shim.sock")
            _limit_wait(relay_socket, deadline)
            yield relay_socket
    finally:
        os.close(directory_fd)


def _receive_exactly(relay_socket: socket.socket, length: int, deadline: float) -> bytes:
    received_bytes = bytearray()
    while len(received_bytes) < length:
        _limit_wait(relay_socket, deadline)
        chunk = relay_socket.recv(length - len(received_bytes))
        if not chunk:
            raise ConnectionResetError
        received_bytes += chunk
    return bytes(received_bytes)


def _limit_wait(relay_socket: socket.socket, deadline: float) -> None:
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    relay_socket.settimeout(remaining_s)


def _receive_answer(relay_socket: socket.socket, deadline: float) -> tuple[dict[str, Any], socket.socket | None]:
    """Receives the relay's answer to a request, and the socket that the relay hands over.

    Raises OSError, ValueError, RecursionError.
    """
    answer_bytes = bytearray()
    handed_fds: list[int] = []
    try:
        while len(answer_bytes) < 4 or len(answer_bytes) < 4 + int.from_bytes(answer_bytes[:4], "big"):
            _limit_wait(relay_socket, deadline)
            chunk, ancillary, _, _ = relay_socket.recvmsg(
                _MAX_ANSWER_BYTES - len(answer_bytes), socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC
            )
            for message_level, message_type, message_data in ancillary:
                if message_level == socket.SOL_SOCKET and message_type == socket.SCM_RIGHTS:
                    handed_fds.append(int.from_bytes(message_data[:4], sys.byteorder))
            if not chunk:
                raise ConnectionResetError
            answer_bytes += chunk
        answer = json.loads(bytes(answer_bytes[4:]))
        if not isinstance(answer, dict):
            raise ValueError("no object")
        return answer, _adopt_socket(handed_fds)
    finally:
        for fd in handed_fds:
            os.close(fd)


def _adopt_socket(handed_fds: list[int]) -> socket.socket | None:
    """Turns the single handed-over descriptor into a socket. Raises ValueError for other descriptors."""
    if not handed_fds:
        return None
    sock = socket.socket(fileno=handed_fds.pop())
    if (sock.family, sock.type & 0xF) != (socket.AF_INET, socket.SOCK_STREAM) or handed_fds:
        sock.close()
        raise ValueError("something else was handed over")
    return sock


def listeners_of(port: int) -> frozenset[int]:
    """Returns the inode numbers of the host's sockets that may listen on a port of 127.0.0.1.

    IPv6 sockets count only if no IPv4 socket listens on the port.
    """
    local_addresses = {"0100007F", "00000000", "0" * 32, "0000000000000000FFFF00000100007F"}
    inodes: set[int] = set()
    for table_name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table_name).read_text().splitlines()[1:]:
                fields = line.split()
                address, _, port_text = fields[1].partition(":")
                if fields[3] == _LISTENING_STATE and int(port_text, 16) == port and address in local_addresses:
                    inodes.add(int(fields[9]))
        if inodes:
            break
    return frozenset(inodes)


def sockets_of(pids: Iterable[int]) -> frozenset[int]:
    """Returns the inodes of the sockets that these processes hold. Processes that cannot be read are left out."""
    inodes: set[int] = set()
    for pid in pids:
        with suppress(OSError):
            for fd_name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208  # names, not paths
                with suppress(OSError):
                    link_target = os.readlink(f"/proc/{pid}/fd/{fd_name}")  # noqa: PTH115  # as above
                    if link_target.startswith("socket:["):
                        inodes.add(int(link_target[8:-1]))
    return frozenset(inodes)
