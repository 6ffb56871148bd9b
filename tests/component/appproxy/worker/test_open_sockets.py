"""Connections of another process are ended, whichever family of addresses its listener has."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ai.backend.appproxy.worker.planes.traefik.sockets import open_sockets, shut_down

_SERVER = """
import socket, sys
server = socket.socket(getattr(socket, sys.argv[1]), socket.SOCK_STREAM)
if sys.argv[1] == "AF_INET6":
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.bind((sys.argv[2], 0))
server.listen()
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
connection.send(b"x")
connection.recv(1)
sys.stdin.read()
"""


@contextmanager
def serving(family: str, host: str) -> Iterator[tuple[int, int]]:
    """Yields the process id and the port of a server that accepts one connection."""
    command = [sys.executable, "-c", _SERVER, family, host]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.kill()


@pytest.mark.parametrize(("family", "host"), [("AF_INET", "127.0.0.1"), ("AF_INET6", "::")])
def test_a_connection_by_ipv4_is_ended(family: str, host: str) -> None:
    with serving(family, host) as (pid, port), socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(10.0)
        assert client.recv(1) == b"x"
        (accepted,) = open_sockets(pid)
        assert accepted.remote == client.getsockname()
        assert shut_down(pid, [accepted]) == 1
        assert client.recv(1) == b"", "the other side has ended"
