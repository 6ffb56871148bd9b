"""``proxy-worker.toml`` (spec 03-02, 03-16)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, model_validator

from ai.backend.common.wire.appproxy import AppMode, FrontendMode, ProxyProtocol
from ai.backend.infra.settings import Settings
from ai.backend.infra.settings.examples import refuse_example
from ai.backend.infra.settings.published import unused_field
from ai.backend.infra.settings.tables import (
    Address,
    DebugSettings,
    EtcdSettings,
    HostPort,
    LoggingSettings,
    MonitorSettings,
    OtelSettings,
    RedisSettings,
)

MIN_SECRET_LENGTH = 32
"""Characters: HMAC-SHA256 requires a key as long as its digest (RFC 7518, 3.2)."""
_DOMAIN = r"^\.[a-z0-9-]+(\.[a-z0-9-]+)*$"
PortRange = tuple[Annotated[int, Field(ge=1, le=65535)], Annotated[int, Field(ge=1, le=65535)]]


class PortProxySettings(Settings):
    """The table ``[proxy_worker.port_proxy]``: one port for each circuit."""

    bind_host: str = Field("127.0.0.1", description="Address to listen on.")
    advertised_host: str | None = Field(None, description="Name or address that browsers use; bind-host if unset.")
    bind_port_range: PortRange = Field((10205, 10300), description="First and last port to listen on.")
    advertised_port_range: PortRange | None = Field(
        None, description="Ports that browsers use, as many as in bind-port-range; the same ones if unset."
    )

    @model_validator(mode="after")
    def _check_port_ranges(self) -> Self:
        low_port, high_port = self.bind_port_range
        if low_port > high_port:
            raise ValueError("bind-port-range must have the lower port first")
        if self.advertised_port_range is not None:
            first_advertised, last_advertised = self.advertised_port_range
            if last_advertised - first_advertised != high_port - low_port:
                raise ValueError("advertised-port-range needs as many ports as bind-port-range")
        return self

    @property
    def slots(self) -> dict[int, int]:
        """Maps each port that browsers use to the port on which the worker listens for it."""
        (low_port, high_port), (first_advertised, _) = (
            self.bind_port_range,
            self.advertised_port_range or self.bind_port_range,
        )
        return {first_advertised + index: low_port + index for index in range(high_port - low_port + 1)}


class WildcardSettings(Settings):
    """The table ``[proxy_worker.wildcard_domain]``: one host name for each circuit."""

    domain: str = Field(
        pattern=_DOMAIN,
        description="The domain with its first dot, as .apps.example.net; a DNS record *.apps.example.net leads here.",
    )
    bind_addr: Address = Field(HostPort(host="127.0.0.1", port=10250), description="Where it listens.")
    advertised_port: int | None = Field(
        None, ge=1, le=65535, description="Port that browsers use; the one of bind-addr if unset."
    )


class AppFilterSettings(Settings):
    """An entry of ``app-filters``: a property of apps, and the value that the property must have at this worker."""

    key: str = Field(description="What is compared; see the coordinator.")
    value: str = Field(description="Its value.")


class LimitSettings(Settings):
    """The table ``[proxy_worker.limits]``; times are in seconds."""

    head_bytes: int = Field(64 * 1024, ge=1024, description="Bytes of a request line with its header fields.")
    header_fields: int = Field(128, ge=8, description="Header fields of one request.")
    body_bytes: int = Field(0, ge=0, description="Bytes of a request body; 0 allows any number.")
    head_s: float = Field(15.0, gt=0, description="For a client to send the head of a request.")
    keep_alive_s: float = Field(75.0, gt=0, description="Between two requests of a connection.")
    body_gap_s: float = Field(60.0, gt=0, description="Between two pieces of a request body.")
    connect_s: float = Field(10.0, gt=0, description="For a connection to an app.")
    first_byte_s: float = Field(600.0, gt=0, description="For an app to begin its response.")
    stream_gap_s: float = Field(3600.0, gt=0, description="Between two pieces of a response.")
    unread_s: float = Field(60.0, gt=0, description="For which a client may leave a response unread.")
    tunnel_gap_s: float = Field(86_400.0, gt=0, description="Without a byte on a WebSocket or TCP connection.")
    model_body_bytes: int = Field(
        32 << 20,
        ge=1024,
        description="Bytes of a request to a model, which is read whole before a replica is picked.",
    )
    model_bodies_bytes: int = Field(512 << 20, ge=1024, description="Bytes of all such requests that are open.")
    circuit_connections: int = Field(
        10_000, ge=1, description="Requests and connections that one circuit may have open."
    )
    connections_per_address: int = Field(
        0, ge=0, description="Open connections of one client address; 0 allows any number."
    )


class HaproxySettings(Settings):
    """The table ``[proxy_worker.haproxy]``, for ``data-plane = "haproxy"``."""

    program: str = Field("haproxy", description="The program, 2.6 or newer: a name that is searched for, or a path.")
    threads: int = Field(1, ge=1, le=64, description="Threads of HAProxy; with several, weights are near, not exact.")
    circuits: int = Field(
        256,
        ge=1,
        le=10_000,
        description="Circuits that HAProxy passes on by itself; the worker's own process serves further ones.",
    )


class TraefikPortSettings(Settings):
    """The table ``[proxy_worker.traefik.port_proxy]``: Traefik has an entry point ``portproxy_PORT`` for each port."""

    advertised_host: str = Field("127.0.0.1", description="Name or address that browsers use.")
    port_range: PortRange = Field((10205, 10300), description="First and last port that browsers use.")

    @model_validator(mode="after")
    def _check_port_ranges(self) -> Self:
        if self.port_range[0] > self.port_range[1]:
            raise ValueError("port-range must have the lower port first")
        return self


class TraefikWildcardSettings(Settings):
    """The table ``[proxy_worker.traefik.wildcard_domain]``: Traefik has the entry point ``domainproxy``."""

    domain: str = Field(pattern=_DOMAIN, description="The domain with its first dot, as .apps.example.net.")
    advertised_port: int | None = Field(
        None, ge=1, le=65535, description="Port that browsers use; the usual one of the scheme if unset."
    )


class TraefikSettings(Settings):
    """The table ``[proxy_worker.traefik]`` (spec 03-16), for ``frontend-mode = "traefik"``; the operator runs it."""

    frontend_mode: Literal["port", "wildcard"] = Field(
        "port", description="port: a port for each circuit; wildcard: a host name for each."
    )
    api_port: int = Field(8080, ge=1, le=65535, description="Port of Traefik's own API, at 127.0.0.1.")
    etcd: EtcdSettings | None = Field(
        None, description="The etcd that Traefik reads, below traefik/worker_AUTHORITY. Its namespace is not used."
    )
    port_proxy: TraefikPortSettings = Field(TraefikPortSettings(), description="Ports, for frontend-mode port.")
    wildcard_domain: TraefikWildcardSettings | None = Field(None, description="Host names, for frontend-mode wildcard.")
    gate_addr: Address = Field(
        HostPort(host="127.0.0.1", port=10203),
        description="Where the worker answers Traefik's questions about requests; one for all nodes of an authority.",
    )
    relay_addr: Address = Field(
        HostPort(host="127.0.0.1", port=10204),
        description="Where the worker takes connections of models and of routes by gateways from Traefik; one for all"
        " nodes of an authority.",
    )
    last_used_time_marker_directory: Any = unused_field(None, "the worker sees requests by itself, without a plugin")


class WorkerProcessSettings(Settings):
    """The table ``[proxy_worker]``: the addresses, ports, TLS, frontend, data plane and limits of the worker."""

    coordinator_endpoint: str = Field(
        "http://127.0.0.1:10200", pattern=r"^https?://[^/\s]+/?$", description="Where the coordinator is."
    )
    authority: str = Field(
        "worker-1", min_length=1, max_length=255, description="Name of the worker; nodes of one name share circuits."
    )
    tls_listen: bool = Field(False, description="Whether the frontend speaks TLS itself.")
    tls_advertised: bool = Field(
        False, description="Whether browsers reach the frontend by TLS; true also behind a balancer that speaks it."
    )
    tls_cert: Path | None = Field(None, description="Certificate of the frontend, in PEM; for tls-listen.")
    tls_privkey: Path | None = Field(None, description="Key of the certificate, in PEM.")
    frontend_mode: Literal["port", "wildcard", "traefik"] = Field(
        "port",
        description="port: a port for each circuit; wildcard: a host name for each; traefik: see the table traefik.",
    )
    data_plane: Literal["embedded", "haproxy"] = Field(
        "embedded",
        description="What moves the bytes: embedded is this process; haproxy is a process of HAProxy that it runs.",
    )
    protocol: ProxyProtocol = Field(
        ProxyProtocol.HTTP,
        description="Protocol of its circuits: http or tcp; with data-plane haproxy also h2 or grpc.",
    )
    accepted_traffics: list[AppMode] = Field(
        list(AppMode), description="Kinds of circuits: interactive (apps of sessions), inference (endpoints)."
    )
    api_bind_addr: Address = Field(
        HostPort(host="127.0.0.1", port=10201), description="Where metrics and health are served."
    )
    api_advertised_addr: Address | None = Field(
        None, description="Where others reach that address; api-bind-addr if unset."
    )
    models_bind_addr: Address | None = Field(
        None,
        description="Where all models are served by one base URL, /v1, each to the tokens that are good for it; none if"
        " unset. Behind the same TLS as the frontend.",
    )
    port_proxy: PortProxySettings = Field(PortProxySettings(), description="Ports, for frontend-mode port.")
    wildcard_domain: WildcardSettings | None = Field(None, description="Host names, for frontend-mode wildcard.")
    haproxy: HaproxySettings = Field(HaproxySettings(), description="HAProxy, for data-plane haproxy.")
    filtered_apps_only: bool = Field(False, description="Whether it serves only apps that one of its filters matches.")
    app_filters: list[AppFilterSettings] = Field([], description="Its filters, each {key, value}.")
    trusted_proxies: list[str] = Field(
        [], description="Networks of balancers whose X-Forwarded-For counts as the client's address."
    )
    data_dir: Path = Field(
        Path(), description="Where the file of its circuits is, by which it serves before the coordinator answers."
    )
    drain_timeout: float = Field(30.0, ge=0, description="Seconds that open requests may take when it stops.")
    access_log: bool = Field(False, description="Logs each request, without its query and the client's address.")
    limits: LimitSettings = Field(LimitSettings(), description="Limits of requests and connections.")
    pid_file: Path | None = Field(None, description="Where the process id is written.")
    announce_addr: Any = unused_field(None, "workers are not found by service discovery but register themselves")
    traefik: TraefikSettings = Field(TraefikSettings(), description="Traefik, for frontend-mode traefik.")

    @model_validator(mode="after")
    def _check_completeness(self) -> Self:
        if self.frontend_mode == "wildcard" and self.wildcard_domain is None:
            raise ValueError("frontend-mode wildcard needs the table wildcard-domain")
        if self.tls_listen and (self.tls_cert is None or self.tls_privkey is None):
            raise ValueError("tls-listen needs tls-cert and tls-privkey")
        if self.tls_listen and not self.tls_advertised:
            raise ValueError("tls-listen without tls-advertised: browsers would be sent to http")
        if self.data_plane == "embedded" and self.protocol not in (ProxyProtocol.HTTP, ProxyProtocol.TCP):
            raise ValueError(
                f"protocol {self.protocol}: the embedded data plane serves http and tcp; haproxy has {self.protocol}"
            )
        self._check_traefik()
        if self.protocol is ProxyProtocol.TCP and self.mode is FrontendMode.WILDCARD:
            raise ValueError("protocol tcp needs frontend-mode port: raw TCP has no host name")
        return self

    def _check_traefik(self) -> None:
        if self.frontend_mode != "traefik":
            return
        if self.traefik.etcd is None:
            raise ValueError("frontend-mode traefik needs the table traefik.etcd")
        if self.traefik.frontend_mode == "wildcard" and self.traefik.wildcard_domain is None:
            raise ValueError("frontend-mode wildcard needs the table traefik.wildcard-domain")
        if self.data_plane != "embedded" or self.tls_listen:
            raise ValueError("frontend-mode traefik: no data-plane and no tls-listen, as Traefik listens")
        if not self.authority.isprintable() or "/" in self.authority:
            raise ValueError("authority: with Traefik it is part of a key, and has no slash")

    @property
    def mode(self) -> FrontendMode:
        return FrontendMode(self.traefik.frontend_mode if self.frontend_mode == "traefik" else self.frontend_mode)


class SecretsSettings(Settings):
    """The table ``[secrets]``: the secret that the worker shares with the coordinator."""

    api_secret: SecretStr = Field(
        min_length=MIN_SECRET_LENGTH, description="The api-secret of the coordinator, at least 32 characters."
    )
    jwt_secret: SecretStr = unused_field(SecretStr(""), "keys of tokens are derived from api-secret")


class PermitSettings(Settings):
    """The table ``[permit_hash]``: the key by which permit cookies are signed."""

    secret: SecretStr | None = Field(
        None,
        min_length=MIN_SECRET_LENGTH,
        description="Signs permit cookies, at least 32 characters; the same for nodes of one authority. If unset, a key"
        " is derived from api-secret.",
    )
    enabled: bool = unused_field(True, "permits are always checked")
    digest_mod: str = unused_field("sha256", "permits are signed with HMAC-SHA256")


class WorkerSettings(Settings):
    """All the settings of the worker of the app proxy."""

    proxy_worker: WorkerProcessSettings = Field(WorkerProcessSettings(), description="This process.")
    secrets: SecretsSettings
    permit_hash: PermitSettings = Field(PermitSettings(), description="Permit cookies.")
    redis: RedisSettings | None = unused_field(None, "workers hear of circuits by their link with the coordinator")
    logging: LoggingSettings = Field(LoggingSettings(), description="Logs.")
    debug: DebugSettings = Field(DebugSettings(), description="Finding faults.")
    otel: OtelSettings = Field(OtelSettings(), description="Traces, metrics and logs to a collector.")
    monitors: MonitorSettings = Field(MonitorSettings(), description="Services that errors and figures go to.")

    @model_validator(mode="after")
    def _check_secret(self) -> Self:
        process_settings = self.proxy_worker
        hosts = [
            address.host
            for address in (process_settings.api_bind_addr, process_settings.models_bind_addr)
            if address is not None
        ]
        if process_settings.frontend_mode == "port":
            hosts.append(process_settings.port_proxy.bind_host)
        elif process_settings.wildcard_domain is not None:
            hosts.append(process_settings.wildcard_domain.bind_addr.host)
        for host in hosts:
            refuse_example(host, api_secret=self.secrets.api_secret)
        return self
