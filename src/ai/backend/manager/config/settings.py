"""The settings of the manager, one model per concern."""

from __future__ import annotations

from ipaddress import IPv4Network, ip_network
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from ai.backend.infra.settings import Settings
from ai.backend.infra.settings.tables import EtcdSettings, Ignored, LoggingSettings, RedisSettings
from ai.backend.manager.config.published import DbSettings, ManagerProcessSettings, translated


class ListenSettings(Settings):
    host: str = Field("127.0.0.1", description="Address that the API listens on.")
    port: int = Field(
        8081, ge=0, le=65535, description="Port of the API (`backend.ai up` takes 8091); 0 lets the system choose."
    )


class AgentLinkSettings(Settings):
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
    url: str | None = Field(
        None,
        description="postgresql://user:password@host:port/name, or sqlite:///file; unset: the table db, and without "
        "that SQLite in the data directory.",
    )


class AgentSettings(Settings):
    """How agents are watched."""

    heartbeat_interval_s: float = Field(3.0, gt=0, description="How often agents report, in seconds.")
    heartbeat_timeout_s: float = Field(
        15.0, gt=0, description="An agent that is silent for longer is LOST, in seconds."
    )
    abandon_s: float = Field(
        600.0, gt=0, description="After this silence, in seconds, the sessions on a LOST agent are given up."
    )
    abandon_terminating_s: float = Field(
        30.0, gt=0, description="As abandon-s, for sessions that somebody wants to end."
    )
    presence_grace_s: float = Field(
        10.0, gt=0, description="How long, in seconds, an agent may not list a kernel that it was asked for."
    )


class SessionSettings(Settings):
    """Limits and deadlines of sessions. A session never stays in a transient state for longer than its deadline."""

    start_timeout_s: float = Field(300.0, gt=0, description="From being scheduled to RUNNING, in seconds.")
    pull_timeout_s: float = Field(7200.0, gt=0, description="As start-timeout-s while an image is being pulled.")
    restart_timeout_s: float = Field(60.0, gt=0, description="In RESTARTING, in seconds.")
    terminate_timeout_s: float = Field(
        60.0, gt=0, description="In TERMINATING until the end is forced, in seconds; given up after three times that."
    )
    destroy_wait_s: float = Field(10.0, ge=0, description="How long, in seconds, a destroy request waits for the end.")
    retry_backoff_s: float = Field(
        1.0, ge=0, description="Pause in seconds before a failed creation is placed again; doubles with each attempt."
    )
    max_cluster_size: int = Field(64, ge=1, description="Kernels of one session, at most.")
    max_environ_bytes: int = Field(65_536, ge=0, description="Size of all environment variables of a session.")
    max_script_bytes: int = Field(65_536, ge=0, description="Size of a bootstrap script or start-up command.")
    network_pool: IPv4Network = Field(
        IPv4Network("10.214.0.0/16"),
        description="Addresses of networks over several agents. Each session gets a part of it; no agent may have"
        " routes to any of them.",
    )
    network_numbers: tuple[int, int] = Field(
        (4096, 16_777_215), description="The first and the last number (VNI) of such networks; 1 to 16777215."
    )
    encrypt_networks: bool = Field(
        False,
        description="Whether each network over several agents is encrypted between them, and not only those of sessions"
        " that ask for it.",
    )
    default_shmem: str = Field("64m", description="Shared memory of a kernel whose request names none.")
    log_tail_bytes: int = Field(262_144, ge=0, description="How much of a kernel's log is kept after its end.")

    @field_validator("network_numbers")
    @classmethod
    def _are_numbers(cls, numbers: tuple[int, int]) -> tuple[int, int]:
        if not 1 <= numbers[0] <= numbers[1] <= 16_777_215:
            raise ValueError("numbers of networks are 1 to 16777215, the first not above the last")
        return numbers


class FileSettings(Settings):
    """Limits of file transfer (spec 03-08)."""

    max_upload_files: int = Field(20, ge=1, description="Files in one upload.")
    max_upload_bytes: int = Field(1_048_576, ge=1, description="Size of one uploaded file, in bytes.")
    max_download_files: int = Field(5, ge=1, description="Files in one download.")
    max_download_bytes: int = Field(67_108_864, ge=1, description="Size of all archives of a download, in bytes.")


class TunnelSettings(Settings):
    """Tunnels to the services of sessions."""

    max_per_session: int = Field(
        128, ge=1, description="Connections into one session at once; one that stalls holds up to 2 MiB of memory."
    )
    idle_timeout: float = Field(
        0.0, ge=0, description="Seconds after which a connection is closed that carried nothing; 0 is never."
    )


class ApiSettings(Settings):
    """What the API tells and allows."""

    anonymous_rate_limit: int = Field(
        5_000, ge=0, description="Unsigned requests from one address in 15 minutes; 0 allows any number."
    )
    trusted_proxies: list[str] = Field(
        [], description="Addresses of reverse proxies whose X-Forwarded-Host and X-Forwarded-For headers count."
    )
    announcement: str = Field("", description="What everybody should read, in Markdown; empty for nothing.")


