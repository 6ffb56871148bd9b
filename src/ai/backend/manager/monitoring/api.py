"""REST routes for Prometheus beside ``/metrics``: what there is to scrape, the metrics of one agent, the kernels."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import SecretStr

from ai.backend.common.errors import AuthenticationFailed, Forbidden, Unavailable
from ai.backend.common.ids import AgentId
from ai.backend.common.wire.reports import MetricFamily, MetricSample
from ai.backend.infra.http.routes import Call, OwnerKey, route
from ai.backend.infra.telemetry.metrics import FamilyCollector
from ai.backend.manager.access.requests import SESSION_PROBLEMS
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.monitoring.reports import SessionReport, SessionReports
from ai.backend.manager.monitoring.targets import ScrapeTargets, TargetGroup
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.views import session_of

_WORKLOADS = "backendai_kernel_workload"


class ReportsApi(msgspec.Struct, frozen=True):
    """The route that returns a report on one session, for callers who may see all agents."""

    reports: SessionReports
    owner_key = OwnerKey.NAMED
    problems = SESSION_PROBLEMS

    @route("GET", "/session/{s}/report")
    async def report(self, call: Call) -> SessionReport:
        """Returns the report on a session: its statuses, decisions, errors, events, and the logs of its daemons."""
        return await self.reports.report_of(**session_of(call))


class MonitoringApi(msgspec.Struct, frozen=True):
    """Routes of monitoring systems. ``token`` guards the lists of targets, which have addresses of the installation,
    and of kernels, which belong to users."""

    targets: ScrapeTargets
    stats: LiveMetrics
    sessions: SessionStore
    token: SecretStr | None

    @route("GET", "/metrics/targets", auth=False, problems=(AuthenticationFailed, Forbidden))
    async def list_targets(self, call: Call) -> list[TargetGroup]:
        """Lists what Prometheus scrapes, in the form of its HTTP service discovery; needs a bearer token."""
        self._check_token(call)
        return await self.targets.target_groups(call.request.host, scheme=call.request.scheme)

    @route(
        "GET", "/metrics/agents/{agent}", auth=False, limited=False, produces=("text/plain",), problems=(Unavailable,)
    )
    async def metrics_of_agent(self, call: Call) -> web.Response:
        """Returns the metrics of one agent in the text format of Prometheus; 503 while it is silent."""
        families = self.stats.families_of(AgentId(call.params["agent"]))
        if families is None:
            raise Unavailable("This agent has not reported lately.")
        return _metrics_response(families)

    @route("GET", "/metrics/kernels", auth=False, produces=("text/plain",), problems=(AuthenticationFailed, Forbidden))
    async def list_kernels(self, call: Call) -> web.Response:
        """Lists the workloads of live kernels in the text format of Prometheus; needs a bearer token. What others
        measure of a workload, such as Kata's monitor, is joined by it."""
        self._check_token(call)
        samples = [
            MetricSample(
                labels={
                    "session_id": str(workload.session_id),
                    "kernel_id": str(workload.kernel_id),
                    "agent": str(workload.agent),
                    "workload_id": workload.container_id,
                    "runtime_class": workload.runtime_class,
                },
                value=1.0,
            )
            for workload in await self.sessions.workloads()
        ]
        help_text = "Live kernels with the ids of their workloads: containers or pods."
        return _metrics_response([MetricFamily(name=_WORKLOADS, kind="gauge", help=help_text, samples=samples)])

    def _check_token(self, call: Call) -> None:
        if self.token is None:
            raise Forbidden("Nobody may read this until metrics.targets-token is set.")
        expected_header = f"Bearer {self.token.get_secret_value()}".encode()
        given_header = call.request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(given_header, expected_header):
            raise AuthenticationFailed("The bearer token is not that of metrics.targets-token.")


def _metrics_response(families: Sequence[MetricFamily]) -> web.Response:
    registry = CollectorRegistry()
    registry.register(FamilyCollector(lambda: families))
    return web.Response(body=generate_latest(registry), headers={"Content-Type": "text/plain; version=0.0.4"})
