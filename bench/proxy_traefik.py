"""Measures the Traefik data plane of the app proxy: the time from a new circuit until its first response."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ai.backend.appproxy.worker.access.gate import Gate
from ai.backend.appproxy.worker.access.tokens import Tokens
from ai.backend.appproxy.worker.planes.embedded.plane import Frontend
from ai.backend.appproxy.worker.planes.traefik.control import TraefikControl
from ai.backend.appproxy.worker.planes.traefik.plane import TraefikOptions, TraefikPlane
from ai.backend.appproxy.worker.upstreams import RouteDialer
from ai.backend.core.proxy.changes import Changes
from ai.backend.infra.config_store.etcd import EtcdConfigStore
from bench.figures import Figure, benchmark
from bench.http_load import REQUEST
from bench.proxy import read_response, server
from bench.proxy_servers import SHARED_SECRET, circuit_to, free_port
from tests.support.etcd_server import EtcdServer
from tests.support.traefik import running_traefik, static_configuration

ROUTES, MAX_ROUTE_ADD_MS = 500, 150.0
_DOMAIN = ".apps.example"


async def _route_adds_ms(app: int, etcd: EtcdServer, api_port: int, own: int) -> list[float]:
    """Returns the times from a new circuit until its first response, while there are more and more of them."""
    gate = Gate(Tokens(shared_secret=SHARED_SECRET, permit_secret="y" * 32, started_at=0.0), is_secure=False)
    control = TraefikControl(EtcdConfigStore([etcd.url]), "bench", f"http://127.0.0.1:{api_port}")
    options = TraefikOptions(control=control, api_port=api_port)
    plane = TraefikPlane(Frontend(host="127.0.0.1", domain=_DOMAIN), gate, RouteDialer(), options)
    await plane.start()
    times: list[float] = []
    for number in range(ROUTES):
        circuit = circuit_to(app, subdomain=f"a{number}")
        request = REQUEST.replace(b"Host: 127.0.0.1", b"Host: a%d.apps.example" % number)
        began = time.perf_counter()
        applied = await plane.apply(Changes(version=number, circuits=(circuit,)))
        if applied.failed:
            raise RuntimeError(f"Traefik does not serve: {applied.failed}")
        reader, writer = await asyncio.open_connection("127.0.0.1", own)
        writer.write(request)
        await read_response(reader)
        times.append(1000 * (time.perf_counter() - began))
        writer.close()
    await plane.stop()
    return times


@benchmark(
    "proxy-traefik",
    "the time from a new circuit until its first response through the Traefik data plane",
    needs="etcd (Debian: etcd-server)",
)
def proxy_traefik() -> Sequence[Figure]:
    api_port, own = free_port(), free_port()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-traefik-")))
        etcd = EtcdServer(folder / "etcd")
        etcd.start()
        stack.callback(etcd.stop)
        text = static_configuration(
            api_port=api_port, etcd=f"127.0.0.1:{etcd.port}", authority="bench", domain_port=own
        )
        stack.enter_context(running_traefik(folder / "traefik", text, api_port=api_port))
        app = stack.enter_context(server("engine"))
        times = asyncio.run(_route_adds_ms(app[1], etcd, api_port, own))
    p99 = statistics.quantiles(times, n=100)[98]
    figure = Figure(
        name="proxy-traefik-route-add",
        value=p99,
        unit="ms",
        target=f"<= {MAX_ROUTE_ADD_MS} ms at the 99th percentile of {ROUTES} routes, until the first 200",
        holds=p99 <= MAX_ROUTE_ADD_MS,
        detail={"median": statistics.median(times)},
    )
    return [figure]
