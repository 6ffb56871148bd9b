"""Copies bytes between a port inside a pod and a separate connection to the agent.

Between agent and relay each piece has its length before it (4 bytes, big-endian, at most 256 KiB), and an empty piece
is the end of a direction, as TLS has no such end in asyncio.
"""

from __future__ import annotations

import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Dict, Optional

MAX_PIECE_BYTES = 256 * 1024
_PIECE_BYTES = 64 * 1024
_BUFFER_BYTES = 256 * 1024


def pack_piece(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


class PieceReader:
    """Splits a byte stream into pieces, each behind its length in 4 bytes. Unlike frames, pieces may be empty."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields every complete piece. Raises ConnectionAbortedError for a length that no sender uses."""
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if size > MAX_PIECE_BYTES:
                raise ConnectionAbortedError("a piece is too large")
            if len(self._buffer) < 4 + size:
                return
            piece = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            yield piece


class Pump:
    """Copies bytes in both directions between a local socket and the connection to the agent.

    The connection has the methods of a socket.
    """

    def __init__(self, local: socket.socket, remote: Any) -> None:
        self._local = local
        self._remote = remote
        self._reader = PieceReader()
        self._to_local = bytearray()
        self._to_remote = bytearray()
        self._local_ended = False
        self._remote_ended = False
        self._is_local_gone = False

    def run(self) -> None:
        """Copies until both directions have ended. Raises OSError if a side is cut."""
        self._local.setblocking(False)
        self._remote.setblocking(False)
        is_shut = False
        while not (self._local_ended and (self._remote_ended or self._is_local_gone) and not self._unsent()):
            self._wait()
            _send(self._remote, self._to_remote)
            if not self._is_local_gone:
                _send(self._local, self._to_local)
            if self._remote_ended and not self._to_local and not is_shut and not self._is_local_gone:
                is_shut = True
                self._local.shutdown(socket.SHUT_WR)

    def _unsent(self) -> int:
        return len(self._to_remote) + (0 if self._is_local_gone else len(self._to_local))

    def _wait(self) -> None:
        poll = select.poll()
        reads_local = not self._local_ended and len(self._to_remote) <= _BUFFER_BYTES
        reads_remote = not self._remote_ended and len(self._to_local) <= _BUFFER_BYTES
        if not self._is_local_gone:
            poll.register(self._local, _poll_events(reads_local, self._to_local))
        poll.register(self._remote, _poll_events(reads_remote, self._to_remote))
        events_by_fd: Dict[int, int] = dict(poll.poll())
        local_events = events_by_fd.get(self._local.fileno(), 0)
        if local_events & ~select.POLLOUT:
            if self._local_ended:
                self._is_local_gone = True
            elif reads_local:
                self._read_local()
        if events_by_fd.get(self._remote.fileno(), 0) & ~select.POLLOUT:
            self._read_remote()

    def _read_local(self) -> None:
        received_bytes = _receive(self._local)
        if received_bytes is not None:
            self._to_remote += pack_piece(received_bytes)
            self._local_ended = not received_bytes

    def _read_remote(self) -> None:
        received_bytes = _receive(self._remote)
        if received_bytes == b"":
            raise ConnectionResetError("the agent cut the stream")
        for piece in self._reader.feed(received_bytes or b""):
            self._remote_ended = self._remote_ended or not piece
            self._to_local += piece


def _poll_events(is_reading: bool, unsent_data: bytearray) -> int:
    return (select.POLLIN if is_reading else 0) | (select.POLLOUT if unsent_data else 0)


def _receive(sock: Any) -> Optional[bytes]:
    """Returns the bytes that have arrived: None if there are none yet, empty at the end. Raises OSError."""
    try:
        data: bytes = sock.recv(_PIECE_BYTES)
    except (BlockingIOError, InterruptedError):
        return None
    return data


def _send(sock: Any, queue: bytearray) -> None:
    while queue:
        try:
            sent_bytes = sock.send(bytes(queue[:_PIECE_BYTES]))
        except (BlockingIOError, InterruptedError):
            return
        del queue[:sent_bytes]