class GraphQLSettings(Settings):
    """What one GraphQL query may ask for."""

    max_depth: int = Field(16, ge=4, description="How deep selections may be nested.")
    max_cost: int = Field(
        50_000, ge=100, description="Fields that a query may ask for, each times the page sizes of the lists around it."
    )
    introspection: Literal["everybody", "superadmins", "nobody"] = Field(
        "superadmins", description="To whom the schema is told: everybody, superadmins or nobody."
    )


class CallbackSettings(Settings):
    """Calling the ``callback_url`` of sessions."""

    refused_networks: list[str] = Field(
        [
            "0.0.0.0/8",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "100.100.100.200/32",
            "192.0.0.192/32",
            "224.0.0.0/4",
            "240.0.0.0/4",
            "::/127",
            "fe80::/10",
            "ff00::/8",
            "fd00:ec2::254/128",
            "fd20:ce::254/128",
            "64:ff9b::/96",
            "2002::/16",
        ],
        description="Where callbacks never go; by default this machine, its link and the metadata services of clouds.",
    )
    attempts: int = Field(10, ge=1, le=16, description="Tries for each event; the pause between them doubles from 1 s.")
    timeout_s: float = Field(10.0, gt=0, description="How long one try may take, in seconds.")

    @field_validator("refused_networks")
    @classmethod
    def _are_networks(cls, networks: list[str]) -> list[str]:
        for network in networks:
            ip_network(network)
        return networks


class FolderSettings(Settings):
    """Virtual folders."""

    trash_days: float = Field(
        30.0, ge=0, description="How long a deleted folder can be restored, in days; then it is removed. 0: for ever."
    )
    unmanaged_roots: list[str] = Field(
        [],
        description="Directories of the nodes at or below which superadmins may make folders of unmanaged paths.",
    )


class RetentionSettings(Settings):
    events_days: float = Field(7.0, gt=0, description="How long events and kept logs stay, in days.")
    errors_days: float = Field(30.0, gt=0, description="How long reported errors stay, in days.")
    tokens_hours: float = Field(24.0, gt=0, description="How long a client token stays known, in hours.")


class ArtifactSettings(Settings):
    """Importing artifacts. Storages are written proxy:storage; a registry may have others."""

    download_storage: str | None = Field(None, description="Where imports are fetched to; unset: as its proxy says.")
    verify_storage: str | None = Field(None, description="Where they are verified; unset: as its proxy says.")
    archive_storage: str | None = Field(None, description="Where they stay; unset: as its proxy says.")
    verify: bool = Field(True, description="Whether contents are compared with what the registry announced.")
    parallel: int = Field(4, ge=1, le=64, description="Imports at a time; others wait.")
    give_up_hours: float = Field(24.0, gt=0, description="How long an import is tried while somebody does not answer.")
    url_s: int = Field(3600, ge=1, le=604_800, description="How long presigned URLs are good, in seconds.")
    mount_wait_s: float = Field(
        20.0, ge=0, description="How long, in seconds, a session's creation waits for a copy that can be mounted."
    )

    @field_validator("download_storage", "verify_storage", "archive_storage")
    @classmethod
    def _are_hosts(cls, host: str | None) -> str | None:
        if host is not None and not all(host.partition(":")):
            raise ValueError("a storage is written proxy:storage")
        return host


class SecretSettings(Settings):
    """Secrets in the database."""

    key_file: Path | None = Field(
        None,
        description="Keys that seal the secrets in the database, the same file for every manager of it; "
        "`secrets.key` in the data directory, made at the first start, if unset.",
    )


class ManagerSettings(Settings):
    """``manager.toml``."""

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
    docker_registry: Ignored = Field(Ignored(), description="Read and not used.")
    debug: Ignored = Field(Ignored(), description="Read and not used.")
    otel: Ignored = Field(Ignored(), description="Read and not used.")
    secrets: SecretSettings = Field(SecretSettings(), description="Secrets in the database.")
    agents: AgentSettings = Field(AgentSettings(), description="Watching agents.")
    sessions: SessionSettings = Field(SessionSettings(), description="Sessions.")
    folders: FolderSettings = Field(FolderSettings(), description="Virtual folders.")
    files: FileSettings = Field(FileSettings(), description="File transfer.")
    tunnels: TunnelSettings = Field(TunnelSettings(), description="Tunnels to the services of sessions.")
    api: ApiSettings = Field(ApiSettings(), description="What the API tells and allows.")
    graphql: GraphQLSettings = Field(GraphQLSettings(), description="GraphQL queries.")
    callbacks: CallbackSettings = Field(CallbackSettings(), description="Calling the URLs that sessions name.")
    retention: RetentionSettings = Field(RetentionSettings(), description="How long the past is kept.")
    artifacts: ArtifactSettings = Field(ArtifactSettings(), description="Importing artifacts.")

    @model_validator(mode="before")
    @classmethod
    def _as_published(cls, data: Any) -> Any:
        return translated(data)

    @property
    def database_url(self) -> str | None:
        """The database that is named; None: SQLite in the data directory."""
        if self.database.url is not None:
            return self.database.url
        return self.db.url if self.db is not None else None
