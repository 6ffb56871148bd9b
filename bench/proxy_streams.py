"""Measures what the embedded data plane of the app proxy makes of long connections: the bytes of a TCP circuit, and the
memory of idle WebSockets to direct addresses."""

from __future__ import annotations

import base64
import os
import resource
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from bench.figures import Figure, benchmark
from bench.gateway import Way, started, throughput
from bench.processes import resident_mib
from bench.proxy import server

IDLE, MAX_IDLE_MB = 10_000, 400.0
_DESCRIPTORS = 65_536
_SHARE_FOR_CLIENTS = 0.37
"""The plane has two descriptors for each WebSocket, in three quarters of all."""


@benchmark("proxy-streams", f"bytes of a TCP circuit beside a bare relay; memory of {IDLE:,} idle WebSockets")
def proxy_streams() -> Sequence[Figure]:
    with ExitStack() as stack:
        service = stack.enter_context(started("bench.gateway_service"))
        assert service.stdout is not None
        port = service.stdout.readline().strip()
        ours, relay = (Way(*stack.enter_context(server(kind, port))) for kind in ("tcp", "relay"))
        bytes_of_circuit = throughput("proxy-tcp", ours, relay, "a bare relay on asyncio's streams")
    return [bytes_of_circuit, _idle_memory()]


def _idle_memory() -> Figure:
    with suppress(ValueError, OSError):  # root may; others have what they have
        resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the servers inherit it
    count = min(IDLE, int(most * _SHARE_FOR_CLIENTS))
    with server("engine") as (_, app), server("plane", str(app)) as (pid, port):
        before, sockets = resident_mib(pid), []
        try:
            for _ in range(count):
                sockets.append(_websocket(port))
            after = resident_mib(pid)
        finally:
            for each in sockets:
                each.close()
    megabytes = after * IDLE / count * (1 << 20) / 1e6
    return Figure(
        name="proxy-idle-memory",
        value=megabytes,
        unit="MB",
        target=f"<= {MAX_IDLE_MB:.0f} MB, the whole process with {IDLE:,} idle WebSockets",
        holds=megabytes <= MAX_IDLE_MB,
        detail={"connections": float(count), "mib-before": before, "mib-after": after},
    )


def _websocket(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    key = base64.b64encode(os.urandom(16)).decode()
    sock.sendall(
        f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    if not (reply := sock.recv(4096)).startswith(b"HTTP/1.1 101"):
        raise RuntimeError(f"the proxy answers {reply[:40]!r}")
    return sock
