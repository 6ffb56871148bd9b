"""Opens the TLS connections of a pod's relay to the agent, with a token and the first two frames on each."""

from __future__ import annotations

import json
import socket
import ssl

from .framing import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple

SERVER_NAME = "relay.backend.ai"
"""The name in the agent's certificate, which does not depend on the agent's address."""
PROTOCOL = 1
DIAL_TIMEOUT_S = 10.0
_MAX_TOKEN_BYTES = 16 * 1024


class Refused(Exception):
    """Raised when the agent refuses the connection of a pod's relay."""


class TlsSocket:
    """Wraps a TLS connection with the methods of a non-blocking socket. A call that would block raises BlockingIOError.

    One record is read at a time, and whole: nothing is left over that a poll of the descriptor would not show.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock

    def fileno(self) -> int:
        return self._sock.fileno()

    def setblocking(self, is_blocking: bool) -> None:
        self._sock.setblocking(is_blocking)

    def recv(self, size: int) -> bytes:
        try:
            return self._sock.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def send(self, data: Any) -> int:
        try:
            return self._sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def close(self) -> None:
        self._sock.close()


class Dialler:
    """Opens connections from a pod's relay to the agent.

    Args:
        agent_address: host and port of the agents' service.
        authority_pem: the certificate authority of the agents, in PEM.
        token_path: where the platform renews this pod's token.
    """

    def __init__(self, agent_address: Tuple[str, int], authority_pem: str, token_path: str) -> None:
        self._target = agent_address
        self._token_path = token_path
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.load_verify_locations(cadata=authority_pem)

    def dial(self, hello: Dict[str, Any]) -> Tuple[ssl.SSLSocket, Dict[str, Any]]:
        """Connects and introduces this pod; returns the connection and the agent's welcome. Raises OSError, Refused."""
        with open(self._token_path, "rb") as file:
            token = file.read(_MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
        tcp_socket = socket.create_connection(self._target, DIAL_TIMEOUT_S)
        try:
            tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _detect_dead_peers(tcp_socket)
            tls_socket = self._context.wrap_socket(tcp_socket, server_hostname=SERVER_NAME)
        except BaseException:
            tcp_socket.close()
            raise
        try:
            tls_socket.sendall(encode(dict(hello, t="hello", protocol=PROTOCOL, token=token)))
            welcome = _read_frame(tls_socket)
            if welcome.get("t") != "welcome":
                raise Refused(str(welcome.get("reason"))[:200])
        except BaseException:
            tls_socket.close()
            raise
        return tls_socket, welcome


def _detect_dead_peers(sock: socket.socket) -> None:
    """Closes the connection within half a minute if the agent's machine does not answer any more."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option_name, option_value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 30000),
    ):
        option: Optional[int] = getattr(socket, option_name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, option_value)


def _read_frame(sock: ssl.SSLSocket) -> Dict[str, Any]:
    """Reads exactly one frame, and leaves every byte after it. Raises OSError, Refused."""
    header = _read_exactly(sock, 4)
    size = int.from_bytes(header, "big")
    if not 1 <= size <= 65536:
        raise Refused("no frame")
    try:
        message = json.loads(_read_exactly(sock, size))
    except (ValueError, RecursionError):
        raise Refused("no JSON") from None
    if not isinstance(message, dict):
        raise Refused("no object")
    return message


def _read_exactly(sock: ssl.SSLSocket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("the agent closed the connection")
        data += piece
    return data
