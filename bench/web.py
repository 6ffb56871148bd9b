"""Measures what the web server costs a request: one signed GET, asked of the manager and through one web server."""

from __future__ import annotations

import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.cluster import Cluster, free_port, lift_rate_limits, running_cluster, temporary_folder
from bench.figures import Figure, benchmark, spread
from bench.server import SECONDS_PER_ROUND, hammer, request_of

RATIO = 0.5
ROUNDS = 5
TARGET = "/resource/presets"
_START_S = 20.0


@contextmanager
def _web_server(folder: Path, endpoint: str) -> Iterator[str]:
    """Runs a web server in a process of its own before a manager; yields its host and port."""
    port = free_port()
    settings = folder / "webserver.toml"
    settings.write_text(
        f'[service]\nport = {port}\n[api]\nendpoint = ["{endpoint}"]\n[session]\nfile = "{folder / "logins.db"}"\n'
    )
    command = [sys.executable, "-m", "ai.backend.web.server", "-f", str(settings)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    host = f"127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                connection = http.client.HTTPConnection(host, timeout=5)
                connection.request("GET", "/func/")
                connection.getresponse().read()
                break
            except OSError:
                if time.monotonic() > deadline or server.poll() is not None:
                    raise RuntimeError("the web server does not start") from None
                time.sleep(0.1)
        yield host
    finally:
        server.terminate()
        server.wait()


def _cookie(host: str, cluster: Cluster) -> str:
    """Logs the administrator in and returns the cookie of the session."""
    password = (cluster.data_dir / "keys" / "admin.password").read_text()
    body = json.dumps({"username": "admin@local", "password": password})
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("POST", "/server/login", body=body, headers={"Content-Type": "application/json"})
    answer = connection.getresponse()
    if not json.loads(answer.read())["authenticated"]:
        raise RuntimeError("the web server does not log in")
    return str(answer.headers["Set-Cookie"]).partition(";")[0]


@benchmark("web-requests", "signed GET /resource/presets on 32 connections, through one web server and asked directly")
def web_requests() -> Sequence[Figure]:
    direct, proxied = [], []
    with running_cluster() as cluster, temporary_folder() as folder:
        lift_rate_limits(cluster)
        api = cluster.admin
        manager_host, _, manager_port = api.host.rpartition(":")
        with _web_server(folder, api.endpoint) as host:
            request = request_of(host, f"/func{TARGET}", {"Cookie": _cookie(host, cluster)})
            port = int(host.rpartition(":")[2])
            for _ in range(ROUNDS):
                signed = request_of(api.host, TARGET, api.headers("GET", TARGET, "text/plain"))
                direct.append(asyncio.run(hammer(manager_host, int(manager_port), signed, SECONDS_PER_ROUND)))
                proxied.append(asyncio.run(hammer("127.0.0.1", port, request, SECONDS_PER_ROUND)))
    value, reference = statistics.median(proxied), statistics.median(direct)
    return [
        Figure(
            name="web-proxied-get-rate",
            value=value,
            unit="requests/s",
            reference=reference,
            reference_is="the manager asked directly",
            target=f">= {RATIO:g} of the manager",
            holds=value >= RATIO * reference,
            detail=spread(proxied),
        )
    ]
