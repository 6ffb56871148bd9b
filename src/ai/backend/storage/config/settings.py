"""``storage-proxy.toml`` (spec 03-02, "Install Backend.AI Storage Proxy")."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from ai.backend.infra.settings import Settings
from ai.backend.infra.settings.examples import refuse_example
from ai.backend.infra.settings.published import unused_field
from ai.backend.infra.settings.tables import (
    DebugSettings,
    EtcdSettings,
    LoggingSettings,
    MonitorSettings,
    OtelSettings,
    TlsSettings,
)
from ai.backend.plugin.settings import Size

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def _parse_seconds(value: object) -> object:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", value.strip()) if isinstance(value, str) else None
    return float(match[1]) * _UNIT_SECONDS[match[2]] if match else value


Duration = Annotated[float, BeforeValidator(_parse_seconds)]
"""Seconds, as a number or with a unit: 1d."""


class ProxySettings(Settings):
    """The table ``[storage-proxy]``: name and secret of the proxy, and the limits of transfers and scans."""

    node_id: str = Field("storage-proxy", description="Name of this proxy, for people.")
    secret: SecretStr = Field(description="Signs the tokens of transfers; only proxies of the same volumes know it.")
    session_expire: Duration = Field(3600.0, gt=0, description="How long a token is valid: seconds, or as 1h, 1d.")
    max_upload_size: Size = Field(
        100 << 30, gt=0, description="The largest file that may be uploaded: bytes, or as 100g."
    )
    scandir_limit: int = Field(
        1000, ge=1, le=10_000, description="Entries on a page of a directory, if none are asked for."
    )
    upload_expiry: Duration = Field(86_400.0, gt=0, description="How long an upload waits for its next byte.")
    quota_scan_interval: Duration = Field(
        300.0, gt=0, description="How old the accounted usage of a quota scope may be that uploads are judged by."
    )
    event_loop: Literal["asyncio", "uvloop"] = Field(
        "asyncio", description="asyncio sends files by sendfile(2), uvloop does not."
    )
    user: int | None = Field(None, ge=0, description="As root: the uid that owns what is made in folders.")
    group: int | None = Field(None, ge=0, description="As root: its gid; by default the same number.")
    pid_file: Path | None = Field(None, description="Where the process id is written.")
    num_proc: int = Field(
        1, ge=1, le=256, description="Processes that transfer files; the first also serves managers. All share a port."
    )

    @property
    def owner(self) -> tuple[int, int] | None:
        if self.user is None:
            return None
        return self.user, self.user if self.group is None else self.group


class AddressSettings(Settings):
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(ge=0, le=65535, description="Port; 0 lets the system choose.")


class ClientApiSettings(TlsSettings):
    service_addr: AddressSettings = AddressSettings(host="127.0.0.1", port=6021)
    public_url: str | None = Field(
        None, description="Where clients reach this API, without a last slash; http(s)://HOST:PORT if unset."
    )
    connections_per_address: int = Field(
        1_000,
        ge=0,
        description="Open connections of one client address, or of one /64 network of IPv6; 0 allows any number, as"
        " behind a reverse proxy.",
    )


class ManagerApiSettings(TlsSettings):
    service_addr: AddressSettings = AddressSettings(host="127.0.0.1", port=6022)
    secret: SecretStr = Field(description="What managers send in X-BackendAI-Storage-Auth-Token.")

    @model_validator(mode="after")
    def _has_secret_of_its_own(self) -> Self:
        refuse_example(self.service_addr.host, secret=self.secret)
        return self


class ApiSettings(Settings):
    client: ClientApiSettings = ClientApiSettings()
    manager: ManagerApiSettings


class VolumeSettings(Settings):
    """A table ``[volume.NAME]``."""

    backend: str = Field(description="vfs, xfs (with project quotas), or package.module:Class of a volume plugin.")
    path: Path = Field(description="Where the files are; the same path on every agent.")
    options: dict[str, Any] = Field(default_factory=dict, description="Further settings of the backend.")


class ObjectStorageSettings(Settings):
    """A table ``[object-storage.NAME]``."""

    backend: str = Field(description="s3, directory, or package.module:Class of an object storage plugin.")
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Settings of the backend; s3: bucket, endpoint, access-key, secret-key ...; directory: path.",
    )


class ArtifactSettings(Settings):
    """The table ``[artifacts]`` (spec 03-17). A storage is a volume or an object storage of this file."""

    download: str = Field("", description="Storage of the stage download; as archive if unset.")
    verify: str = Field("", description="Storage of the stage verify; as download if unset.")
    archive: str = Field("", description="Where artifacts stay; the first volume if unset.")
    mount_cache: str = Field("", description="Where artifacts are copied to be mounted if hosts cannot mount them.")
    allowed_hosts: list[str] = Field(
        default_factory=list,
        description="Hosts that artifacts are fetched from, wherever they are, as NAME, ADDRESS or *.DOMAIN. If empty,"
        " any host with a public address.",
    )
    max_files: int = Field(10_000, ge=1, le=100_000, description="Files that one revision may have.")
    max_file_size: Size = Field(1 << 40, gt=0, description="Bytes that one file may have, or as 500g.")
    max_size: Size = Field(4 << 40, gt=0, description="Bytes that one revision may have, or as 2t.")
    parallel: int = Field(4, ge=1, le=64, description="Files of one import that are worked on at once.")


class StorageSettings(Settings):
    """All the settings."""

    storage_proxy: ProxySettings
    api: ApiSettings
    volume: dict[str, VolumeSettings] = Field(
        default_factory=dict,
        description="Volumes: for each a table [volume.NAME] with `backend`, which is vfs, and `path`, as on agents.",
    )
    object_storage: dict[str, ObjectStorageSettings] = Field(
        default_factory=dict,
        description="For artifacts: for each a table [object-storage.NAME] with `backend` and `options`.",
    )
    artifacts: ArtifactSettings = ArtifactSettings()
    etcd: EtcdSettings | None = unused_field(None, "this file is the whole configuration of a storage proxy")
    debug: DebugSettings = DebugSettings()
    otel: OtelSettings = OtelSettings()
    monitors: MonitorSettings = Field(MonitorSettings(), description="Services that errors and figures go to.")
    logging: LoggingSettings = LoggingSettings()

    @model_validator(mode="after")
    def _has_secret_of_its_own(self) -> Self:
        refuse_example(self.api.client.service_addr.host, secret=self.storage_proxy.secret)
        return self
