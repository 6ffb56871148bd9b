"""The manager's HTTP application: every endpoint over the services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from ai.backend.common.ids import AccessKey
from ai.backend.common.states import AgentStatus
from ai.backend.infra.http.health import HealthApi, Readiness, VersionApi
from ai.backend.infra.http.openapi import OpenApiApi
from ai.backend.infra.http.ratelimit import Limiter, RateLimiter
from ai.backend.infra.http.routes import Endpoint, endpoints_of
from ai.backend.infra.http.server import HttpOptions, HttpServer
from ai.backend.infra.http.signature import Authenticator
from ai.backend.infra.telemetry import Metrics
from ai.backend.manager.agents.api import AgentsApi, WatchersApi
from ai.backend.manager.artifacts.api import ArtifactRegistriesApi, ArtifactsApi
from ai.backend.manager.artifacts.facade import Artifacts
from ai.backend.manager.composition.services import Services
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.dotfiles.api import SessionDefaultsApi
from ai.backend.manager.events.api import EventsApi
from ai.backend.manager.execution.api import ExecutionApi, FileLimits
from ai.backend.manager.execution.commits_api import ImagesApi
from ai.backend.manager.execution.streams_api import StreamsApi
from ai.backend.manager.folders.api import FoldersApi, FolderSharingApi, FolderTypesApi
from ai.backend.manager.folders.facade import Folders
from ai.backend.manager.graphql.endpoint import GraphQLApi
from ai.backend.manager.graphql.settings import GraphQLSettings
from ai.backend.manager.identity.api import AuthApi
from ai.backend.manager.logs.api import CallAudit, ErrorLogApi
from ai.backend.manager.resource_groups.api import ResourceGroupsApi
from ai.backend.manager.resources.api import ResourcesApi
from ai.backend.manager.service_ports.api import ServicePortsApi
from ai.backend.manager.service_ports.tunnels_api import TunnelsApi
from ai.backend.manager.sessions.api import SessionsApi
from ai.backend.manager.system.api import ConfigApi, StateApi
from ai.backend.manager.tasks.api import TasksApi
from ai.backend.manager.templates.api import TemplatesApi
from ai.backend.manager.usage.api import UsageApi
from ai.backend.manager.volumes.api import VolumesApi
from ai.backend.manager.volumes.service import VolumeService

if TYPE_CHECKING:
    from graphql import GraphQLSchema

COMPATIBLE_RELEASE = "23.09.10"
"""The release whose features this manager has, as the published Web UI compares it (wire contract 5)."""


class ManagerView(Protocol):
    """What the API needs of a manager."""

    @property
    def services(self) -> Services: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def settings(self) -> ManagerSettings: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """Limits and texts of the API."""

    files: FileLimits = field(default_factory=FileLimits)
    http: HttpOptions = field(default_factory=HttpOptions)
    graphql: GraphQLSettings = field(default_factory=GraphQLSettings)
    announcement: str = ""

    @classmethod
    def of(cls, settings: ManagerSettings) -> ApiOptions:
        """What the manager's settings say."""
        files = settings.files
        return cls(
            files=FileLimits(
                max_upload_files=files.max_upload_files,
                max_upload_file_bytes=files.max_upload_bytes,
                max_download_files=files.max_download_files,
            ),
            http=HttpOptions(
                anonymous_rate_limit=settings.api.anonymous_rate_limit,
                trusted_proxies=frozenset(settings.api.trusted_proxies),
            ),
            graphql=settings.graphql,
            announcement=settings.api.announcement,
        )


