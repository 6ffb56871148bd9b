"""Autoscaling by gauges of engines, statistics of kernels and queries of Prometheus, and what these may send back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ai.backend.common.errors import InvalidInput, Unavailable
from ai.backend.common.ids import SessionId
from ai.backend.common.structs import replace
from ai.backend.core.serving.autoscale import MetricSource
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.serving.gauges import (
    EngineReader,
    KernelReader,
    PrometheusReader,
    Reading,
    gauges_of,
    values_of,
)
from ai.backend.manager.serving.scaling import ScalingService
from ai.backend.manager.serving.schemas import TargetBody
from ai.backend.manager.serving.settings import ServingSettings
from tests.unit.manager.serving.test_scaling import RULE, started
from tests.unit.manager.serving.test_service import REQUEST, make_services
from tests.unit.manager.serving.world import OWNER, World, ready

PAGE = """# HELP vllm:num_requests_waiting Number of requests waiting.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting_total 99
vllm:kv_cache_usage_perc 0.5
vllm:nan NaN
vllm:broken{ 7
"""
WAITING = "vllm:num_requests_waiting"


def test_gauges_are_summed_up_over_their_labels() -> None:
    names = {WAITING, "vllm:kv_cache_usage_perc", "vllm:nan", "vllm:broken", "vllm:missing"}
    assert gauges_of(PAGE, names) == {WAITING: 7.0, "vllm:kv_cache_usage_perc": 0.5}
    assert gauges_of("\x00\xff{}{}{}" * 1000, names) == {}


def test_a_line_that_the_parser_takes_long_for_is_left_out() -> None:
    """The parser's time grows with the square of a line: two mebibytes would take more than a minute."""
    long_line = f'{WAITING}{{a="{"x" * 4_096}"}} 7.0'
    assert gauges_of(f"{long_line}\n{WAITING} 2.0\n", {WAITING}) == {WAITING: 2.0}


def test_a_page_of_long_lines_is_read_in_part() -> None:
    line = f'{WAITING}{{a="{"x" * 4_000}"}} 1.0'
    assert gauges_of("\n".join([line] * 500), {WAITING}) == {WAITING: 32.0}
    assert gauges_of(f"{WAITING} 1.0\n" * 600, {WAITING}) == {WAITING: 500.0}


class SlowProbe:
    """Engines whose pages come slowly; counts how many are read at once."""

    def __init__(self) -> None:
        self.open = self.most = 0

    async def read(self, _session: Any, **_request: Any) -> bytes:
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        return f"{WAITING} 1.0\n".encode()


async def test_pages_of_engines_are_held_a_few_at_a_time() -> None:
    """A page has up to two mebibytes, and an endpoint many replicas."""
    world, _ = await started()
    service, probe = await world.service(), SlowProbe()
    (replica,) = service.live_replicas
    ids = [SessionId(UUID(int=1_000 + i)) for i in range(64)]
    many = replace(service, replicas=tuple(replace(replica, id=each) for each in ids))
    sessions = dict.fromkeys(ids, world.sessions[replica.id])
    assert await EngineReader(cast(Any, probe)).read(many, sessions, {WAITING}) == {WAITING: Reading(64.0, 64)}
    assert probe.most <= 8


@pytest.mark.parametrize("page", [None, "", "<html>", PAGE.replace("3.0", "1e400").replace("4.0", "+Inf")])
async def test_an_engine_without_its_gauge_changes_nothing(page: str | None) -> None:
    world, autoscaling = await started()
    world.page = page
    rule = RULE | {"metric_source": MetricSource.INFERENCE_FRAMEWORK, "metric_name": WAITING, "threshold": Decimal(0)}
    await autoscaling.add_rule(OWNER, "my-service", rule)
    for _ in range(15):
        await world.round()
    assert (await world.service()).endpoint.desired == 1


async def test_a_rule_compares_the_mean_of_a_gauge_over_the_replicas_that_answer() -> None:
    world, autoscaling = await started()
    world.page = PAGE
    rule = RULE | {"metric_source": MetricSource.INFERENCE_FRAMEWORK, "metric_name": WAITING, "threshold": Decimal(6)}
    await autoscaling.add_rule(OWNER, "my-service", rule)
    service = await world.until(lambda service: service.endpoint.desired == 2 and ready(service) == 2)
    assert service.endpoint.scaled is not None
    assert service.endpoint.scaled.inputs[f"inference-framework:{WAITING}"] == 7.0
    second = service.live_replicas[-1]
    world.pages[second.id] = None
    service = await world.until(lambda service: service.endpoint.desired == 3)
    assert service.endpoint.scaled is not None
    assert "7 is greater-than 6" in service.endpoint.scaled.explanation


async def test_a_target_may_be_a_gauge() -> None:
    source = MetricSource.INFERENCE_FRAMEWORK
    target = TargetBody(target=2.0, metric=WAITING, metric_source=source)
    world, _ = await started(target=target, max_replicas=8, down_delay_s=0.0)
    world.page = PAGE
    await world.until(lambda service: service.endpoint.desired == 4)


@asynccontextmanager
async def prometheus(reply: Any) -> AsyncIterator[tuple[str, list[str]]]:
    """Yields the URL of a server that gives this reply, and the queries that it was asked."""
    queries: list[str] = []

    async def query(request: web.Request) -> web.StreamResponse:
        queries.append(str((await request.post())["query"]))
        return web.json_response(reply) if not isinstance(reply, str) else web.Response(text=reply)

    app = web.Application()
    app.router.add_post("/api/v1/query", query)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/"), queries


def vector(*values: str) -> dict[str, Any]:
    result = [{"metric": {"i": str(i)}, "value": [1.0, value]} for i, value in enumerate(values)]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


async def test_a_query_of_the_operator_is_asked_for_the_endpoint_alone() -> None:
    world, _ = await started()
    service = await world.service()
    async with prometheus(vector("2.5", "1", "NaN")) as (url, queries):
        settings = ServingSettings(prometheus_url=url, prometheus_queries={"p": 'sum(x{e="$endpoint",n="$name"})'})
        reader = PrometheusReader(settings)
        assert await reader.read(service, world.sessions, {"p", "unknown"}) == {"p": Reading(3.5, 1)}
        await reader.close()
    assert queries == [f'sum(x{{e="{service.endpoint.id}",n="my-service"}})']


@pytest.mark.parametrize(
    "reply",
    [
        "garbage",
        [],
        {"status": "error", "error": "parse error"},
        {"status": "success"},
        {"status": "success", "data": {"resultType": "matrix", "result": [{"values": []}]}},
        vector("x"),
    ],
)
async def test_a_prometheus_that_answers_nonsense_is_unavailable(reply: Any) -> None:
    world, _ = await started()
    async with prometheus(reply) as (url, _):
        reader = PrometheusReader(ServingSettings(prometheus_url=url, prometheus_queries={"p": "up"}))
        with pytest.raises(Unavailable):
            await reader.read(await world.service(), world.sessions, {"p"})
        await reader.close()


def test_values_of_replies() -> None:
    assert values_of(vector()) == []
    assert values_of({"status": "success", "data": {"resultType": "scalar", "result": [1.0, "4"]}}) == [4.0]


async def test_users_choose_queries_and_write_none() -> None:
    world = World()
    rule = RULE | {"metric_source": MetricSource.PROMETHEUS, "metric_name": "p"}
    services = make_services(world)
    await services.create(OWNER, REQUEST)
    with pytest.raises(InvalidInput, match="no server of Prometheus"):
        await ScalingService(services).add_rule(OWNER, "my-service", rule)
    services = make_services(world, prometheus_url="http://127.0.0.1:9", prometheus_queries={"p": "up"})
    for name in ("up", "count(up)", "q"):
        with pytest.raises(InvalidInput, match="there are: p"):
            await ScalingService(services).add_rule(OWNER, "my-service", rule | {"metric_name": name})
    await ScalingService(services).add_rule(OWNER, "my-service", rule)
    wrong = rule | {"metric_source": MetricSource.INFERENCE_FRAMEWORK, "metric_name": 'x{a="b"} or y'}
    with pytest.raises(InvalidInput, match="letters"):
        await ScalingService(services).add_rule(OWNER, "my-service", wrong)


async def test_statistics_of_kernels_are_read_of_ready_replicas() -> None:
    class Stats:
        def queries_of(self, _session_id: UUID) -> int:
            return 0

        def kernel_statistics(self, _kernel_id: UUID) -> dict[str, Any]:
            return {"cpu_util": {"current": "87.5"}, "mem": {"current": "much"}, "io": None}

    world, _ = await started()
    reader = KernelReader(cast(LiveMetrics, Stats()))
    readings = await reader.read(await world.service(), world.sessions, {"cpu_util", "mem", "io", "net"})
    assert readings == {"cpu_util": Reading(87.5, 1)}
