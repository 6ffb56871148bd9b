"""A scrape of a manager with 1,000 agents of 8 GPUs, as the shipped Prometheus does it."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from ai.backend.common.ids import AgentId
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import MetricFamily, MetricSample, StatReport
from ai.backend.infra.bus import Bus
from ai.backend.infra.database import Database
from ai.backend.infra.database.migrate import upgrade
from ai.backend.infra.http.server import make_runner, serve_on
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.infra.telemetry import Metrics
from ai.backend.manager.composition.app import api_endpoints, build_app
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.db import MIGRATIONS, SCHEMA_HEAD
from bench.cluster import temporary_folder
from bench.figures import Figure, benchmark, spread
from tests.contract.store.builders import make_agent

AGENTS, DEVICES, METRICS = 1000, 8, 12
MAX_S, MAX_BYTES = 0.2, 2_000_000
_ROUNDS = 5


def _report(number: int) -> StatReport:
    families = [
        MetricFamily(
            name=f"backendai_device_metric_{metric}",
            kind="gauge",
            help="A metric of a device.",
            samples=[
                MetricSample(labels={"device_name": "cuda", "device_id": f"GPU-{n:032x}", "index": str(n)}, value=0.5)
                for n in range(DEVICES)
            ],
        )
        for metric in range(METRICS)
    ]
    return StatReport(agent_id=f"i-{number}", at=0.0, node={}, devices={}, kernels={}, families=families)


async def _ask_every_route(http: aiohttp.ClientSession, manager: Manager, url: str) -> None:
    """Sends one request to each route, refused or not: each has its series of metrics from then on."""
    for endpoint in api_endpoints(manager.services, Metrics("bench")):
        async with http.request(endpoint.method, url + re.sub("[{}*]", "", endpoint.path)) as reply:
            await reply.read()


async def _measure(folder: Path) -> tuple[list[float], int, int]:
    """Returns the seconds of scrapes, their bytes, and the bytes of a scrape with all agents."""
    database = Database(f"sqlite:///{folder}/manager.db")
    await upgrade(database, MIGRATIONS, head=SCHEMA_HEAD)
    manager = Manager(ManagerSettings(), database, Bus(), MemoryLink().manager)
    for number in range(AGENTS):
        await manager.stores.agents.put_agent(replace(make_agent(), id=AgentId(f"i-{number}")))
        manager.services.stats.put(_report(number), {})
    runner = make_runner(build_app(manager))
    seconds, content = [], b""
    try:
        host, port = await serve_on(runner, ("127.0.0.1", 0))
        url = f"http://{host}:{port}"
        async with aiohttp.ClientSession() as http:
            await _ask_every_route(http, manager, url)
            for _ in range(_ROUNDS):
                started = time.perf_counter()
                async with http.get(f"{url}/metrics?others=false", raise_for_status=True) as reply:
                    content = await reply.read()
                seconds.append(time.perf_counter() - started)
            async with http.get(f"{url}/metrics", raise_for_status=True) as reply:
                whole = await reply.read()
    finally:
        await runner.cleanup()
        await database.close()
    return seconds, len(content), len(whole)


@benchmark("scrape", f"a scrape of a manager with {AGENTS} agents")
def scrape() -> Sequence[Figure]:
    with temporary_folder() as folder:
        seconds, size, whole_size = asyncio.run(_measure(folder))
    value = statistics.median(seconds)
    return [
        Figure(
            name="manager-scrape",
            value=value,
            unit="s",
            target=f"<= {MAX_S:g} s and {MAX_BYTES / 1e6:g} MB",
            holds=value <= MAX_S and size <= MAX_BYTES,
            detail={**spread(seconds), "bytes": size, "bytes_with_agents": whole_size},
        )
    ]
