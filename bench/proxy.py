"""Measures the embedded data plane of the app proxy beside a bare proxy on aiohttp and JupyterHub's
configurable-http-proxy, which npm fetches for the run.

On a machine with few cores the loader and the app take their share, so that rates are given for each second of CPU time
of the proxy: what one core can do. A bare HAProxy, which passes the bytes of WebSockets in C, shows how many messages
are possible at all.
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from ai.backend.appproxy.worker.planes.embedded.plane import Frontend
from ai.backend.core.proxy.changes import Changes
from bench.environments import CACHE
from bench.figures import Figure, benchmark
from bench.http_load import CONNECTIONS, REQUEST, SECONDS, closed_loop, latencies_ms
from bench.proxy_servers import ECHO, MESSAGE, circuit_to, free_port, start_plane

RIVAL = "configurable-http-proxy@5"
ROUNDS = 5
ROUTES, MAX_ROUTE_ADD_MS = 500, 20.0
MIN_RATE, RIVAL_RATIO, MAX_ADDED_MS = 5000.0, 3.0, 2.0
Load = Callable[[int], int]
"""Loads a port for SECONDS and returns how often it was answered."""
_CONFIGURATION = """global
  nbthread 1
defaults
  mode {mode}
  timeout connect 10s
  timeout client 60s
  timeout server 60s
frontend f
  bind 127.0.0.1:{port} {tls}
  default_backend b
backend b
  server s 127.0.0.1:{target} {upstream}
