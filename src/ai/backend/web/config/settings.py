"""Settings of the web server, from the file ``webserver.conf`` or ``web.toml``.

See spec 03-02, "Install Backend.AI Webserver" and "Webserver Configuration".
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator
from yarl import URL

from ai.backend.infra.settings.published import accept_only, unused_field
from ai.backend.infra.settings.tables import (
    Address,
    DebugSettings,
    LoggingSettings,
    MonitorSettings,
    OtelSettings,
    RedisSettings,
    TlsSettings,
)
from ai.backend.plugin.settings import Settings, Size

MIN_LOGIN_S = 60
_REQUEST_POLICIES = frozenset({"reject_metadata_local_link_policy", "reject_access_for_unsafe_file_policy"})
_ORIGIN_PATTERN = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_PREFIX_PATTERN = re.compile(r"/(?:[A-Za-z0-9._~-]+/)*(?:[A-Za-z0-9._~-]+)?")
_RESPONSE_POLICIES = frozenset({"set_content_type_nosniff_policy", "set_self_content_security_policy"})


def _words(value: object) -> object:
    """Splits the comma-separated words of a published file."""
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    return value


Words = Annotated[list[str], BeforeValidator(_words)]


class WsproxySettings(Settings):
    """The key ``wsproxy.url``, which published files write as text or as ``{url = "..."}``."""

    url: str = Field("", description="The app proxy of version 1 that the console uses; empty if there is none.")

    @field_validator("url", mode="before")
    @classmethod
    def _unwrap(cls, value: object) -> object:
        return value.get("url", "") if isinstance(value, dict) else value


class ServiceSettings(TlsSettings):
    """The table ``[service]``.

    The switches below ``static-path`` are rendered into ``/config.toml``, where the console reads them; permissions are
    the manager's, which no switch widens.
    """

    ip: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all.")
    port: int = Field(8090, ge=0, le=65535, description="Port; 0 for any.")
    wsproxy: WsproxySettings = Field(WsproxySettings(), description="The app proxy of the console.")
    force_endpoint_protocol: Literal["http", "https"] | None = Field(
        None, description="The scheme that browsers use, where a reverse proxy ends TLS."
    )
    mode: Annotated[Literal["webui", "static"], accept_only("webui", "static", because="webui or static")] = Field(
        "webui", description="webui: unknown paths answer the console's page; static: they answer 404."
    )
    static_path: Path | None = Field(
        None,
        description="The folder of a built console, of this project or a published one; by default the console that "
        "was installed, or that `backend.ai web build` has built.",
    )
    path_prefix: str = Field(
        "/", description="The path below which a reverse proxy serves the console; the proxy takes it off requests."
    )
    trusted_proxies: list[str] = Field(
        [], description="Addresses of reverse proxies whose X-Forwarded-For names the client."
    )
    pid_file: Path | None = Field(None, description="Where the process id is written while the server runs.")
    enable_signup: bool = Field(False, description="The console offers to sign up.")
    allow_signup_without_confirmation: bool = Field(False, description="The console asks for no confirmation.")
    allow_anonymous_change_password: bool = Field(
        False, description="The console offers a forgotten password's change."
    )
    allow_project_resource_monitor: bool = Field(False, description="The console shows a project's use to members.")
    allow_change_signin_mode: bool = Field(False, description="The console offers a sign-in by keypair.")
    allow_manual_image_name_for_session: bool = Field(False, description="The console takes typed image names.")
    always_enqueue_compute_session: bool = Field(False, description="The console always queues sessions.")
    mask_user_info: bool = Field(False, description="The console masks names and addresses of users.")
    hide_agents: bool = Field(True, description="The console does not name agents to users.")
    directory_based_usage: bool = Field(False, description="The console shows the use of folders.")
    enable_container_commit: bool = Field(False, description="The console offers to commit sessions.")
    enable_2fa: bool = Field(False, alias="enable-2FA", description="The console offers one-time passwords.")
    force_2fa: bool = Field(False, alias="force-2FA", description="The console demands one-time passwords.")
    enable_reservoir: bool = Field(False, description="The console shows artifacts.")
    webui_debug: bool = Field(False, description="The console logs to the browser's console.")
    single_sign_on_vendors: Words = Field([], description="Sign-in services that the console offers.")

    @field_validator("path_prefix")
    @classmethod
    def _is_a_path(cls, prefix: str) -> str:
        if _PREFIX_PATTERN.fullmatch(prefix) is None or ".." in prefix:
            raise ValueError("a path such as /console/, of letters, digits and any of . _ ~ -")
        return prefix if prefix.endswith("/") else f"{prefix}/"

    @model_validator(mode="before")
    @classmethod
    def _accept_underscored(cls, data: Any) -> Any:
        """Accepts ``enable_2FA`` as published files write it."""
        if isinstance(data, dict):
            return {key.replace("_", "-") if key.endswith("_2FA") else key: value for key, value in data.items()}
        return data


class ResourceSettings(Settings):
    """The table ``[resources]``: limits of the console's controls. Quotas are the manager's."""

    open_port_to_public: bool = Field(False, description="The console offers to open services to everybody.")
    allow_non_auth_tcp: bool = Field(False, alias="allow-non-auth-tcp", description="And services of TCP.")
    allow_preferred_port: bool = Field(False, description="The console lets users choose ports.")
    max_cpu_cores_per_container: int = Field(64, ge=1, description="Cores.")
    max_memory_per_container: int = Field(16, ge=1, description="Gibibytes.")
    max_cuda_devices_per_container: int = Field(16, ge=0, description="Devices.")
    max_cuda_shares_per_container: int = Field(16, ge=0, description="Shares.")
    max_shm_per_container: int = Field(2, ge=0, description="Gibibytes.")
    max_file_upload_size: Size = Field(4 << 30, ge=0, description="The largest file, in bytes or as 4g.")


class EnvironmentSettings(Settings):
    """The table ``[environments]``: which images the console shows."""

    allowlist: Words = Field([], description="Images that the console shows; all if empty.")
    show_non_installed_images: bool = Field(False, description="The console shows images that no agent has.")


class MenuSettings(Settings):
    """The table ``[ui]``: pages that the console hides."""

    menu_blocklist: Words = Field([], description="Pages that the console hides.")
    menu_inactivelist: Words = Field([], description="Pages that the console shows disabled.")
    default_environment: str | None = Field(None, description="The image that the console proposes.")
    default_import_environment: str | None = Field(None, description="And for imported notebooks.")


class ApiSettings(Settings):
    """The table ``[api]``: the managers."""

    domain: str = Field("default", min_length=1, description="The domain whose users sign in here.")
    endpoint: Annotated[list[str], BeforeValidator(_words)] = Field(
        ["http://127.0.0.1:8091"],
        min_length=1,
        description="URLs of managers, comma-separated: the next is asked when one is away.",
    )
    text: str = Field("", description="The name of the installation that the console shows.")
    ssl_verify: bool = Field(True, description="Whether the managers' certificates are verified.")
    auth_token_name: str = Field(
        "sToken",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="The cookie, or field of a request, with the token that another site has given, for "
        "`/server/token-login`. A hook plugin of the manager judges it.",
    )
    connect_timeout: float = Field(5.0, gt=0, description="Seconds until another manager is asked.")

    @field_validator("endpoint")
    @classmethod
    def _are_urls(cls, endpoints: list[str]) -> list[str]:
        for endpoint in endpoints:
            url = URL(endpoint)
            if url.scheme not in ("http", "https") or not url.host or url.user or url.query or url.fragment:
                raise ValueError(f"{endpoint} is no http or https URL of a manager")
        return [endpoint.rstrip("/") for endpoint in endpoints]


class SessionRedisSettings(Settings):
    """The keys ``session.redis.*``; older files have ``host`` and ``port``."""

    addr: Address | None = Field(
        None, description="host:port of Redis or Valkey. Without it a file keeps the sessions."
    )
    db: int = Field(0, ge=0, description="Number of the database.")
    password: SecretStr = Field(SecretStr(""), description="Its password.")
    redis_helper_config: dict[str, Any] = unused_field(dict, "connections have their own time-outs")

    @property
    def url(self) -> str | None:
        """The URL of Redis, if one is configured."""
        if self.addr is None:
            return None
        return RedisSettings(addr=self.addr, db=self.db, password=self.password).url


class SessionSettings(Settings):
    """The table ``[session]``: login sessions."""

    redis: SessionRedisSettings = Field(SessionRedisSettings(), description="Where login sessions are shared.")
    file: Path = Field(
        Path("./web-sessions.db"), description="SQLite file of the login sessions where no Redis is configured."
    )
    cookie_name: str = Field(
        "backendai",
        pattern=r"^backendai[A-Za-z0-9_-]{0,55}$",
        description="The cookie of login sessions; `__Host-` is put before it where browsers use TLS. Web servers of "
        "one host name need different ones, since browsers do not tell ports apart. It begins with `backendai`, by "
        "which the app proxy keeps it from apps.",
    )
    max_age: int = Field(604_800, ge=MIN_LOGIN_S, description="Seconds until a login session ends.")
    idle_timeout: int = Field(
        0,
        ge=0,
        description="Seconds after which a login session ends when nobody uses it; 0 for never. What a page of the "
        "console fetches while nobody touches it is no use.",
    )
    flush_on_startup: bool = Field(False, description="End all login sessions when the server starts.")
    login_block_time: int = Field(1_200, ge=0, description="Seconds for which a name is refused after failures.")
    login_allowed_fail_count: int = Field(10, ge=1, description="Failures of a name until it is refused.")
    address_allowed_fail_count: int = Field(100, ge=1, description="Failures of an address until it is refused.")
    max_count_for_preopen_ports: int = Field(10, ge=0, description="Pre-opened ports that the console offers.")


class SecuritySettings(Settings):
    """The table ``[security]``. The published policies are always in force, so that naming them changes nothing."""

    request_policies: Words = Field([], description="Published names of checks of requests; all are made anyway.")
    response_policies: Words = Field([], description="Published names of response headers; all are sent anyway.")
    csp: str = Field(
        "default-src 'self'; img-src 'self' data: blob:; font-src 'self' data:; style-src 'self' 'unsafe-inline'; "
        "connect-src 'self' ws: wss:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'",
        description="Content-Security-Policy of a published console's pages. `script-src` is added: files of the "
        "console, and the inline scripts of the page by their hashes. The console of this project has a stricter one.",
    )
    hsts_subdomains: bool = Field(
        False,
        description="Browsers use TLS also for all subdomains of this host, where the console is behind TLS.",
    )
    connect_origins: Words = Field(
        [], description="Origins of storage proxies, which the console sends files to and fetches them from."
    )

    @field_validator("connect_origins")
    @classmethod
    def _are_origins(cls, origins: list[str]) -> list[str]:
        for origin in origins:
            if _ORIGIN_PATTERN.fullmatch(origin) is None:
                raise ValueError(f"{origin!r} is no origin such as https://storage.example:6021")
        return origins

    @model_validator(mode="after")
    def _has_policies(self) -> Self:
        unknown_policies = {*self.request_policies} - _REQUEST_POLICIES | {*self.response_policies} - _RESPONSE_POLICIES
        if unknown_policies:
            raise ValueError(f"there is no policy {', '.join(sorted(unknown_policies))}")
        return self


class PluginPageSettings(Settings):
    """The table ``[plugin]``: plug-ins of the console."""

    page: str = Field("", description="Plug-ins of the console, comma-separated.")


class PipelineSettings(Settings):
    """The table ``[pipeline]``: published keys without effect."""

    endpoint: str = unused_field("", "there is no pipeline service here")
    frontend_endpoint: str = unused_field("", "there is no pipeline service here")


class WebSettings(Settings):
    """All settings of the web server."""

    service: ServiceSettings = Field(ServiceSettings(), description="The server.")
    resources: ResourceSettings = Field(ResourceSettings(), description="Limits of the console's controls.")
    environments: EnvironmentSettings = Field(EnvironmentSettings(), description="Images that the console shows.")
    ui: MenuSettings = Field(MenuSettings(), description="Pages of the console.")
    api: ApiSettings = Field(ApiSettings(), description="The managers.")
    session: SessionSettings = Field(SessionSettings(), description="Login sessions.")
    security: SecuritySettings = Field(SecuritySettings(), description="Response headers.")
    plugin: PluginPageSettings = Field(PluginPageSettings(), description="Plug-ins of the console.")
    pipeline: PipelineSettings = Field(PipelineSettings(), description="A pipeline service.")
    logging: LoggingSettings = Field(LoggingSettings(), description="Logs.")
    debug: DebugSettings = Field(DebugSettings(), description="Debugging.")
    otel: OtelSettings = Field(OtelSettings(), description="Traces, metrics and logs to a collector.")
    monitors: MonitorSettings = Field(MonitorSettings(), description="Services that errors and figures go to.")
    webserver: dict[str, Any] = unused_field(dict, "it has no keys")
    license: dict[str, Any] = unused_field(dict, "there are no licences")
    jwt: dict[str, Any] = unused_field(dict, "no tokens are issued")
    apollo_router: dict[str, Any] = unused_field(dict, "GraphQL is answered by the manager itself")
    etcd: dict[str, Any] = unused_field(dict, "the file has all settings")
    pyroscope: dict[str, Any] = unused_field(dict, "there is no profiler")
    service_discovery: dict[str, Any] = unused_field(dict, "managers are named by api.endpoint")
