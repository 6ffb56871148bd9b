"""Directories and folders of the storage proxy; its transfers are in :mod:`bench.transfers`.

Everything lies below `BENCH_DIR`, the working directory unless set.
"""

# one thing at a time is measured, so nothing else is held up

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp

from bench.cluster import lift_rate_limits, running_cluster
from bench.figures import Figure, benchmark
from bench.processes import resident_mib
from tests.support.storage_proxy import Caller, ProxyProcess

ENTRIES = 1_000_000
FOLDERS = 100


@contextmanager
def room() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="bench-storage-", dir=os.environ.get("BENCH_DIR", ".")))
    try:
        yield place.absolute()
    finally:
        subprocess.run(["rm", "-rf", place], check=True)


@asynccontextmanager
async def running(place: Path) -> AsyncIterator[tuple[ProxyProcess, Caller]]:
    proxy = ProxyProcess(place)
    try:
        proxy.start()
        async with aiohttp.ClientSession() as http:
            yield proxy, Caller(http, proxy.manager_url)
    finally:
        proxy.stop()


@benchmark("storage-list", "the first page of a directory of a million entries")
def listing() -> Sequence[Figure]:
    async def measure() -> tuple[list[float], float]:
        took: list[float] = []
        with room() as place:
            async with running(place) as (proxy, caller):
                assert proxy.process is not None
                vfid = await caller.folder()
                inside = await caller.inside(vfid)
                for n in range(ENTRIES):
                    os.close(os.open(inside / f"{n:07}", os.O_CREAT | os.O_WRONLY, 0o644))
                await caller.ask("POST", "/folder/file/list", vfid=vfid)
                before = resident_mib(proxy.process.pid)
                for _ in range(9):
                    began = time.monotonic()
                    page = (await caller.ask("POST", "/folder/file/list", vfid=vfid)).json
                    took.append(time.monotonic() - began)
                    assert len(page["items"]) == 1000
                grown = resident_mib(proxy.process.pid) - before
        return took, grown

    took, grown = asyncio.run(measure())
    value = statistics.median(took) * 1000
    return [
        Figure(
            name="storage-list",
            value=value,
            unit="ms",
            target="<= 200 ms",
            holds=value <= 200,
            detail={"worst": max(took) * 1000, "memory_grown_mib": grown},
        )
    ]


@benchmark("storage-folders", "making and deleting a folder, by the storage proxy alone and through the manager")
def folders() -> Sequence[Figure]:
    async def by_the_proxy() -> list[float]:
        took: list[float] = []
        with room() as place:
            async with running(place) as (_, caller):
                for _ in range(FOLDERS):
                    began = time.monotonic()
                    vfid = await caller.folder()
                    await caller.ask("POST", "/folder/delete", vfid=vfid)
                    took.append(time.monotonic() - began)
        return took

    def through_the_manager() -> list[float]:
        took: list[float] = []
        with running_cluster() as cluster:
            lift_rate_limits(cluster)
            user = cluster.user
            for n in range(FOLDERS):
                began = time.monotonic()
                user.call("POST", "/folders", {"name": f"bench-{n}"})
                user.call("DELETE", f"/folders/bench-{n}")
                took.append(time.monotonic() - began)
        return took

    return [
        _latency("storage-folders", asyncio.run(by_the_proxy())),
        _latency("manager-folders", through_the_manager()),
    ]


def _latency(name: str, took: Sequence[float]) -> Figure:
    value = statistics.median(took) * 1000
    return Figure(
        name=name,
        value=value,
        unit="ms",
        target="<= 15 ms (p50)",
        holds=value <= 15,
        detail={"p95": statistics.quantiles(took, n=20)[-1] * 1000},
    )