"""
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def server(*arguments: str) -> Iterator[tuple[int, int]]:
    """Runs one of our servers; the value is its process id and port."""
    command = [sys.executable, "-m", "bench.proxy_servers", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.terminate()


@contextmanager
def rival(target: int) -> Iterator[tuple[int, int]]:
    """Runs configurable-http-proxy in front of a port. Raises CalledProcessError: npm cannot install it."""
    place = CACHE / "bench-chp"
    program = place / "node_modules" / "configurable-http-proxy" / "bin" / "configurable-http-proxy"
    if not program.exists():
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--silent", "--prefix", str(place), RIVAL], check=True, capture_output=True)
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            ports.append(probe.getsockname()[1])
    options = {
        "ip": "127.0.0.1",
        "port": ports[0],
        "api-port": ports[1],
        "default-target": f"http://127.0.0.1:{target}",
    }
    command = ["node", str(program), *(f"--{name}={value}" for name, value in options.items()), "--log-level=error"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            await_port(ports[0])
            yield process.pid, ports[0]
        finally:
            process.send_signal(signal.SIGKILL)


@contextmanager
def haproxy(target: int, *, mode: str = "http", tls: str = "", upstream: str = "") -> Iterator[tuple[int, int]]:
    """Runs HAProxy in front of a port; the value is its process id and port."""
    port = free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as file:
        file.write(_CONFIGURATION.format(mode=mode, port=port, target=target, tls=tls, upstream=upstream))
        file.flush()
        with subprocess.Popen(["haproxy", "-db", "-f", file.name], stderr=subprocess.DEVNULL) as process:
            try:
                await_port(port)
                yield process.pid, port
            finally:
                process.kill()


def await_port(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(f"nothing listens on port {port}")


def cpu_seconds_of(pid: int) -> float:
    """Returns the CPU time that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def read_response(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the proxy answers {head[:40]!r}")
    lower = head.lower()
    if b"content-length: " in lower:
        await reader.readexactly(int(lower.split(b"content-length: ")[1].split(b"\r\n")[0]))
    else:
        await reader.readuntil(b"0\r\n\r\n")


async def _messages(port: int, until: float) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    key = base64.b64encode(os.urandom(16))
    writer.write(
        b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % key
    )
    await reader.readuntil(b"\r\n\r\n")
    done = 0
    while time.perf_counter() < until:
        writer.write(MESSAGE)
        await reader.readexactly(len(ECHO))
        done += 1
    writer.close()
    return done


def _messages_together(port: int) -> int:
    async def run() -> int:
        until = time.perf_counter() + SECONDS
        return sum(await asyncio.gather(*(_messages(port, until) for _ in range(CONNECTIONS))))

    return asyncio.run(run())


def measure_rates(load: Load, servers: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """Medians of rounds that take turns: what each server did in a second of its CPU time, and in a second."""
    rates: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, (pid, port) in servers.items():
            cpu, began = cpu_seconds_of(pid), time.perf_counter()
            done = load(port)
            rates.setdefault(name, []).append(done / (cpu_seconds_of(pid) - cpu))
            rates.setdefault(f"{name}-wall", []).append(done / (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in rates.items()}


def _figure(name: str, unit: str, medians: Mapping[str, float], *, minimum: float = 0.0) -> Figure:
    others = [other for other in ("bare", "chp", "haproxy") if other in medians]
    ratios = {f"ratio-to-{other}": medians["plane"] / medians[other] for other in others}
    target = f">= {RIVAL_RATIO} of configurable-http-proxy" + (f", >= {minimum:.0f} {unit}" if minimum else "")
    return Figure(
        name=name,
        value=medians["plane"],
        unit=unit,
        reference=medians["chp"],
        reference_is=f"configurable-http-proxy 5 in the same run, {ROUNDS} rounds in turns, medians",
        target=target,
        holds=ratios["ratio-to-chp"] >= RIVAL_RATIO and medians["plane"] >= minimum,
        detail={**medians, **ratios},
    )


async def _route_adds_ms(port: int) -> list[float]:
    """Returns the times from a new circuit until its first response, while there are more and more of them."""
    plane = await start_plane(Frontend(host="127.0.0.1", port=0, domain=".apps.example"))
    own = plane.addresses[0][1]
    times: list[float] = []
    for number in range(ROUTES):
        circuit = circuit_to(port, subdomain=f"a{number}")
        request = REQUEST.replace(b"Host: 127.0.0.1", b"Host: a%d.apps.example" % number)
        began = time.perf_counter()
        await plane.apply(Changes(version=number, circuits=(circuit,)))
        reader, writer = await asyncio.open_connection("127.0.0.1", own)
        writer.write(request)
        await read_response(reader)
        times.append(1000 * (time.perf_counter() - began))
        writer.close()
    await plane.stop()
    return times


def _added_route(port: int) -> Figure:
    times = asyncio.run(_route_adds_ms(port))
    p99 = statistics.quantiles(times, n=100)[98]
    return Figure(
        name="proxy-route-add",
        value=p99,
        unit="ms",
        target=f"<= {MAX_ROUTE_ADD_MS} ms at the 99th percentile of {ROUTES} routes, until the first 200",
        holds=p99 <= MAX_ROUTE_ADD_MS,
        detail={"median": statistics.median(times)},
    )


@benchmark("proxy-http", "requests and WebSocket messages through the embedded data plane, beside two other proxies")
def proxy_http() -> Sequence[Figure]:
    with ExitStack() as stack:
        app = stack.enter_context(server("engine"))
        servers = {
            "plane": stack.enter_context(server("plane", str(app[1]))),
            "bare": stack.enter_context(server("bare", str(app[1]))),
            "chp": stack.enter_context(rival(app[1])),
            "haproxy": stack.enter_context(haproxy(app[1])),
        }
        http = _figure("proxy-http", "requests/CPU s", measure_rates(closed_loop, servers), minimum=MIN_RATE)
        sockets = _figure("proxy-websocket", "messages/CPU s", measure_rates(_messages_together, servers))
        routes = _added_route(app[1])
        rate = http.detail["plane-wall"] / 2
        p99: dict[str, list[float]] = {"direct": [], "plane": []}
        for _ in range(ROUNDS):
            for name, port in (("direct", app[1]), ("plane", servers["plane"][1])):
                p99[name].append(statistics.quantiles(asyncio.run(latencies_ms(port, rate)), n=100)[98])
    medians = {name: statistics.median(values) for name, values in p99.items()}
    added = medians["plane"] - medians["direct"]
    latency = Figure(
        name="proxy-added-p99",
        value=added,
        unit="ms",
        target=f"<= {MAX_ADDED_MS} ms at half of the rate that the run reached",
        holds=added <= MAX_ADDED_MS,
        detail={**medians, "rate": rate},
    )
    return [http, sockets, latency, routes]
