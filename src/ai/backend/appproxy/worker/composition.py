"""Builds a worker from its parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from ai.backend.appproxy.worker.access.gate import Gate
from ai.backend.appproxy.worker.access.tokens import Tokens
from ai.backend.appproxy.worker.config.settings import WorkerSettings
from ai.backend.appproxy.worker.inference.endpoint import Counters
from ai.backend.appproxy.worker.link.link import CoordinatorLink
from ai.backend.appproxy.worker.link.state_file import StateFile
from ai.backend.appproxy.worker.metrics import InferenceMetrics, families_of
from ai.backend.appproxy.worker.planes.embedded.limits import Limits
from ai.backend.appproxy.worker.planes.embedded.plane import EmbeddedPlane, Frontend
from ai.backend.appproxy.worker.planes.haproxy.plane import HaproxyOptions, HaproxyPlane
from ai.backend.appproxy.worker.planes.plane import DataPlane
from ai.backend.appproxy.worker.planes.traefik.control import TraefikControl
from ai.backend.appproxy.worker.planes.traefik.plane import TraefikOptions, TraefikPlane
from ai.backend.appproxy.worker.upstreams import Dialer, RouteDialer
from ai.backend.common.errors import InvalidInput
from ai.backend.common.wire.appproxy import INFERENCE_KEY, AppFilter, FrontendMode, WorkerRegistration, purpose_key
from ai.backend.infra.config_store.etcd import EtcdConfigStore
from ai.backend.infra.http.addresses import parse_network
from ai.backend.infra.http.health import HealthApi
from ai.backend.infra.http.routes import endpoints_of
from ai.backend.infra.http.server import HttpServer, make_runner, serve_on, tls_of
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.settings.tables import EtcdSettings
from ai.backend.infra.telemetry import Metrics

STATE_FILE = "proxy-worker-state.json"


class Worker:
    """Runs a worker of the app proxy. Raises InvalidInput for settings that cannot be applied."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        process, secret = settings.proxy_worker, settings.secrets.api_secret.get_secret_value()
        permit_secret = settings.permit_hash.secret
        tokens = Tokens(
            shared_secret=secret,
            permit_secret=permit_secret.get_secret_value() if permit_secret else secret,
            started_at=time.time(),
        )
        try:
            proxies = [parse_network(text) for text in process.trusted_proxies]
        except ValueError as e:
            raise InvalidInput(f"proxy-worker.trusted-proxies: {e}") from None
        gate = Gate(tokens, is_secure=process.tls_advertised, trusted_proxies=proxies)
        self._dialer = RouteDialer()
        metrics = Metrics("appproxy-worker")
        self.plane = plane_of(settings, gate, self._dialer, metrics)
        state_file = StateFile(process.data_dir / STATE_FILE)
        self.link = CoordinatorLink(
            process.coordinator_endpoint,
            secret,
            lambda: registration_of(settings, self.api_address[1]),
            self.plane,
            self._dialer,
            state_file,
        )
        self._state_file = state_file
        metrics.expose(lambda: families_of(self.plane, self.link))
        server = HttpServer(endpoints_of(HealthApi(metrics, self._readiness)), metrics=metrics)
        self._runner = make_runner(server.application())
        self._task: asyncio.Task[None] | None = None
        self._is_serving = False

    async def _readiness(self) -> Mapping[str, bool]:
        """Returns by name if the frontend can serve.

        A worker without a coordinator still serves, and stays in a load balancer.
        """
        return {"frontend": self._is_serving}

    async def start(self) -> None:
        """Serves the circuits of the last run, and connects to the coordinator.

        Raises InvalidInput if the addresses of the settings cannot be used.
        """
        process = self.settings.proxy_worker
        process.data_dir.mkdir(parents=True, exist_ok=True)
        await self.plane.start()
        await self.link.restore()
        try:
            self.api_address = await serve_on(self._runner, (process.api_bind_addr.host, process.api_bind_addr.port))
        except OSError as e:
            raise InvalidInput(f"Cannot listen on {process.api_bind_addr.port}: {e.strerror}.") from None
        self._is_serving = True
        self._task = asyncio.create_task(self.link.run())

    async def stop(self) -> None:
        """Refuses new requests, lets open requests end, and stops. May be called after a failed start."""
        self._is_serving = False
        if self._task is not None:
            await self.plane.stop(drain_s=self.settings.proxy_worker.drain_timeout)
            await cancel_all(self._task)
            self._state_file.save()
        await self._runner.cleanup()


