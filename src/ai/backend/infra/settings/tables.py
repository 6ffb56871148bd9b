"""Defines the settings tables that several daemons share, as in the published files (spec 03-02)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import quote

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from ai.backend.infra.settings.published import unused_field
from ai.backend.plugin.settings import Settings, Size

if TYPE_CHECKING:
    from ai.backend.infra.database import Pool


class HostPort(Settings):
    """A host and a port: ``{ host = "...", port = ... }``."""

    host: str = Field(description="Name or address.")
    port: int = Field(ge=0, le=65535, description="Port.")


def _split_address(value: object) -> object:
    """Converts an address ``host:port`` to a map of ``host`` and ``port``. Returns any other value unchanged."""
    if isinstance(value, str):
        host, _, port = value.rpartition(":")
        return {"host": host.strip("[]"), "port": port}
    return value


def _split_addresses(value: object) -> object:
    if isinstance(value, str):
        return [_split_address(address.strip()) for address in value.split(",")]
    return [value] if isinstance(value, dict) else value


Address = Annotated[HostPort, BeforeValidator(_split_address)]
Addresses = Annotated[list[HostPort], BeforeValidator(_split_addresses)]


class EtcdSettings(Settings):
    """The table ``[etcd]``: the etcd servers that store the shared configuration."""

    namespace: str = Field("local", description="The part of the keys below /sorna.")
    addr: Addresses = Field(description="One member or a list: {host, port}, or host:port.")
    user: str = Field("", description="Who asks, if the server wants to know.")
    password: SecretStr = Field(SecretStr(""), description="Its password.")

    @property
    def endpoints(self) -> list[str]:
        return [f"http://{address.host}:{address.port}" for address in self.addr]


class RedisSettings(Settings):
    """The table ``[redis]``: the Redis server that passes notifications between managers and counts requests."""

    addr: Address = Field(description="{host, port}, or host:port.")
    user: str = Field("", description="Who asks, if the server wants to know.")
    password: SecretStr = Field(SecretStr(""), description="Its password.")
    db: int = Field(0, ge=0, description="Number of the database.")

    @property
    def url(self) -> str:
        password_part = self.password.get_secret_value()
        user_part = (
            f"{quote(self.user, safe='')}:{quote(password_part, safe='')}@" if password_part or self.user else ""
        )
        return f"redis://{user_part}{self.addr.host}:{self.addr.port}/{self.db}"


class DbSettings(Settings):
    """The table ``[db]``: the parts of a PostgreSQL URL; ``database.url`` overrides them."""

    type: Literal["postgresql"] = Field("postgresql", description="The kind of database.")
    addr: Address = Field(description="{host, port}, or host:port.")
    name: str = Field("backend", description="Name of the database.")
    user: str = Field("postgres", description="Who asks.")
    password: SecretStr = Field(SecretStr(""), description="Its password.")
    pool_size: int = Field(8, ge=1, le=1000, description="Connections kept, at most.")
    max_overflow: int = Field(5, ge=-1, description="Further connections while all are in use; -1: any number.")
    pool_recycle: float = Field(-1, description="Seconds after which a connection is replaced; -1: never.")
    pool_pre_ping: bool = Field(False, description="Whether a connection is tried before each use.")
    lock_conn_timeout: float | None = unused_field(None, "no connection of the database is held as a lock")

    @property
    def pool(self) -> Pool:
        from ai.backend.infra.database import Pool  # agents read settings without SQLAlchemy

        return Pool(self.pool_size, self.max_overflow, self.pool_recycle, self.pool_pre_ping)

    @property
    def url(self) -> str:
        secret = self.password.get_secret_value()
        account = quote(self.user, safe="") + (f":{quote(secret, safe='')}" if secret else "")
        return f"postgresql://{account}@{self.addr.host}:{self.addr.port}/{quote(self.name, safe='')}"


_COLLECTOR_PATTERN = re.compile(r"https?://[^\s/:@]+(:\d{1,5})?(/[^\s?#]*)?|https?://\[[0-9a-fA-F:]+\](:\d{1,5})?/?")
Level = Literal["NOTSET", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class ConsoleLogSettings(Settings):
    """The table ``[logging.console]``: colours and format of the log on standard error."""

    colored: bool = Field(True, description="Colours, where standard error is a terminal and NO_COLOR is not set.")
    format: Literal["simple", "verbose"] = Field(
        "verbose", description="simple: level and message; verbose: time, process and logger too."
    )


class FileLogSettings(Settings):
    """The table ``[logging.file]``: one JSON object a line. Further processes of a daemon add their number."""

    path: Path = Field(Path("./logs"), description="Its directory; made if it is not there.")
    filename: str = Field("", pattern=r"^[^/\x00]*$", description="Its name; if unset, the daemon's with `.log`.")
    backup_count: int = Field(10, ge=0, le=1000, description="Old files that are kept.")
    rotation_size: Size = Field(
        10 << 20, gt=0, description="How large a file becomes before the next, in bytes or as 10M."
    )


def _check_driver(driver: str) -> str:
    if driver not in ("console", "file"):
        raise ValueError(f"logs go to console and file, not to {driver}: have the file of JSON lines collected")
    return driver


class LoggingSettings(Settings):
    """The table ``[logging]``; ``--log-level`` wins over ``level``. Both ``level`` and a level in ``pkg-ns`` filter
    records."""

    level: Level = Field("INFO", description="From which level on is logged.")
    drivers: list[Annotated[str, AfterValidator(_check_driver)]] = Field(
        ["console"], description="Where to: console (standard error) and file (lines of JSON, for collectors)."
    )
    pkg_ns: dict[str, Level] = Field(
        default_factory=dict,
        description='Levels of single loggers, by package; `""` is all others, which log from WARNING on if unset.',
    )
    console: ConsoleLogSettings = Field(ConsoleLogSettings(), description="Standard error.")
    file: FileLogSettings = Field(FileLogSettings(), description="A file.")
    logstash: dict[str, Any] = unused_field(dict, "have the log file collected")
    graylog: dict[str, Any] = unused_field(dict, "have the log file collected")


class OtelSettings(Settings):
    """The table ``[otel]``: what is sent to a collector of OpenTelemetry. Needs the extra ``otel``."""

    enabled: bool = Field(False, description="Whether traces, metrics and logs are sent.")
    endpoint: str = Field(
        "http://127.0.0.1:4317", description="The collector, as `http://HOST:4317`; with `https` by TLS."
    )
    protocol: Literal["", "grpc", "http"] = Field(
        "", description="How it is spoken to; if unset, by HTTP at port 4318 and by gRPC at any other."
    )
    log_level: Level = Field("INFO", description="From which level on logs are sent.")
    signals: list[Literal["traces", "metrics", "logs"]] = Field(
        ["traces", "metrics", "logs"], description="What is sent."
    )
    sample_ratio: float = Field(
        1.0, ge=0, le=1, description="Which part of the traces is sent; the same in all daemons, or traces have gaps."
    )
    reads_per_second: float = Field(
        10.0,
        ge=0,
        le=100_000,
        description="How many of the traces that begin with a reading request each process sends in a second at most,"
        " and how many reading requests of traces that began elsewhere.",
    )
    metrics_interval_s: float = Field(60.0, ge=1, description="Seconds between two reports of metrics.")
    timeout_s: float = Field(
        5.0, gt=0, le=60, description="Seconds that a report may take; the end of a daemon waits for two at most."
    )
    queue_size: int = Field(
        4096, ge=16, le=1_000_000, description="Spans and logs that wait for the collector at most; more are dropped."
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="Headers of each report, such as an Authorization."
    )
    ca_file: Path | None = Field(None, description="Who vouches for the certificate of the collector, in PEM.")

    @model_validator(mode="after")
    def _check_endpoint(self) -> Self:
        if self.enabled and not _COLLECTOR_PATTERN.fullmatch(self.endpoint):
            raise ValueError("endpoint must be http://HOST:PORT or https://HOST:PORT")
        return self

    @property
    def uses_http(self) -> bool:
        return self.protocol == "http" or (not self.protocol and self.endpoint.rstrip("/").endswith(":4318"))


class MonitorSettings(Settings):
    """The table ``[monitors]``: services that errors and figures are reported to."""

    errors: list[str] = Field([], description="Names of the installed monitors of errors, such as `sentry`.")
    statistics: list[str] = Field([], description="Names of the installed monitors of figures, such as `datadog`.")
    interval_s: float = Field(10.0, ge=1, description="Seconds between two reports of figures.")
    options: dict[str, dict[str, Any]] = Field({}, description="Settings of each monitor, by its name.")


class DebugSettings(Settings):
    """The table ``[debug]``: logging at level DEBUG, and the debug mode of asyncio."""

    enabled: bool = Field(False, description="Logs at level DEBUG.")
    asyncio: bool = Field(False, description="Debug mode of asyncio: slow callbacks are logged.")
    enhanced_aiomonitor_task_info: bool = unused_field(False, "there is no aiomonitor")

    @property
    def log_level(self) -> str | None:
        return "DEBUG" if self.enabled else None


class TlsSettings(Settings):
    """The TLS keys in the table of each listening server."""

    ssl_enabled: bool = Field(False, description="Whether it speaks TLS itself; see `ssl-cert`.")
    ssl_cert: Path | None = Field(None, description="The certificate and those that vouch for it, in PEM.")
    ssl_privkey: Path | None = Field(None, description="The key of the certificate, in PEM, without a passphrase.")

    @model_validator(mode="after")
    def _check_complete(self) -> Self:
        if self.ssl_enabled and (self.ssl_cert is None or self.ssl_privkey is None):
            raise ValueError("ssl-enabled needs ssl-cert and ssl-privkey")
        return self
