"""Builds the coordinator from its parts and serves it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version

import msgspec
from aiohttp import web

from ai.backend.appproxy.coordinator.circuits.api import CircuitsApi
from ai.backend.appproxy.coordinator.circuits.link_api import LinkApi
from ai.backend.appproxy.coordinator.circuits.links import Links
from ai.backend.appproxy.coordinator.circuits.service import CircuitService, Limits
from ai.backend.appproxy.coordinator.circuits.setup_api import SetupApi, allow_set_ups_of_other_origins
from ai.backend.appproxy.coordinator.circuits.sql import SqlCircuitStore
from ai.backend.appproxy.coordinator.circuits.tokens import TokenIssuer
from ai.backend.appproxy.coordinator.config.settings import MIN_SECRET_LENGTH, CoordinatorSettings
from ai.backend.appproxy.coordinator.db import MIGRATIONS, SCHEMA_HEAD
from ai.backend.appproxy.coordinator.endpoints.api import EndpointsApi
from ai.backend.appproxy.coordinator.endpoints.service import EndpointService
from ai.backend.appproxy.coordinator.workers.api import CoordinatorHealthApi, WorkersApi
from ai.backend.appproxy.coordinator.workers.service import Authority, WorkerService
from ai.backend.appproxy.coordinator.workers.sql import SqlAuthorityStore, SqlWorkerStore
from ai.backend.common.errors import BackendError, InvalidInput
from ai.backend.common.wire.appproxy import TOKEN_HEADER
from ai.backend.infra.clock import Clock, SystemClock
from ai.backend.infra.database import Database, Pool, upgrade
from ai.backend.infra.http.health import HealthApi
from ai.backend.infra.http.openapi import OpenApiApi, openapi_document
from ai.backend.infra.http.routes import Endpoint, endpoints_of
from ai.backend.infra.http.secret import SecretAuthenticator
from ai.backend.infra.http.server import HttpOptions, HttpServer, make_runner, serve_on, tls_of
from ai.backend.infra.loop import PeriodicCall, cancel_all
from ai.backend.infra.telemetry import Metrics

_TIDY_S = 30.0
TITLE = "Proxy Coordinator API"
TOKEN_SCHEME = {TOKEN_HEADER: {"type": "apiKey", "in": "header", "name": TOKEN_HEADER}}


class Coordinator:
    """Runs the coordinator process: its services, loops and HTTP API on one database.

    The database is that of the settings, or ``database``, which the coordinator closes. ``start`` returns once requests
    are served; ``url`` is then its address.
    """

    def __init__(
        self, settings: CoordinatorSettings, *, database: Database | None = None, clock: Clock | None = None
    ) -> None:
        self.settings = settings
        process, secret = settings.proxy_coordinator, settings.secrets.api_secret.get_secret_value()
        clock = clock or SystemClock()
        pool = settings.db.pool if settings.db else Pool()
        self.database = database or Database(settings.database_url, pool=pool)
        self.metrics = Metrics("appproxy-coordinator")
        store = SqlCircuitStore(self.database)
        self.workers = WorkerService(SqlWorkerStore(self.database), store, clock, process.worker_timeout)
        self.links = Links(store, self.workers, clock, timeout_s=process.delivery_timeout)
        self.circuits = CircuitService(
            store,
            self.workers,
            self.links,
            TokenIssuer(secret),
            clock,
            Limits(setup_s=process.setup_timeout, circuit_s=process.circuit_timeout, rest_s=process.slot_rest),
        )
        authority = Authority(SqlAuthorityStore(self.database))
        endpoints = api_endpoints(self, authority)
        server = HttpServer(
            [
                *endpoints,
                *endpoints_of(OpenApiApi(endpoints, title=TITLE, version=version("backendai"), scheme=TOKEN_SCHEME)),
            ],
            metrics=self.metrics,
            authenticator=SecretAuthenticator(secret, TOKEN_HEADER),
            options=HttpOptions(
                connections_per_address=0,
                anonymous_rate_limit=process.anonymous_rate_limit,
                trusted_proxies=frozenset(process.trusted_proxies),
                has_versions=False,
            ),
        )
        app = server.application()
        app.on_response_prepare.append(allow_set_ups_of_other_origins)
        self._runner: web.AppRunner = make_runner(app)
        self._tidy = PeriodicCall("tidying of circuits", _TIDY_S, self.circuits.remove_unneeded)
        self._tasks: list[asyncio.Task[None]] = []
        self.url = ""

    async def start(self, address: socket.socket | tuple[str, int] | None = None) -> None:
        """Creates or upgrades the database, then serves. ``address`` replaces that of the settings.

        Raises InvalidInput: it cannot listen there. Unavailable: the database is away.
        """
        process = self.settings.proxy_coordinator
        await upgrade(self.database, MIGRATIONS, head=SCHEMA_HEAD)
        address = address or (process.bind_addr.host, process.bind_addr.port)
        tls = _tls_context(self.settings, self.metrics)
        try:
            host, port = await serve_on(self._runner, address, tls=tls)
        except OSError as e:
            raise InvalidInput(f"Cannot listen on {address}: {e.strerror}.") from None
        self.url = f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
        self._tasks = [asyncio.ensure_future(loop.run()) for loop in (self.links, self._tidy)]

    async def readiness(self) -> Mapping[str, bool]:
        """Returns True under ``database`` if the database answers, and under ``workers`` if a worker is alive."""
        with suppress(BackendError):
            return {"database": True, "workers": any(worker.nodes for worker in await self.workers.all())}
        return {"database": False}

    async def gauges(self) -> Mapping[str, float]:
        workers = await self.workers.all()
        slots_of_worker = await self.workers.use.slots()
        return {
            "workers_alive": sum(worker.nodes > 0 for worker in workers),
            "workers_lost": sum(worker.nodes == 0 for worker in workers),
            "circuits": sum(map(len, slots_of_worker.values())),
            "links": self.links.count,
        }

    async def stop(self) -> None:
        """Stops serving. Workers continue to serve their present circuits. May be called after a failed start."""
        await cancel_all(*self._tasks)
        await self._runner.cleanup()
        await self.database.close()


def api_endpoints(coordinator: Coordinator, authority: Authority) -> list[Endpoint]:
    """Returns every endpoint except the OpenAPI document, which describes these endpoints."""
    workers, circuits = coordinator.workers, coordinator.circuits
    public_url = coordinator.settings.proxy_coordinator.public_url
    apis_of_tag: tuple[tuple[str, tuple[object, ...]], ...] = (
        ("circuits", (CircuitsApi(circuits),)),
        ("set-ups", (SetupApi(circuits, public_url),)),
        ("endpoints", (EndpointsApi(EndpointService(circuits)),)),
        ("workers", (WorkersApi(workers, authority), LinkApi(coordinator.links, workers))),
        (
            "health",
            (CoordinatorHealthApi(workers), HealthApi(coordinator.metrics, coordinator.readiness, coordinator.gauges)),
        ),
    )
    return [endpoint for tag, apis in apis_of_tag for api in apis for endpoint in endpoints_of(api, tag=tag)]


def _tls_context(settings: CoordinatorSettings, metrics: Metrics) -> ssl.SSLContext | None:
    process = settings.proxy_coordinator
    if not process.ssl_enabled or process.ssl_cert is None or process.ssl_privkey is None:
        return None
    return tls_of(process.ssl_cert, process.ssl_privkey, metrics=metrics)


def openapi_json() -> str:
    """Returns the OpenAPI document without the software version, so that releases do not change the document."""
    settings = CoordinatorSettings.model_validate({"secrets": {"api-secret": "-" * MIN_SECRET_LENGTH}})
    coordinator = Coordinator(settings, database=Database("sqlite://"))
    endpoints = api_endpoints(coordinator, Authority(SqlAuthorityStore(coordinator.database)))
    document = openapi_document(endpoints, title=TITLE, version="24.03.0a1", scheme=TOKEN_SCHEME)
    return msgspec.json.format(msgspec.json.encode(document, order="deterministic"), indent=1).decode() + "\n"
