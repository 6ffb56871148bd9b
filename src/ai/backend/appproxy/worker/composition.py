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
        process_settings, api_secret = settings.proxy_worker, settings.secrets.api_secret.get_secret_value()
        permit_secret = settings.permit_hash.secret
        tokens = Tokens(
            shared_secret=api_secret,
            permit_secret=permit_secret.get_secret_value() if permit_secret else api_secret,
            started_at=time.time(),
        )
        try:
            trusted_proxies = [parse_network(network) for network in process_settings.trusted_proxies]
        except ValueError as e:
            raise InvalidInput(f"proxy-worker.trusted-proxies: {e}") from None
        gate = Gate(tokens, is_secure=process_settings.tls_advertised, trusted_proxies=trusted_proxies)
        self._dialer = RouteDialer()
        metrics = Metrics("appproxy-worker")
        self.plane = plane_of(settings, gate, self._dialer, metrics)
        state_file = StateFile(process_settings.data_dir / STATE_FILE)
        self.link = CoordinatorLink(
            process_settings.coordinator_endpoint,
            api_secret,
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
        """Returns the result of the readiness check ``frontend``: True if the worker serves its circuits.

        A worker without a coordinator still serves, and stays in a load balancer.
        """
        return {"frontend": self._is_serving}

    async def start(self) -> None:
        """Starts the data plane with the stored circuits, serves the worker's API, and connects to the coordinator.

        Raises InvalidInput if the addresses of the settings cannot be used.
        """
        process_settings = self.settings.proxy_worker
        process_settings.data_dir.mkdir(parents=True, exist_ok=True)
        await self.plane.start()
        await self.link.restore()
        try:
            self.api_address = await serve_on(
                self._runner, (process_settings.api_bind_addr.host, process_settings.api_bind_addr.port)
            )
        except OSError as e:
            raise InvalidInput(f"Cannot listen on {process_settings.api_bind_addr.port}: {e.strerror}.") from None
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
    """Makes the data plane that the settings select: embedded, HAProxy or Traefik.

    Its certificate's expiry is added to ``metrics``. Raises InvalidInput if a certificate cannot be used.
    """
    process_settings, frontend = settings.proxy_worker, frontend_of(settings, metrics)
    limit_values = process_settings.limits.model_dump()
    connections_per_address = limit_values.pop("connections_per_address")
    limits = Limits(**limit_values)
    inference_counters = Counters() if metrics is None else Counters(on_served=InferenceMetrics(metrics).observe)
    if process_settings.frontend_mode == "traefik" and process_settings.traefik.etcd is not None:
        return TraefikPlane(
            frontend,
            gate,
            dialer,
            TraefikOptions(
                control=TraefikControl(
                    traefik_config_store(process_settings.traefik.etcd),
                    process_settings.authority,
                    f"http://127.0.0.1:{process_settings.traefik.api_port}",
                ),
                api_port=process_settings.traefik.api_port,
                gate=(process_settings.traefik.gate_addr.host, process_settings.traefik.gate_addr.port),
                relay=(process_settings.traefik.relay_addr.host, process_settings.traefik.relay_addr.port),
                protocol=process_settings.protocol,
            ),
            limits=limits,
            logs_access=process_settings.access_log,
            inference=inference_counters,
        )
    if process_settings.data_plane == "embedded":
        return EmbeddedPlane(
            frontend,
            gate,
            dialer,
            limits=limits,
            connections_per_address=connections_per_address,
            logs_access=process_settings.access_log,
            inference=inference_counters,
        )
    certificate = None
    if (
        process_settings.tls_listen
        and process_settings.tls_cert is not None
        and process_settings.tls_privkey is not None
    ):
        certificate = (process_settings.tls_cert, process_settings.tls_privkey)
    options = HaproxyOptions(
        folder=process_settings.data_dir.absolute() / f"haproxy-{process_settings.api_bind_addr.port}",
        program=process_settings.haproxy.program,
        threads=process_settings.haproxy.threads,
        circuits=process_settings.haproxy.circuits,
        protocol=process_settings.protocol,
        certificate=certificate,
        token_key=purpose_key(settings.secrets.api_secret.get_secret_value(), INFERENCE_KEY),
    )
    return HaproxyPlane(
        frontend,
        gate,
        dialer,
        options,
        limits=limits,
        connections_per_address=connections_per_address,
        logs_access=process_settings.access_log,
        inference=inference_counters,
    )


def traefik_config_store(etcd: EtcdSettings) -> EtcdConfigStore:
    """Returns the etcd store that Traefik reads."""
    return EtcdConfigStore(etcd.endpoints, user=etcd.user, password=etcd.password.get_secret_value())


def frontend_of(settings: WorkerSettings, metrics: Metrics | None = None) -> Frontend:
    """Returns the address at which browsers connect. Raises InvalidInput if the certificate cannot be used."""
    process_settings = settings.proxy_worker
    tls = None
    if (
        process_settings.tls_listen
        and process_settings.tls_cert is not None
        and process_settings.tls_privkey is not None
    ):
        tls = tls_of(process_settings.tls_cert, process_settings.tls_privkey, metrics=metrics)
    models_address = (
        (process_settings.models_bind_addr.host, process_settings.models_bind_addr.port)
        if process_settings.models_bind_addr
        else None
    )
    if process_settings.frontend_mode == "traefik":
        (low_port, high_port), wildcard_domain = (
            process_settings.traefik.port_proxy.port_range,
            process_settings.traefik.wildcard_domain,
        )
        uses_host_names = process_settings.mode is FrontendMode.WILDCARD and wildcard_domain is not None
        return Frontend(
            host="127.0.0.1",
            ports={} if uses_host_names else {port: port for port in range(low_port, high_port + 1)},
            domain=wildcard_domain.domain if uses_host_names and wildcard_domain is not None else None,
            is_secure=process_settings.tls_advertised,
            models=models_address,
        )
    if process_settings.mode is FrontendMode.WILDCARD and process_settings.wildcard_domain is not None:
        wildcard = process_settings.wildcard_domain
        return Frontend(
            host=wildcard.bind_addr.host,
            port=wildcard.bind_addr.port,
            domain=wildcard.domain,
            tls=tls,
            is_secure=process_settings.tls_advertised,
            models=models_address,
        )
    port_proxy = process_settings.port_proxy
    return Frontend(
        host=port_proxy.bind_host,
        ports=port_proxy.slots,
        tls=tls,
        is_secure=process_settings.tls_advertised,
        models=models_address,
    )


def registration_of(settings: WorkerSettings, api_port: int) -> WorkerRegistration:
    """Returns the worker's registration for the coordinator. ``api_port`` is the port of the worker's own API."""
    process_settings = settings.proxy_worker
    api_address = process_settings.api_advertised_addr or process_settings.api_bind_addr
    hostname, port_range, domain, domain_port = api_address.host, None, None, None
    if process_settings.frontend_mode == "traefik" and process_settings.mode is FrontendMode.PORT:
        hostname, port_range = (
            process_settings.traefik.port_proxy.advertised_host,
            process_settings.traefik.port_proxy.port_range,
        )
    elif process_settings.frontend_mode == "traefik" and process_settings.traefik.wildcard_domain is not None:
        domain, domain_port = (
            process_settings.traefik.wildcard_domain.domain,
            process_settings.traefik.wildcard_domain.advertised_port,
        )
    elif process_settings.mode is FrontendMode.PORT:
        port_proxy = process_settings.port_proxy
        hostname = port_proxy.advertised_host or port_proxy.bind_host
        port_range = port_proxy.advertised_port_range or port_proxy.bind_port_range
    elif process_settings.wildcard_domain is not None:
        wildcard = process_settings.wildcard_domain
        domain, domain_port = wildcard.domain, wildcard.advertised_port or wildcard.bind_addr.port
    return WorkerRegistration(
        authority=process_settings.authority,
        frontend_mode=process_settings.mode,
        protocol=process_settings.protocol,
        hostname=hostname,
        use_tls=process_settings.tls_advertised,
        api_port=process_settings.api_advertised_addr.port if process_settings.api_advertised_addr else api_port,
        port_range=port_range,
        wildcard_domain=domain,
        wildcard_port=domain_port,
        filtered_apps_only=process_settings.filtered_apps_only,
        accepted_traffics=process_settings.accepted_traffics,
        app_filters=[
            AppFilter(key=app_filter.key, value=app_filter.value) for app_filter in process_settings.app_filters
        ],
    )
