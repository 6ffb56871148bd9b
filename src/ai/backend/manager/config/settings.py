"""The settings of the manager, one model per concern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from ai.backend.infra.settings import Settings
from ai.backend.infra.settings.tables import (
    DbSettings,
    DebugSettings,
    EtcdSettings,
    LoggingSettings,
    MonitorSettings,
    OtelSettings,
    RedisSettings,
)
from ai.backend.manager.agents.settings import AgentSettings
from ai.backend.manager.artifacts.model import ArtifactSettings
from ai.backend.manager.config.published import (
    DockerRegistrySettings,
    ManagerProcessSettings,
    translate_published,
)
from ai.backend.manager.events.settings import WebhookSettings
from ai.backend.manager.folders.model import FolderSettings
from ai.backend.manager.graphql.settings import GraphQLSettings
from ai.backend.manager.hooks import HookSettings
from ai.backend.manager.identity.settings import AccountSettings
from ai.backend.manager.maintenance.loop import RetentionSettings
from ai.backend.manager.metrics.history import MetricSettings
from ai.backend.manager.service_ports.settings import TunnelSettings
from ai.backend.manager.serving.settings import ServingSettings
from ai.backend.manager.sessions.settings import FileSettings, SessionSettings


class ListenSettings(Settings):
    """Settings of the address of the API."""

    host: str = Field("127.0.0.1", description="Address that the API listens on.")
    port: int = Field(
        8081, ge=0, le=65535, description="Port of the API (`backend.ai up` takes 8091); 0 lets the system choose."
    )


class AgentLinkSettings(Settings):
    """Settings of the endpoint of agents, and its keys."""

    bind: str = Field(
        "tcp://127.0.0.1:6011", description="ZeroMQ endpoint that agents connect to, their `link.manager-addr`."
    )
    data_port: int = Field(
        0,
        ge=0,
        le=65_535,
        description="Where agents connect for tunnels and terminals, by TLS, at the host of `bind` as they know it;"
        " 0: any free port. Name one, and let it through, where a firewall stands between.",
    )
    advertise: str | None = Field(
        None, description="What agents are told in etcd to connect to, if that is another address than `bind`."
    )
    key_file: Path | None = Field(None, description="CURVE key of this manager; made in the data directory if unset.")
    agent_keys: Path | None = Field(None, description="Directory of the public keys of the agents that may connect.")


class DatabaseSettings(Settings):
    """Settings of the database."""

    url: str | None = Field(
        None,
        description="postgresql://user:password@host:port/name, or sqlite:///file; unset: the table db, and without "
        "that SQLite in the data directory.",
    )


class SecretSettings(Settings):
    """Settings of the encryption of secrets in the database."""

    key_file: Path | None = Field(
        None,
        description="Keys that seal the secrets in the database, the same file for every manager of it; "
        "`secrets.key` in the data directory, made at the first start, if unset.",
    )


class ApiSettings(Settings):
    """Settings of the API's limits and texts."""

    connections_per_address: int = Field(
        1_000,
        ge=0,
        description="Open connections of one client address to one process, or of one /64 network of IPv6; 0 allows any"
        " number. Trusted proxies are not limited. All clients together get three quarters of the open files that the"
        " system allows a process.",
    )
    anonymous_rate_limit: int = Field(
        5_000, ge=0, description="Unsigned requests from one address in 15 minutes; 0 allows any number."
    )
    trusted_proxies: list[str] = Field(
        [], description="Addresses of reverse proxies whose X-Forwarded-Host and X-Forwarded-For headers count."
    )
    announcement: str = Field("", description="What everybody should read, in Markdown; empty for nothing.")


class ManagerSettings(Settings):
    """All settings of the manager, as ``manager.toml`` has them."""

    data_dir: Path = Field(Path(), description="Where the manager keeps its files.")
    listen: ListenSettings = Field(ListenSettings(), description="The API.")
    manager: ManagerProcessSettings = Field(ManagerProcessSettings(), description="This process.")
    agent_link: AgentLinkSettings = Field(AgentLinkSettings(), description="The link to the agents.")
    database: DatabaseSettings = Field(DatabaseSettings(), description="The database.")
    db: DbSettings | None = Field(None, description="The database, as published.")
    etcd: EtcdSettings | None = Field(None, description="The shared configuration; unset: it is in the database.")
    redis: RedisSettings | None = Field(
        None, description="Hints and rate limits of several managers; unset: each is alone with them."
    )
    logging: LoggingSettings = Field(LoggingSettings(), description="Logs.")
    docker_registry: DockerRegistrySettings = Field(DockerRegistrySettings(), description="Container registries.")
    debug: DebugSettings = Field(DebugSettings(), description="Finding faults.")
    otel: OtelSettings = Field(OtelSettings(), description="Traces, metrics and logs to a collector.")
    monitors: MonitorSettings = Field(MonitorSettings(), description="Services that errors and figures go to.")
    secrets: SecretSettings = Field(SecretSettings(), description="Secrets in the database.")
    agents: AgentSettings = Field(AgentSettings(), description="Watching agents.")
    sessions: SessionSettings = Field(SessionSettings(), description="Sessions.")
    folders: FolderSettings = Field(FolderSettings(), description="Virtual folders.")
    files: FileSettings = Field(FileSettings(), description="File transfer.")
    tunnels: TunnelSettings = Field(TunnelSettings(), description="Tunnels to the services of sessions.")
    api: ApiSettings = Field(ApiSettings(), description="What the API tells and allows.")
    graphql: GraphQLSettings = Field(GraphQLSettings(), description="GraphQL queries.")
    callbacks: WebhookSettings = Field(WebhookSettings(), description="Calling the URLs that sessions name.")
    retention: RetentionSettings = Field(RetentionSettings(), description="How long the past is kept.")
    metrics: MetricSettings = Field(MetricSettings(), description="The metrics of the last day.")
    hooks: HookSettings = Field(HookSettings(), description="Plugins of the site: sign-on and policies.")
    accounts: AccountSettings = Field(AccountSettings(), description="Accounts of users.")
    artifacts: ArtifactSettings = Field(ArtifactSettings(), description="Importing artifacts.")

    serving: ServingSettings = Field(ServingSettings(), description="Model services.")

    @model_validator(mode="before")
    @classmethod
    def _translate_published(cls, data: Any) -> Any:
        return translate_published(data)

    @property
    def database_url(self) -> str | None:
        """The configured database; None is SQLite in the data directory."""
        if self.database.url is not None:
            return self.database.url
        return self.db.url if self.db is not None else None
