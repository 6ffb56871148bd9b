"""Builds the manager's HTTP application."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from aiohttp import web

from ai.backend.common.ids import AccessKey
from ai.backend.infra.http.health import HealthApi, Readiness, VersionApi
from ai.backend.infra.http.openapi import OpenApiApi
from ai.backend.infra.http.ratelimit import Limiter, RateLimiter
from ai.backend.infra.http.routes import Call, Endpoint, endpoints_of
from ai.backend.infra.http.server import HttpOptions, HttpServer
from ai.backend.infra.http.signature import Authenticator
from ai.backend.infra.telemetry import Metrics
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.agents.api import AgentsApi, FleetApi, WatchersApi
from ai.backend.manager.arrays.api import ArraysApi
from ai.backend.manager.artifacts.api import ArtifactRegistriesApi, ArtifactsApi
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.composition.services import Services
from ai.backend.manager.dotfiles.api import SessionDefaultsApi
from ai.backend.manager.events.agents_api import AgentEventsApi
from ai.backend.manager.events.api import EventsApi
from ai.backend.manager.execution.api import ExecutionApi
from ai.backend.manager.execution.commits_api import ImagesApi
from ai.backend.manager.execution.installs import ImageInstaller
from ai.backend.manager.execution.installs_api import ImageInstallsApi
from ai.backend.manager.execution.programs_api import ProgramsApi
from ai.backend.manager.execution.streams_api import StreamsApi
from ai.backend.manager.folders.api import FoldersApi, FolderSharingApi, FolderTypesApi
from ai.backend.manager.graphql.endpoint import SCHEMA_OPEN_KEY, GraphQLApi
from ai.backend.manager.identity.accounts_api import AccountsApi
from ai.backend.manager.identity.api import AuthApi
from ai.backend.manager.identity.proofs import PROOF_HEADER
from ai.backend.manager.identity.sign_in_api import SignInApi
from ai.backend.manager.logs.api import CallAudit, ErrorLogApi
from ai.backend.manager.monitoring.api import MonitoringApi, ReportsApi
from ai.backend.manager.monitoring.audit_api import AuditApi
from ai.backend.manager.resource_groups.api import ResourceGroupsApi
from ai.backend.manager.resources.api import ResourcesApi
from ai.backend.manager.scheduling.api import ExplanationsApi, SchedulingApi
from ai.backend.manager.scheduling.replay_api import ReplayApi
from ai.backend.manager.service_ports.api import ServicePortsApi
from ai.backend.manager.service_ports.app_proxies_api import AppProxiesApi
from ai.backend.manager.service_ports.tunnels_api import TunnelsApi
from ai.backend.manager.serving.api import ServicesApi
from ai.backend.manager.sessions.api import SessionsApi
from ai.backend.manager.sessions.claims.api import ClaimsApi
from ai.backend.manager.system.api import ConfigApi, StateApi
from ai.backend.manager.system.installation_api import InstallationApi
from ai.backend.manager.tasks.api import TasksApi
from ai.backend.manager.templates.api import TemplatesApi
from ai.backend.manager.usage.api import UsageApi
from ai.backend.manager.volumes.api import VolumesApi

if TYPE_CHECKING:
    from graphql import GraphQLSchema

COMPATIBLE_RELEASE = "23.09.10"
"""The release whose features this manager has; the published Web UI compares it (wire contract 5)."""


def api_endpoints(services: Services, metrics: Metrics, readiness: Readiness | None = None) -> list[Endpoint]:
    """Returns every endpoint of the manager except the OpenAPI document, which lists them."""
    sessions, images, commits = services.sessions, services.images, services.commits
    folders, artifacts, settings = services.folders, services.artifacts, services.settings
    groups: list[tuple[str, tuple[object, ...]]] = [
        (
            "sessions",
            (SessionsApi(sessions), ServicePortsApi(services.service_ports), AppProxiesApi(services.app_proxies)),
        ),
        (
            "scheduling",
            (ExplanationsApi(services.explanations), SchedulingApi(services.scheduling), ReplayApi(services.replays)),
        ),
        ("streams", (StreamsApi(sessions, services.execution), TunnelsApi(services.tunnels))),
        ("streams", (ProgramsApi(sessions, services.execution),)),
        ("events", (EventsApi(sessions, services.identity, services.events), TasksApi(services.tasks))),
        ("events", (AgentEventsApi(services.agent_changes),)),
        (
            "cluster",
            (
                ResourcesApi(services.resources, services.presets),
                AgentsApi(services.agents),
                FleetApi(services.fleet, services.agents),
            ),
        ),
        ("cluster", (ResourceGroupsApi(services.resource_groups),)),
        ("cluster", (StateApi(services.state, sessions, announcement=settings.api.announcement),)),
        ("auth", (AuthApi(services.identity, services.passwords, services.ssh_keys),)),
        ("auth", (SignInApi(services.sign_in, services.sign_up, services.passwords, services.registration),)),
        ("auth", (AccountsApi(services.identity, services.users, services.totp, services.sign_in, services.proofs),)),
        ("audit", (AuditApi(services.audit, services.stores.identities), InstallationApi(settings))),
        ("error log", (ErrorLogApi(services.errors, services.clock.now),)),
        ("claims", (ClaimsApi(services.claims),)),
        ("templates", (TemplatesApi(services.templates),)),
        ("session defaults", (SessionDefaultsApi(services.dotfiles),)),
        ("config", (ConfigApi(services.config),)),
        ("watchers", (WatchersApi(services.watchers),)),
        ("folders", (FolderTypesApi(has_folders=folders is not None),)),
        ("graphql", (_graphql_api(services),)),
        ("health", (HealthApi(metrics, readiness or _always_ready, services.state_of_installation.gauges),)),
        ("sessions", (ReportsApi(services.reports_of_sessions),)),
        ("health", (_monitoring_api(services),)),
        ("version", (VersionApi(manager=COMPATIBLE_RELEASE, build=_software_build()),)),
    ]
    if folders is not None:
        groups.append(("folders", (FoldersApi(folders), FolderSharingApi(folders), VolumesApi(services.volumes))))
    if artifacts is not None:
        groups.append(("artifacts", (ArtifactRegistriesApi(artifacts), ArtifactsApi(artifacts))))
    if images is not None and commits is not None:
        groups.append(("images", (ImagesApi(images, commits),)))
        if artifacts is not None:
            groups.append(("artifacts", (ImageInstallsApi(ImageInstaller(artifacts.mounts, images.preloader)),)))
    if services.arrays is not None:
        groups.append(("sessions", (ArraysApi(services.arrays),)))
    if services.serving is not None:
        groups.append(("services", (ServicesApi(services.serving, services.clock),)))
    if services.usage is not None:
        groups.append(("usage", (UsageApi(services.usage),)))
    endpoints = [
        endpoint for tag, tagged_apis in groups for api in tagged_apis for endpoint in endpoints_of(api, tag=tag)
    ]
    return [*endpoints, *ExecutionApi(services.execution, settings.files).endpoints()]


def _monitoring_api(services: Services) -> MonitoringApi:
    token = services.settings.metrics.targets_token
    return MonitoringApi(services.targets, services.stats, services.stores.sessions, token)


def _graphql_api(services: Services) -> GraphQLApi:
    async def is_schema_open() -> bool:
        return await services.config.is_true(SCHEMA_OPEN_KEY)

    return GraphQLApi(services.audit, services.settings.graphql, lambda: _load_schema(services), is_schema_open)


def _load_schema(services: Services) -> GraphQLSchema:
    from ai.backend.manager.composition.graphql_schema import load_schema

    return load_schema(services)


def build_app(
    manager: Manager, *, readiness: Readiness | None = None, limiter: Limiter | None = None
) -> web.Application:
    """Returns the application of a manager, to be run by an aiohttp runner. ``readiness`` is the check of ``/readyz``;
    ``limiter`` counts requests, by default in this process."""
    services, settings = manager.services, manager.settings.api
    trusted_proxies = frozenset(settings.trusted_proxies)
    http_options = HttpOptions(
        connections_per_address=settings.connections_per_address,
        anonymous_rate_limit=settings.anonymous_rate_limit,
        trusted_proxies=trusted_proxies,
    )
    endpoints = api_endpoints(services, manager.metrics, readiness)

    def on_request_admitted(access_key: str) -> None:
        services.identity.touch(AccessKey(access_key))
        services.slots.pin_slot_types()

    async def _identify(call: Call[Any, Any]) -> Caller:
        return await services.proofs.check_proof(caller_of(call), call.request.headers.get(PROOF_HEADER))

    server = HttpServer(
        [
            *endpoints,
            *endpoints_of(OpenApiApi(endpoints, title="Manager API", version=_software_build()), tag="health"),
        ],
        metrics=manager.metrics,
        # The identity service answers from memory, so keys are not cached here.
        authenticator=Authenticator(services.identity, key_ttl_s=0, trusted_proxies=trusted_proxies),
        audit=CallAudit(services.audit),
        client_tokens=services.client_tokens,
        options=http_options,
        on_admitted=on_request_admitted,
        limiter=limiter or RateLimiter(),
        active_keys=services.identity.active_keys,
        resolve_owner=services.identity.resolve_owner,
        identify=_identify,
    )
    return server.application()


def _software_build() -> str:
    try:
        return metadata.version("backendai")
    except metadata.PackageNotFoundError:
        return "unknown"


async def _always_ready() -> Mapping[str, bool]:
    return {}
