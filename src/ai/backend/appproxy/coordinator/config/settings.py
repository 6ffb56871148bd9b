"""``proxy-coordinator.toml`` (spec 03-02, 03-16)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import Field, SecretStr, model_validator

from ai.backend.infra.settings import Settings
from ai.backend.infra.settings.examples import refuse_example
from ai.backend.infra.settings.published import unused_field
from ai.backend.infra.settings.tables import (
    Address,
    DbSettings,
    DebugSettings,
    HostPort,
    LoggingSettings,
    MonitorSettings,
    OtelSettings,
    RedisSettings,
    TlsSettings,
)

DEFAULT_PORT = 10200
MIN_SECRET_LENGTH = 32
"""Characters: HMAC-SHA256 requires a key as long as its digest (RFC 7518, 3.2)."""


class CoordinatorDbSettings(DbSettings):
    """The table ``[db]``."""

    name: str = Field("appproxy", description="Name of the database.")
    user: str = Field("appproxy", description="Who asks.")


class ProcessSettings(TlsSettings):
    """The table ``[proxy_coordinator]``."""

    bind_addr: Address = Field(HostPort(host="127.0.0.1", port=DEFAULT_PORT), description="Where it listens.")
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^/\s]+$",
        description="Where browsers reach it, without a last slash; its own address if unset.",
    )
    data_dir: Path = Field(Path(), description="Where its SQLite database is if there is no table [db].")
    pid_file: Path | None = Field(None, description="Where the process id is written.")
    worker_timeout: float = Field(
        30.0, gt=0, description="Seconds without a heartbeat after which a worker is lost and gets no new circuits."
    )
    delivery_timeout: float = Field(
        10.0, gt=0, description="Seconds that a browser waits until the worker serves its circuit."
    )
    setup_timeout: float = Field(
        300.0, gt=0, description="Seconds that the address which `start-service` returns may be opened, once."
    )
    circuit_timeout: float = Field(
        43_200.0, ge=0, description="Seconds without use after which the circuit of an app is removed; 0: never."
    )
    slot_rest: float = Field(
        600.0, ge=0, description="Seconds that a port rests before it is given to the circuit of another user."
    )
    trusted_proxies: list[str] = Field([], description="Addresses of reverse proxies whose X-Forwarded-For counts.")
    anonymous_rate_limit: int = Field(
        5_000, ge=0, description="Requests without a secret from one address in 15 minutes; 0 allows any number."
    )
    enable_traefik: bool = unused_field(False, "workers write the configuration of Traefik themselves")
    traefik: dict[str, Any] = unused_field(dict, "workers write the configuration of Traefik themselves")


class SecretsSettings(Settings):
    """The table ``[secrets]``."""

    api_secret: SecretStr = Field(
        min_length=MIN_SECRET_LENGTH,
        description="What managers and workers send in X-BackendAI-Token, at least 32 characters; the same for all of"
        " them, and the wsproxy-api-token of resource groups.",
    )


class CoordinatorSettings(Settings):
    """All the settings."""

    proxy_coordinator: ProcessSettings = Field(ProcessSettings(), description="This process.")
    secrets: SecretsSettings
    db: CoordinatorDbSettings | None = Field(None, description="The database; SQLite in data-dir if unset.")
    redis: RedisSettings | None = unused_field(None, "coordinators meet in the database")
    logging: LoggingSettings = Field(LoggingSettings(), description="Logs.")
    debug: DebugSettings = Field(DebugSettings(), description="Finding faults.")
    otel: OtelSettings = Field(OtelSettings(), description="Traces, metrics and logs to a collector.")
    monitors: MonitorSettings = Field(MonitorSettings(), description="Services that errors and figures go to.")

    @model_validator(mode="after")
    def _has_secret_of_its_own(self) -> Self:
        refuse_example(self.proxy_coordinator.bind_addr.host, api_secret=self.secrets.api_secret)
        return self

    @property
    def database_url(self) -> str:
        if self.db is not None:
            return self.db.url
        return f"sqlite:///{self.proxy_coordinator.data_dir.absolute() / 'coordinator.db'}"