def api_endpoints(
    services: Services, metrics: Metrics, options: ApiOptions, readiness: Readiness | None = None
) -> list[Endpoint]:
    """Every endpoint of the manager, but for the OpenAPI document that lists them."""
    sessions, execution = services.sessions, services.execution
    return [
        *endpoints_of(SessionsApi(sessions), tag="sessions"),
        *ExecutionApi(execution, options.files).endpoints(),
        *endpoints_of(StreamsApi(sessions, execution), tag="streams"),
        *endpoints_of(TunnelsApi(services.tunnels), tag="streams"),
        *endpoints_of(ServicePortsApi(services.service_ports), tag="sessions"),
        *endpoints_of(EventsApi(sessions, services.identity, services.events), tag="events"),
        *endpoints_of(TasksApi(services.tasks), tag="events"),
        *endpoints_of(ResourcesApi(services.resources, services.presets), tag="cluster"),
        *endpoints_of(AgentsApi(services.agents), tag="cluster"),
        *endpoints_of(ResourceGroupsApi(services.resource_groups), tag="cluster"),
        *endpoints_of(StateApi(services.state, sessions, announcement=options.announcement), tag="cluster"),
        *endpoints_of(AuthApi(services.identity, services.passwords, services.ssh_keys), tag="auth"),
        *endpoints_of(ErrorLogApi(services.errors, services.clock.now), tag="error log"),
        *endpoints_of(TemplatesApi(services.templates), tag="templates"),
        *endpoints_of(SessionDefaultsApi(services.defaults), tag="session defaults"),
        *endpoints_of(ConfigApi(services.config), tag="config"),
        *endpoints_of(WatchersApi(services.watchers), tag="watchers"),
        *endpoints_of(FolderTypesApi(has_folders=services.folders is not None), tag="folders"),
        *_folder_endpoints(services.folders, services.volumes),
        *_artifact_endpoints(services.artifacts),
        *(
            endpoints_of(ImagesApi(services.images, services.commits), tag="images")
            if services.images is not None and services.commits is not None
            else ()
        ),
        *(endpoints_of(UsageApi(services.usage), tag="usage") if services.usage is not None else ()),
        *endpoints_of(GraphQLApi(services.audit, options.graphql, lambda: _load_schema(services)), tag="graphql"),
        *endpoints_of(HealthApi(metrics, readiness or _always_ready, lambda: _gauges(services)), tag="health"),
        *endpoints_of(VersionApi(manager=COMPATIBLE_RELEASE, build=_build()), tag="version"),
    ]


async def _gauges(services: Services) -> Mapping[str, float]:
    """Returns the values that are counted at each scrape of the metrics."""
    agents = await services.agents.count_by_status()
    return {
        "agents_alive": agents.get(AgentStatus.ALIVE, 0),
        "agents_lost": agents.get(AgentStatus.LOST, 0),
        "sessions_live": await services.sessions.count_active(),
    }


def _load_schema(services: Services) -> GraphQLSchema:
    from ai.backend.manager.composition.graphql_schema import load_schema

    return load_schema(services)


def _folder_endpoints(folders: Folders | None, volumes: VolumeService) -> list[Endpoint]:
    if folders is None:
        return []
    return [
        *endpoints_of(FoldersApi(folders), tag="folders"),
        *endpoints_of(FolderSharingApi(folders), tag="folders"),
        *endpoints_of(VolumesApi(volumes), tag="folders"),
    ]


def _artifact_endpoints(artifacts: Artifacts | None) -> list[Endpoint]:
    if artifacts is None:
        return []
    return [
        *endpoints_of(ArtifactRegistriesApi(artifacts), tag="artifacts"),
        *endpoints_of(ArtifactsApi(artifacts), tag="artifacts"),
    ]


def build_app(
    manager: ManagerView,
    *,
    options: ApiOptions | None = None,
    readiness: Readiness | None = None,
    limiter: Limiter | None = None,
) -> web.Application:
    """The application of a manager, to be run by an aiohttp runner.

    Args:
        options: by default what the manager's settings say.
        readiness: what ``/readyz`` checks; nothing by default.
        limiter: who counts requests; this process by default.
    """
    options = options or ApiOptions.of(manager.settings)
    services = manager.services
    endpoints = api_endpoints(services, manager.metrics, options, readiness)

    def admit(access_key: str) -> None:
        services.identity.touch(AccessKey(access_key))
        services.slots.pin()

    server = HttpServer(
        [*endpoints, *endpoints_of(OpenApiApi(endpoints, title="Manager API", version=_build()), tag="health")],
        metrics=manager.metrics,
        # The identity service answers from memory, so nothing is kept here.
        authenticator=Authenticator(services.identity, key_ttl_s=0, trusted_proxies=options.http.trusted_proxies),
        audit=CallAudit(services.audit),
        client_tokens=services.client_tokens,
        options=options.http,
        on_admitted=admit,
        limiter=limiter or RateLimiter(),
        active_keys=services.identity.active_keys,
    )
    return server.application()


def _build() -> str:
    try:
        return metadata.version("backendai")
    except metadata.PackageNotFoundError:
        return "unknown"


async def _always_ready() -> Mapping[str, bool]:
    return {}