def plane_of(settings: WorkerSettings, gate: Gate, dialer: Dialer, metrics: Metrics | None = None) -> DataPlane:
    """Returns the data plane that the settings name.

    Its certificate's expiry is added to ``metrics``. Raises InvalidInput if a certificate cannot be used.
    """
    process, frontend = settings.proxy_worker, frontend_of(settings, metrics)
    table = process.limits.model_dump()
    per_address = table.pop("connections_per_address")
    limits = Limits(**table)
    inference = Counters() if metrics is None else Counters(on_served=InferenceMetrics(metrics).observe)
    if process.frontend_mode == "traefik" and process.traefik.etcd is not None:
        return TraefikPlane(
            frontend,
            gate,
            dialer,
            TraefikOptions(
                control=TraefikControl(
                    etcd_tree(process.traefik.etcd),
                    process.authority,
                    f"http://127.0.0.1:{process.traefik.api_port}",
                ),
                api_port=process.traefik.api_port,
                gate=(process.traefik.gate_addr.host, process.traefik.gate_addr.port),
                relay=(process.traefik.relay_addr.host, process.traefik.relay_addr.port),
                protocol=process.protocol,
            ),
            limits=limits,
            logs_access=process.access_log,
            inference=inference,
        )
    if process.data_plane == "embedded":
        return EmbeddedPlane(
            frontend,
            gate,
            dialer,
            limits=limits,
            connections_per_address=per_address,
            logs_access=process.access_log,
            inference=inference,
        )
    certificate = None
    if process.tls_listen and process.tls_cert is not None and process.tls_privkey is not None:
        certificate = (process.tls_cert, process.tls_privkey)
    options = HaproxyOptions(
        folder=process.data_dir.absolute() / f"haproxy-{process.api_bind_addr.port}",
        program=process.haproxy.program,
        threads=process.haproxy.threads,
        circuits=process.haproxy.circuits,
        protocol=process.protocol,
        certificate=certificate,
        token_key=purpose_key(settings.secrets.api_secret.get_secret_value(), INFERENCE_KEY),
    )
    return HaproxyPlane(
        frontend,
        gate,
        dialer,
        options,
        limits=limits,
        connections_per_address=per_address,
        logs_access=process.access_log,
        inference=inference,
    )


def etcd_tree(etcd: EtcdSettings) -> EtcdConfigStore:
    """Returns the etcd store that Traefik reads."""
    return EtcdConfigStore(etcd.endpoints, user=etcd.user, password=etcd.password.get_secret_value())


def frontend_of(settings: WorkerSettings, metrics: Metrics | None = None) -> Frontend:
    """Returns the address at which browsers connect. Raises InvalidInput if the certificate cannot be used."""
    process = settings.proxy_worker
    tls = None
    if process.tls_listen and process.tls_cert is not None and process.tls_privkey is not None:
        tls = tls_of(process.tls_cert, process.tls_privkey, metrics=metrics)
    models = (process.models_bind_addr.host, process.models_bind_addr.port) if process.models_bind_addr else None
    if process.frontend_mode == "traefik":
        (low, high), by_name = process.traefik.port_proxy.port_range, process.traefik.wildcard_domain
        is_by_name = process.mode is FrontendMode.WILDCARD and by_name is not None
        return Frontend(
            host="127.0.0.1",
            ports={} if is_by_name else {port: port for port in range(low, high + 1)},
            domain=by_name.domain if is_by_name and by_name is not None else None,
            is_secure=process.tls_advertised,
            models=models,
        )
    if process.mode is FrontendMode.WILDCARD and process.wildcard_domain is not None:
        wildcard = process.wildcard_domain
        return Frontend(
            host=wildcard.bind_addr.host,
            port=wildcard.bind_addr.port,
            domain=wildcard.domain,
            tls=tls,
            is_secure=process.tls_advertised,
            models=models,
        )
    proxy = process.port_proxy
    return Frontend(host=proxy.bind_host, ports=proxy.slots, tls=tls, is_secure=process.tls_advertised, models=models)


def registration_of(settings: WorkerSettings, api_port: int) -> WorkerRegistration:
    """Returns the worker's registration for the coordinator. ``api_port`` is the port of the worker's own API."""
    process = settings.proxy_worker
    api = process.api_advertised_addr or process.api_bind_addr
    hostname, port_range, domain, domain_port = api.host, None, None, None
    if process.frontend_mode == "traefik" and process.mode is FrontendMode.PORT:
        hostname, port_range = process.traefik.port_proxy.advertised_host, process.traefik.port_proxy.port_range
    elif process.frontend_mode == "traefik" and process.traefik.wildcard_domain is not None:
        domain, domain_port = process.traefik.wildcard_domain.domain, process.traefik.wildcard_domain.advertised_port
    elif process.mode is FrontendMode.PORT:
        proxy = process.port_proxy
        hostname = proxy.advertised_host or proxy.bind_host
        port_range = proxy.advertised_port_range or proxy.bind_port_range
    elif process.wildcard_domain is not None:
        wildcard = process.wildcard_domain
        domain, domain_port = wildcard.domain, wildcard.advertised_port or wildcard.bind_addr.port
    return WorkerRegistration(
        authority=process.authority,
        frontend_mode=process.mode,
        protocol=process.protocol,
        hostname=hostname,
        use_tls=process.tls_advertised,
        api_port=process.api_advertised_addr.port if process.api_advertised_addr else api_port,
        port_range=port_range,
        wildcard_domain=domain,
        wildcard_port=domain_port,
        filtered_apps_only=process.filtered_apps_only,
        accepted_traffics=process.accepted_traffics,
        app_filters=[AppFilter(key=each.key, value=each.value) for each in process.app_filters],
    )
