"""Measures the cluster as a server: its start, its memory, its cheapest request under load."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.cluster import Api, down, lift_rate_limits, running_cluster, temporary_folder, up
from bench.figures import Figure, benchmark, spread
from bench.processes import BACKENDAI, busy_seconds, resident_mib, tree, wall_seconds

START_LIMIT_S = 2.5
MEMORY_LIMIT_MIB = 200.0
REQUEST_RATIO = 0.25
PEER_REQUESTS_PER_S = 264.0
CONNECTIONS = 32
SECONDS_PER_ROUND = 3.0


@benchmark("start", "`backend.ai up`, cold start to serving")
def start() -> Sequence[Figure]:
    samples, bare = [], []
    for _ in range(5):
        with temporary_folder() as folder:
            bare.append(wall_seconds([BACKENDAI, "--help"]))
            started = time.perf_counter()
            up(folder)
            samples.append(time.perf_counter() - started)
            down(folder)
    value = statistics.median(samples)
    return [
        Figure(
            name="up-cold-start",
            value=value,
            unit="s",
            reference=statistics.median(bare),
            reference_is="backend.ai --help",
            target=f"<= {START_LIMIT_S:g} s",
            holds=value <= START_LIMIT_S,
            detail=spread(samples),
        )
    ]


@benchmark("memory", "resident memory of the embedded cluster, idle")
def memory() -> Sequence[Figure]:
    with running_cluster() as cluster:
        cluster.user.call("GET", "/resource/presets")
        time.sleep(10)
        sizes = [resident_mib(pid) for pid in tree(cluster.pid)]
    value = sum(sizes)
    return [
        Figure(
            name="idle-memory",
            value=value,
            unit="MiB",
            target=f"<= {MEMORY_LIMIT_MIB:g} MB, all processes",
            # The target is in megabytes of 10**6 bytes.
            holds=value * 1.048576 <= MEMORY_LIMIT_MIB,
            detail={"processes": float(len(sizes)), "largest": max(sizes)},
        )
    ]


async def hammer(host: str, port: int, request: bytes, seconds: float) -> float:
    """Send one request over and over on many connections and return the answers per second.

    Raises:
        RuntimeError: an answer is not 200.
    """
    answered = 0
    deadline = time.perf_counter() + seconds

    async def one_connection() -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection(host, port)
        try:
            while time.perf_counter() < deadline:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(f"the server answered {head[:200]!r}")
                length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))
                answered += 1
        finally:
            writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(one_connection() for _ in range(CONNECTIONS)))
    return answered / (time.perf_counter() - started)


def request_of(host: str, target: str, headers: dict[str, str]) -> bytes:
    lines = [f"GET {target} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@contextmanager
def _bare_handler(body: bytes) -> Iterator[int]:
    """Serve a fixed body from a bare aiohttp handler in a process of its own; yield its port."""
    command = [sys.executable, str(Path(__file__).with_name("bare_handler.py"))]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if server.stdin is None or server.stdout is None:
            raise RuntimeError("the bare handler has no pipes")
        server.stdin.write(body)
        server.stdin.close()
        yield int(server.stdout.readline())
    finally:
        server.terminate()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


def _rates(api: Api, target: str, rounds: int) -> tuple[list[float], list[float]]:
    """Measure the manager and the bare handler in turn, so that both see the same machine."""
    body = json.dumps(api.call("GET", target)).encode()
    host, _, port = api.host.rpartition(":")
    ours, bare = [], []
    with _bare_handler(body) as bare_port:
        for _ in range(rounds):
            signed = request_of(api.host, target, api.headers("GET", target, "text/plain"))
            ours.append(asyncio.run(hammer(host, int(port), signed, SECONDS_PER_ROUND)))
            plain = request_of(f"127.0.0.1:{bare_port}", target, {})
            bare.append(asyncio.run(hammer("127.0.0.1", bare_port, plain, SECONDS_PER_ROUND)))
    return ours, bare


@benchmark("requests", "signed GET /resource/presets on 32 connections against a bare aiohttp handler")
def requests() -> Sequence[Figure]:
    with running_cluster() as cluster:
        lift_rate_limits(cluster)
        ours, bare = _rates(cluster.admin, "/resource/presets", rounds=5)
    value, reference = statistics.median(ours), statistics.median(bare)
    return [
        Figure(
            name="signed-get-rate",
            value=value,
            unit="requests/s",
            reference=reference,
            reference_is="a bare aiohttp handler with the same body",
            target=f">= {REQUEST_RATIO:g} of the bare handler",
            holds=value >= REQUEST_RATIO * reference,
            detail=spread(ours) | {"peer": PEER_REQUESTS_PER_S},
        )
    ]


OTEL_RATIO = 0.95


@benchmark("requests-otel", "the same requests with OpenTelemetry on against off")
def requests_with_telemetry() -> Sequence[Figure]:
    """Two clusters take turns; the collector of one takes whatever it is sent.

    The second figure is by their processor time, which other work on the machine does not change.
    """
    target = "/resource/presets"
    with ExitStack() as stack:
        port = stack.enter_context(_bare_handler(b"{}"))
        collector = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        rates: dict[str, list[float]] = {"off": [], "on": []}
        by_processor: dict[str, list[float]] = {"off": [], "on": []}
        clusters = {name: stack.enter_context(running_cluster(**env)) for name, env in (("off", {}), ("on", collector))}
        for cluster in clusters.values():
            lift_rate_limits(cluster)
        for _ in range(5):
            for name, cluster in clusters.items():
                api = cluster.admin
                host, _, api_port = api.host.rpartition(":")
                request = request_of(api.host, target, api.headers("GET", target, "text/plain"))
                pids = tree(cluster.pid)
                busy_s, started = busy_seconds(pids), time.perf_counter()
                rates[name].append(asyncio.run(hammer(host, int(api_port), request, SECONDS_PER_ROUND)))
                answers = rates[name][-1] * (time.perf_counter() - started)
                by_processor[name].append(answers / (busy_seconds(pids) - busy_s))
    value, reference = statistics.median(rates["on"]), statistics.median(rates["off"])
    cpu_value, cpu_reference = statistics.median(by_processor["on"]), statistics.median(by_processor["off"])
    return [
        Figure(
            name="signed-get-rate-otel-by-processor",
            value=cpu_value,
            unit="requests in a second of processor time",
            reference=cpu_reference,
            reference_is="without OpenTelemetry",
            target=f">= {OTEL_RATIO:g} of the rate without",
            holds=cpu_value >= OTEL_RATIO * cpu_reference,
            detail=spread(by_processor["on"]),
        ),
        Figure(
            name="signed-get-rate-otel",
            value=value,
            unit="requests/s",
            reference=reference,
            reference_is="without OpenTelemetry",
            target=f">= {OTEL_RATIO:g} of the rate without",
            holds=value >= OTEL_RATIO * reference,
            detail=spread(rates["on"]),
        ),
    ]
