"""Sends and receives frames over the connections of a relay, without ever blocking."""

from __future__ import annotations

import _socket

from .framing import FrameReader, encode
from .light import Socket, deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RECEIVE_BYTES = 256 * 1024


class Peer:
    """Sends and receives frames over one non-blocking stream socket, with a queue of unsent bytes.

    The socket may be an object that behaves like one (:class:`tls.TlsSocket`).
    """

    def __init__(self, sock: Any) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.reader = FrameReader()
        self._unsent: deque[memoryview] = deque()
        self.queued = 0
        self.is_open = True

    def fileno(self) -> int:
        fd: int = self.sock.fileno()
        return fd

    def receive(self) -> bytes | None:
        """Returns received bytes; None at the end of the stream."""
        try:
            data = self.sock.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError:
            return None
        return data or None

    def send(self, frame: bytes) -> None:
        """Queues a frame and writes as many queued bytes as the socket takes now."""
        self._unsent.append(memoryview(frame))
        self.queued += len(frame)
        self.flush()

    def flush(self) -> bool:
        """Writes as many queued bytes as the socket takes; returns False if the peer is gone."""
        while self._unsent:
            try:
                written_bytes = self.sock.send(self._unsent[0])
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                self._unsent.clear()
                self.queued = 0
                self.is_open = False
                return False
            self.queued -= written_bytes
            if written_bytes == len(self._unsent[0]):
                self._unsent.popleft()
            else:
                self._unsent[0] = self._unsent[0][written_bytes:]
        return True

    def close(self) -> None:
        self.is_open = False
        self.sock.close()


def hand_over_socket(peer: Peer) -> None:
    """Sends the agent a new socket of this process's network, or the reason of the failure."""
    import array

    try:
        new_socket = Socket(_socket.AF_INET, _socket.SOCK_STREAM)
        try:
            descriptor_array = array.array("i", [new_socket.fileno()])
            peer.sock.sendmsg([encode({"t": "socket"})], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptor_array)])
        finally:
            new_socket.close()
    except OSError as error:
        peer.send(encode({"t": "refused", "reason": str(error)}))
