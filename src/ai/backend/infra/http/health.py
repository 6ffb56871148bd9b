"""Endpoints for operators and probes: metrics, liveness, readiness, the version, the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, TypedDict

from aiohttp import web
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST

from ai.backend.common.errors import AuthenticationFailed, NotFound
from ai.backend.infra.http.errors import RouteNotFound
from ai.backend.infra.http.paths import API_VERSION, MINOR_RELEASES
from ai.backend.infra.http.routes import Call, Nothing, Reply, Schema, route
from ai.backend.infra.telemetry import Metrics

Readiness = Callable[[], Awaitable[Mapping[str, bool]]]
Gauges = Callable[[], Awaitable[Mapping[str, float]]]


class Liveness(TypedDict):
    status: Literal["alive"]


class ReadinessReply(TypedDict):
    status: Literal["ready", "not-ready"]
    checks: dict[str, bool]


class MetricsQuery(Schema, frozen=True):
    others: bool = True


class VersionReply(TypedDict):
    version: str
    manager: str
    build: str


class HealthApi:
    """Anonymous endpoints of every daemon.

    ``readiness`` returns by name if the conditions for serving requests hold. ``gauges`` returns values that are
    computed at each scrape.
    """

    def __init__(self, metrics: Metrics, readiness: Readiness, gauges: Gauges | None = None) -> None:
        self._metrics = metrics
        self._readiness = readiness
        if gauges is not None:
            metrics.register_gauges(gauges)

    @route("GET", "/livez", auth=False, limited=False)
    async def livez(self, call: Call) -> Liveness:
        """Reports that the process serves."""
        return {"status": "alive"}

    @route("GET", "/readyz", auth=False, limited=False, reply=ReadinessReply, also=(503,))
    async def readyz(self, call: Call) -> Reply:
        """Reports if the daemon can work; 503 names what is unavailable."""
        checks = dict(await self._readiness())
        is_ready = all(checks.values())
        return Reply({"status": "ready" if is_ready else "not-ready", "checks": checks}, 200 if is_ready else 503)

    @route("GET", "/metrics", auth=False, limited=False, query=MetricsQuery, produces=("text/plain",))
    async def metrics(self, call: Call[Nothing, MetricsQuery]) -> web.Response:
        """Returns metrics in the text format of Prometheus, or of OpenMetrics where traces are the exemplars.

        ``others=false`` leaves out what other daemons measured, such as the agents of a manager.
        """
        await self._metrics.update()
        with_others = call.query.others
        accept_header = call.request.headers.get("Accept", "")
        if self._metrics.has_exemplars and "application/openmetrics-text" in accept_header:
            return web.Response(
                body=self._metrics.openmetrics_exposition(with_others=with_others),
                headers={"Content-Type": CONTENT_TYPE_LATEST},
            )
        return web.Response(
            body=self._metrics.exposition(with_others=with_others),
            headers={"Content-Type": "text/plain; version=0.0.4"},
        )


class VersionApi:
    """The unsigned version probe (wire contract 1.3). The published Web UI compares ``manager`` to enable features."""

    def __init__(self, *, manager: str, build: str) -> None:
        self._reply: VersionReply = {"version": API_VERSION, "manager": manager, "build": build}

    @route("GET", "/", auth=False)
    async def version(self, call: Call) -> VersionReply:
        """Returns the API version of this server."""
        return self._reply

    @route("GET", "/{version}", auth=False, problems=(AuthenticationFailed,))
    async def major_version(self, call: Call) -> VersionReply:
        """Returns the latest minor release of one major API version, ``/v7``."""
        major = call.params["version"].removeprefix("v")
        if call.params["version"].startswith("v") and major.isascii() and major.isdigit() and len(major) < 4:
            minor = MINOR_RELEASES.get(int(major))
            if minor is not None:
                return {**self._reply, "version": f"v{int(major)}.{minor}"}
            raise NotFound("There is no such API version.")
        raise RouteNotFound
