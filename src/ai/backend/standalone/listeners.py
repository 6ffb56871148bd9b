"""Listening sockets of the embedded cluster."""

from __future__ import annotations

import socket

from ai.backend.common.errors import Conflict


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket; the caller owns it. Raises Conflict if the port is taken or the address is not
    ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(1024)
        sock.setblocking(False)
    except OSError as e:
        sock.close()
        raise Conflict(f"Cannot listen on {host}:{port}: {e.strerror}. Name another one with --port.") from None
    return sock
