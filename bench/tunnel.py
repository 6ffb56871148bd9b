"""Measures a tunnel into a session beside a bare WebSocket relay on aiohttp."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.cluster import Api, running_cluster, temporary_folder
from bench.figures import Figure, benchmark
from tests.support.certificates import self_signed

ROUNDS = 7
SIZE = 128 << 20
PIECE = 256 << 10
ECHOES = 200
TARGET = 0.7
PORT = 9911
SERVICE = Path(__file__).with_name("tunnel_service.py")
OWN_NETWORK = '[runtime]\nnetwork = "none"\n'


@dataclass(frozen=True, slots=True)
class Way:
    """A WebSocket that leads to the service; ``api`` signs what asks for it."""

    url: str
    target: str
    api: Api | None = None

    def headers(self) -> Mapping[str, str]:
        return self.api.headers("GET", self.target, "application/octet-stream") if self.api is not None else {}


@contextmanager
def bare_relay(*certificate: Path) -> Iterator[Way]:
    """A relay without users, sessions, limits or a link to agents, and the service beside it; between them TLS if there
    are a certificate and its key."""
    command = [sys.executable, str(SERVICE), "0", *map(str, certificate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        port = service.stdout.readline().strip()
        command = [sys.executable, "-m", "bench.bare_relay", port, *map(str, certificate[:1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as relay:
            assert relay.stdout is not None
            try:
                yield Way(f"http://127.0.0.1:{relay.stdout.readline().strip()}", "/")
            finally:
                relay.terminate()
                service.terminate()


@contextmanager
def session_tunnel(*options: str, by_tls: bool = False) -> Iterator[Way]:
    """The tunnel of a cluster, to the service in a session that has a network of its own.

    ``by_tls``: as between hosts. An agent uses no unix socket in a folder that is open to others.
    """
    with temporary_folder() as folder:
        (folder / "agent.toml").write_text(OWN_NETWORK)
        with running_cluster("--agent-config", str(folder / "agent.toml"), *options) as cluster:
            if by_tls:
                (cluster.data_dir / "link").chmod(0o755)
            api = cluster.user
            name = api.create(config={"resources": {"cpu": "1", "mem": "256m"}, "preopen_ports": [PORT]})
            code = SERVICE.read_text().replace("sys.argv[1]", f"'{PORT}'").replace("server.serve_forever()", "")
            code += "\nthreading.Thread(target=server.serve_forever, daemon=True).start()\n"
            result = api.call("POST", f"/session/{name}", {"mode": "query", "code": code})["result"]
            if result.get("exitCode"):
                raise RuntimeError(f"the service does not start: {result}")
            yield Way(api.endpoint, f"/stream/session/{name}/tcpproxy?app={PORT}", api)


async def transfer(http: aiohttp.ClientSession, way: Way, what: str) -> float:
    """MiB in a second, given by the service or taken by it."""
    async with http.ws_connect(way.url + way.target, headers=way.headers(), max_msg_size=0) as socket:
        await socket.send_bytes(f"{what} {SIZE}\n".encode())
        began = time.perf_counter()
        if what == "give":
            remaining = SIZE
            while remaining > 0:
                remaining -= len(await socket.receive_bytes())
        else:
            piece = bytes(PIECE)
            for _ in range(SIZE // PIECE):
                await socket.send_bytes(piece)
            await socket.receive_bytes()
        return SIZE / (1 << 20) / (time.perf_counter() - began)


async def echo_ms(http: aiohttp.ClientSession, way: Way) -> float:
    """Milliseconds for a byte there and back, the median."""
    times: list[float] = []
    async with http.ws_connect(way.url + way.target, headers=way.headers()) as socket:
        await socket.send_bytes(b"echo 0\n")
        for _ in range(ECHOES):
            began = time.perf_counter()
            await socket.send_bytes(b"x")
            await socket.receive_bytes()
            times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


async def compare(ours: Way, bare: Way) -> dict[str, float]:
    """Medians of rounds that take turns."""
    rates: dict[str, list[float]] = {}
    async with aiohttp.ClientSession() as http:
        for _ in range(ROUNDS):
            for what in ("give", "take"):
                for name, way in (("bare", bare), ("tunnel", ours)):
                    rates.setdefault(f"{name}-{what}", []).append(await transfer(http, way, what))
        medians = {name: statistics.median(values) for name, values in rates.items()}
        return {**medians, "bare-echo-ms": await echo_ms(http, bare), "tunnel-echo-ms": await echo_ms(http, ours)}


def figure(name: str, medians: Mapping[str, float], *, by_tls: bool) -> Figure:
    """The worse of both directions counts."""
    ratios = {what: medians[f"tunnel-{what}"] / medians[f"bare-{what}"] for what in ("give", "take")}
    worse = min(ratios, key=lambda what: ratios[what])
    return Figure(
        name=name,
        value=medians[f"tunnel-{worse}"],
        unit="MiB/s",
        reference=medians[f"bare-{worse}"],
        reference_is=f"a bare aiohttp WebSocket relay{' that speaks TLS to the service' if by_tls else ''} in the same"
        f" run, {ROUNDS} rounds in turns, medians",
        target=f">= {TARGET} of the reference, both ways",
        holds=min(ratios.values()) >= TARGET,
        detail={**medians, **{f"ratio-{what}": ratio for what, ratio in ratios.items()}},
    )


@benchmark("tunnel", "throughput of a tunnel into a session: daemons in one process, in several, and by TLS")
def tunnel() -> Sequence[Figure]:
    figures = []
    with temporary_folder() as folder:
        certificate = self_signed(folder)
        for name, options, by_tls in (
            ("tunnel-throughput", (), False),
            ("tunnel-throughput-separate", ("--separate",), False),
            ("tunnel-throughput-tls", ("--separate",), True),
        ):
            with (
                bare_relay(*(certificate if by_tls else ())) as bare,
                session_tunnel(*options, by_tls=by_tls) as ours,
            ):
                figures.append(figure(name, asyncio.run(compare(ours, bare)), by_tls=by_tls))
    return figures
