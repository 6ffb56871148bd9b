"""Tables that the files of several daemons share, as the published ones have them (spec 03-02)."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BeforeValidator, Field, SecretStr

from ai.backend.infra.settings.load import Settings


class HostPort(Settings):
    """``{ host = "...", port = ... }``."""

    host: str = Field(description="Name or address.")
    port: int = Field(ge=0, le=65535, description="Port.")


def _address(value: object) -> object:
    """``host:port`` is read as well."""
    if isinstance(value, str):
        host, _, port = value.rpartition(":")
        return {"host": host.strip("[]"), "port": port}
    return value


def _several(value: object) -> object:
    if isinstance(value, str):
        return [_address(part.strip()) for part in value.split(",")]
    return [value] if isinstance(value, dict) else value


Address = Annotated[HostPort, BeforeValidator(_address)]
Addresses = Annotated[list[HostPort], BeforeValidator(_several)]


class EtcdSettings(Settings):
    """The table ``[etcd]``: where the shared configuration is."""

    namespace: str = Field("local", description="The part of the keys below /sorna.")
    addr: Addresses = Field(description="One member or a list: {host, port}, or host:port.")
    user: str = Field("", description="Who asks, if the server wants to know.")
    password: SecretStr = Field(SecretStr(""), description="Its password.")

    @property
    def endpoints(self) -> list[str]:
        return [f"http://{a.host}:{a.port}" for a in self.addr]


class RedisSettings(Settings):
    """The table ``[redis]``: what carries hints between managers, and counts requests for all of them."""

    addr: Address = Field(description="{host, port}, or host:port.")
    user: str = Field("", description="Who asks, if the server wants to know.")
    password: SecretStr = Field(SecretStr(""), description="Its password.")
    db: int = Field(0, ge=0, description="Number of the database.")

    @property
    def url(self) -> str:
        secret = self.password.get_secret_value()
        who = f"{quote(self.user, safe='')}:{quote(secret, safe='')}@" if secret or self.user else ""
        return f"redis://{who}{self.addr.host}:{self.addr.port}/{self.db}"


Level = Literal["NOTSET", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class LoggingSettings(Settings):
    """The table ``[logging]``. ``--log-level`` wins over ``level``."""

    level: Level = Field("INFO", description="From which level on is logged.")
    drivers: list[Literal["console", "file", "logstash", "graylog"]] = Field(
        ["console"], description="Read and not used: logs go to standard error, where the service manager keeps them."
    )
    pkg_ns: dict[str, Level] = Field(default_factory=dict, description="Levels of single loggers.")
    console: dict[str, Any] = Field(default_factory=dict, description="Read and not used.")
    file: dict[str, Any] = Field(default_factory=dict, description="Read and not used.")
