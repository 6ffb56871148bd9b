"""Measures the HAProxy data plane of the app proxy beside a bare HAProxy with one backend.

Rates are for each second of CPU time of HAProxy, since the loader and the app take most of a small machine.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ai.backend.appproxy.worker.planes.embedded.plane import Frontend
from ai.backend.appproxy.worker.planes.haproxy.plane import HaproxyPlane
from ai.backend.common.structs import replace
from ai.backend.core.proxy.changes import Changes
from bench.figures import Figure, benchmark
from bench.http_load import CONNECTIONS, REQUEST, closed_loop, latencies_ms
from bench.proxy import ROUNDS, cpu_seconds_of, haproxy, measure_rates, read_response, server
from bench.proxy_servers import circuit_to, free_port, start_haproxy_plane

MIN_RATIO = 0.9
ROUTES, MAX_ROUTE_ADD_MS = 500, 20.0
CHANGING_REQUESTS = 100_000


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


async def _route_adds_ms(target: int) -> list[float]:
    """Returns the times from a change until the first response of its circuit, with the circuits before it."""
    slots = [free_port() for _ in range(ROUTES)]
    with tempfile.TemporaryDirectory() as folder:
        plane = await start_haproxy_plane(
            Frontend(host="127.0.0.1", ports={slot: slot for slot in set(slots)}), Path(folder), circuits=ROUTES
        )
        times = []
        try:
            for version, slot in enumerate(sorted(set(slots)), 1):
                began = time.perf_counter()
                await plane.apply(Changes(version=version, circuits=(circuit_to(target, slot=slot),)))
                reader, writer = await asyncio.open_connection("127.0.0.1", slot)
                writer.write(REQUEST)
                await read_response(reader)
                times.append(1000 * (time.perf_counter() - began))
                writer.close()
        finally:
            await plane.stop()
        return times


async def _failures(first: int, second: int) -> tuple[int, int]:
    """Returns how many requests failed, and how many changes there were, while routes and weights changed."""
    slot, changes, failed, left = free_port(), 0, 0, CHANGING_REQUESTS
    with tempfile.TemporaryDirectory() as folder:
        plane = await start_haproxy_plane(Frontend(host="127.0.0.1", ports={slot: slot}), Path(folder), circuits=8)
        routes = [circuit_to(port, slot=slot).route_info[0] for port in (first, second)]
        circuit = circuit_to(first, slot=slot)
        sets = [
            routes,
            routes[:1],
            [replace(routes[0], traffic_ratio=3.0), routes[1]],
            routes[1:],
        ]

        async def change(plane: HaproxyPlane) -> None:
            nonlocal changes
            while left > 0:
                changes += 1
                changed = replace(circuit, route_info=sets[changes % len(sets)])
                await plane.apply(Changes(version=changes, circuits=(changed,)))
                await asyncio.sleep(0.02)

        async def request() -> None:
            nonlocal failed, left
            reader, writer = await asyncio.open_connection("127.0.0.1", slot)
            while left > 0:
                left -= 1
                try:
                    writer.write(REQUEST)
                    await read_response(reader)
                except (OSError, RuntimeError, asyncio.IncompleteReadError):
                    failed += 1
                    writer.close()
                    reader, writer = await asyncio.open_connection("127.0.0.1", slot)
            writer.close()

        try:
            await plane.apply(Changes(version=0, circuits=(circuit,)))
            await asyncio.gather(change(plane), *(request() for _ in range(CONNECTIONS)))
        finally:
            await plane.stop()
    return failed, changes


@benchmark("proxy-haproxy", "requests through the HAProxy data plane beside a bare HAProxy; added and changed routes")
def proxy_haproxy() -> Sequence[Figure]:
    with ExitStack() as stack:
        _, target = stack.enter_context(server("engine"))
        _, other = stack.enter_context(server("engine"))
        worker, port = stack.enter_context(server("haproxy", str(target)))
        servers = {"plane": (_child_of(worker), port), "bare": stack.enter_context(haproxy(target))}
        cpu = cpu_seconds_of(worker)
        medians = measure_rates(closed_loop, servers)
        python_s = cpu_seconds_of(worker) - cpu
        p99 = {
            name: statistics.median(
                statistics.quantiles(asyncio.run(latencies_ms(each, 1000.0)), n=100)[98] for _ in range(ROUNDS)
            )
            for name, (_, each) in servers.items()
        }
        times = asyncio.run(_route_adds_ms(target))
        failed, changes = asyncio.run(_failures(target, other))
    ratio, added = medians["plane"] / medians["bare"], statistics.quantiles(times, n=100)[98]
    return [
        Figure(
            name="proxy-haproxy-http",
            value=medians["plane"],
            unit="requests/CPU s",
            reference=medians["bare"],
            reference_is=f"a bare HAProxy in the same run, {ROUNDS} rounds in turns, medians",
            target=f">= {MIN_RATIO} of a bare HAProxy",
            holds=ratio >= MIN_RATIO,
            detail={
                "ratio": ratio,
                "worker-cpu-s": python_s,
                "p99-ms-at-1000/s": p99["plane"],
                "p99-ms-bare": p99["bare"],
                "wall": medians["plane-wall"],
                "wall-bare": medians["bare-wall"],
            },
        ),
        Figure(
            name="proxy-haproxy-route-add",
            value=added,
            unit="ms",
            target=f"<= {MAX_ROUTE_ADD_MS} ms at the 99th percentile of {ROUTES} routes, until the first 200",
            holds=added <= MAX_ROUTE_ADD_MS,
            detail={"median": statistics.median(times)},
        ),
        Figure(
            name="proxy-haproxy-changes",
            value=failed,
            unit=f"failed of {CHANGING_REQUESTS} requests",
            target="0 while routes and weights change",
            holds=not failed,
            detail={"changes": changes},
        ),
    ]
