"""Measures the agent's service gateway beside a bare TLS relay on asyncio, and what idle connections cost it."""

from __future__ import annotations

import json
import os
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ai.backend.infra.tls.certificates import TlsIdentity, create_authority, create_request, issue_client_certificate
from ai.backend.infra.tls.contexts import pinned_client_context
from bench.figures import Figure, benchmark
from bench.processes import resident_mib

ROUNDS = 5
SIZE = 128 << 20
PIECE = 256 << 10
ECHOES = 500
IDLE, IDLE_OF_RELAY = 10_000, 1_000
TARGET = 0.7


@dataclass(frozen=True, slots=True)
class Way:
    """A server that leads to the service, and how clients reach it: without ``context`` not by TLS."""

    pid: int
    port: int
    name: str = ""
    context: ssl.SSLContext | None = None

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock if self.context is None else self.context.wrap_socket(sock, server_hostname=self.name)

    def cpu_seconds(self) -> float:
        with open(f"/proc/{self.pid}/stat") as file:  # often
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-m", *command]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def way(kind: str, service: str, authority: TlsIdentity) -> Iterator[Way]:
    key, request = create_request("worker")
    identity = TlsIdentity(key, issue_client_certificate(authority, request, "worker"))
    with started("bench.gateway_server", kind, service) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(authority.certificate)
        process.stdin.flush()
        route: dict[str, Any] = json.loads(process.stdout.readline())
        context = pinned_client_context(route["certificate"], identity)
        yield Way(process.pid, route["port"], route["name"], context)


@contextmanager
def ways() -> Iterator[tuple[Way, Way]]:
    """The gateway and the relay, to one service."""
    authority = create_authority()
    with started("bench.gateway_service") as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        with way("gateway", port, authority) as gateway, way("relay", port, authority) as relay:
            yield gateway, relay


def transfer(server: Way, what: str) -> tuple[float, float]:
    """MiB in a second, given by the service or taken by it, and the CPU seconds of the server for a GiB."""
    cpu = server.cpu_seconds()
    with server.connect() as sock:
        sock.sendall(f"{what} {SIZE}\n".encode())
        began = time.perf_counter()
        if what == "give":
            buffer, remaining = bytearray(PIECE), SIZE
            while remaining > 0:
                remaining -= sock.recv_into(buffer)
        else:
            piece = bytes(PIECE)
            for _ in range(SIZE // PIECE):
                sock.sendall(piece)
            sock.recv(1)
        rate = SIZE / (1 << 20) / (time.perf_counter() - began)
    return rate, (server.cpu_seconds() - cpu) * (1 << 30) / SIZE


def echo_ms(server: Way) -> float:
    """Milliseconds for a byte there and back, the median."""
    times: list[float] = []
    with server.connect() as sock:
        sock.sendall(b"echo 0\n")
        for _ in range(ECHOES):
            began = time.perf_counter()
            sock.sendall(b"x")
            sock.recv(1)
            times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def throughput(name: str, ours: Way, relay: Way, relay_is: str) -> Figure:
    """Medians of rounds that take turns; the worse of both directions counts."""
    rates: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for what in ("give", "take"):
            for side, server in (("relay", relay), ("ours", ours)):
                rate, cpu = transfer(server, what)
                rates.setdefault(f"{side}-{what}", []).append(rate)
                rates.setdefault(f"{side}-{what}-cpu-s-per-gib", []).append(cpu)
    detail = {label: statistics.median(values) for label, values in rates.items()}
    detail |= {"ours-echo-ms": echo_ms(ours), "relay-echo-ms": echo_ms(relay)}
    ratios = {what: detail[f"ours-{what}"] / detail[f"relay-{what}"] for what in ("give", "take")}
    worse = min(ratios, key=lambda what: ratios[what])
    return Figure(
        name=name,
        value=detail[f"ours-{worse}"],
        unit="MiB/s",
        reference=detail[f"relay-{worse}"],
        reference_is=f"{relay_is} in the same run, {ROUNDS} rounds in turns, medians",
        target=f">= {TARGET} of the reference, both ways",
        holds=min(ratios.values()) >= TARGET,
        detail=detail,
    )


def idle_memory(server: Way, count: int) -> float:
    """Opens idle connections; returns KiB that each costs the server."""
    before = resident_mib(server.pid)
    idle = []
    try:
        for _ in range(count):
            idle.append(server.connect())
            idle[-1].sendall(b"echo 0\nx")
        for sock in idle:
            sock.recv(1)
        return (resident_mib(server.pid) - before) * 1024 / count
    finally:
        for sock in idle:
            sock.close()


@benchmark("gateway", f"throughput and requests of the service gateway, and its memory for {IDLE:,} idle connections")
def gateway() -> Sequence[Figure]:
    from bench.gateway_http import http_figures  # it imports this module

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the servers inherit it
    count = min(IDLE, int(most * 0.37))  # the gateway needs two descriptors for each, in three quarters of them
    with ways() as (ours, bare):
        figures = [throughput("gateway-throughput", ours, bare, "a bare TLS relay on asyncio's streams")]
        of_ours, of_bare = idle_memory(ours, count), idle_memory(bare, IDLE_OF_RELAY)
    figures.append(
        Figure(
            name="gateway-idle-memory",
            value=of_ours,
            unit="KiB for each",
            reference=of_bare,
            reference_is=f"the same relay, {IDLE_OF_RELAY:,} connections",
            target="stated",
            holds=True,
            detail={"connections": float(count), f"mib-of-{IDLE}": of_ours * IDLE / 1024},
        )
    )
    return [*figures, *http_figures()]
