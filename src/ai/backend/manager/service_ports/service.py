"""Starts, stops and lists services of sessions. Connections to them are tunnels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from ai.backend.common.errors import BackendError, Conflict, InvalidInput, NotSupported
from ai.backend.common.states import RUNNING_SESSION_STATUSES
from ai.backend.common.structs import replace
from ai.backend.common.wire.execution import ArgumentValue, KernelRef, ServiceState, StartService, StopService
from ai.backend.common.wire.link import AgentCommands
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.store import AgentGateway
from ai.backend.manager.service_ports.app_proxies import AppAccess, AppProxies
from ai.backend.manager.sessions.lookup import SessionFinder
from ai.backend.manager.sessions.model import SERVICE_ALIASES, Session

_PRIVATE_PROTOCOL = "internal"


class ServiceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to start a service of a session or to connect to the service.

    ``port`` is one of the service's; a running service ignores ``envs`` and ``arguments``.
    """

    app: str
    port: int | None = None
    envs: Mapping[str, str] = msgspec.field(default_factory=dict)
    arguments: Mapping[str, ArgumentValue] = msgspec.field(default_factory=dict)


class OfferedService(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a service with its declared ports. Its state is set if the session runs and its agent answers."""

    name: str
    protocol: str
    ports: tuple[int, ...]
    state: ServiceState | None = None


class StartedService(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a running service, and the token by which a browser reaches it through the app proxy.

    ``access`` is None without an app proxy.
    """

    state: ServiceState
    access: AppAccess | None = None


class ServicePorts:
    """Starts, stops and lists the services of sessions. Every method raises SessionNotFound and
    TooManySessionsMatched.
    """

    def __init__(self, finder: SessionFinder, gateway: AgentGateway, app_proxies: AppProxies) -> None:
        self._finder = finder
        self._gateway = gateway
        self._app_proxies = app_proxies

    async def start(
        self, caller: Caller, ref: str, request: ServiceRequest, *, owner_access_key: str | None = None
    ) -> StartedService:
        """Starts a service and returns when it listens; a service that already runs is kept.

        Raises:
            NotFound: the session has no such service. InvalidInput: it takes no such argument, variable or port.
            Forbidden: the session's node does not let anything be served. Conflict: the session does not run.
            RunError: it ended or never listened. Unavailable, DeadlineExceeded: its agent is away.
        """
        session, agent = await self.running(caller, ref, owner_access_key)
        state = await start_service(session, agent, request)
        app_access = None
        declared_service = next((dict(port) for port in session.service_ports if port.get("name") == state.name), {})
        if state.ports and not is_private(declared_service):
            ports = [int(port_number) for port_number in declared_service.get("container_ports") or state.ports]
            port = choose_port(state, ports, request.port)
            app_access = await self._app_proxies.permit(session, agent, request.app, port)
        return StartedService(state=state, access=app_access)

    async def stop(self, caller: Caller, ref: str, name: str, *, owner_access_key: str | None = None) -> None:
        """Stops a service, or does nothing if the service does not run. Raises as :meth:`start`."""
        session, agent = await self.running(caller, ref, owner_access_key)
        await agent.stop_service(StopService(kernel_id=str(session.main.id), name=session.service_name(name)))

    async def list(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> Sequence[OfferedService]:
        """Returns the services of a session in any status, each also under its aliases, since clients check names."""
        session = await self._finder.one(caller, ref, owner_access_key=owner_access_key, may_be_recent=True)
        state_of_service: dict[str, ServiceState] = {}
        if session.status in RUNNING_SESSION_STATUSES and session.main.agent is not None and session.service_ports:
            agent = self._gateway.agent(session.main.agent)
            with suppress(BackendError):  # the agent is unreachable; the declared services are still listed
                state_of_service = {
                    state.name: state for state in await agent.list_services(KernelRef(kernel_id=str(session.main.id)))
                }
        services = [
            OfferedService(
                name=str(port["name"]),
                protocol=str(port.get("protocol", "tcp")),
                ports=tuple(int(port_number) for port_number in port.get("container_ports") or ()),
                state=state_of_service.get(str(port["name"])),
            )
            for port in session.service_ports
            if not is_private(port)
        ]
        name_of_alias = {alias: session.service_name(alias) for alias in SERVICE_ALIASES}
        aliased_services = [
            replace(service, name=alias)
            for alias, name in name_of_alias.items()
            for service in services
            if alias != name == service.name
        ]
        return [*services, *aliased_services]

    async def running(self, caller: Caller, ref: str, owner_access_key: str | None) -> tuple[Session, AgentCommands]:
        """Returns a running session that the caller may change, and the commands of the agent of its main kernel.

        Raises Conflict unless the session runs.
        """
        session = await self._finder.one(
            caller, ref, owner_access_key=owner_access_key, to_change=True, may_be_recent=True
        )
        if session.status not in RUNNING_SESSION_STATUSES or session.main.agent is None:
            raise Conflict(
                f"The session is {session.status}, not RUNNING.",
                data={"status": session.status.value, "reason": session.status_info},
            )
        return session, self._gateway.agent(session.main.agent)


async def start_service(session: Session, agent: AgentCommands, request: ServiceRequest) -> ServiceState:
    """Starts a service in the main kernel of a session."""
    return await agent.start_service(
        StartService(
            kernel_id=str(session.main.id),
            name=session.service_name(request.app),
            port=request.port,
            envs=dict(request.envs),
            arguments=dict(request.arguments),
        )
    )


def is_private(port: Mapping[str, Any]) -> bool:
    """Returns True if only the platform may use a declared service."""
    return port.get("protocol") == _PRIVATE_PROTOCOL


def choose_port(state: ServiceState, declared_ports: list[int], requested_port: int | None) -> int:
    """Returns the port on which a service really listens for the port that a user requested.

    The two are matched by their positions, since the workload may have other numbers than the declared ones. Without a
    requested port, it is the first. Raises NotSupported if the service listens on no port, InvalidInput if the
    requested port is none of its ports.
    """
    if not state.ports:
        raise NotSupported(f"The service {state.name} has no port.")
    if requested_port is None:
        return state.ports[0]
    if requested_port in declared_ports and declared_ports.index(requested_port) < len(state.ports):
        return state.ports[declared_ports.index(requested_port)]
    raise InvalidInput(
        f"The service {state.name} has no port {requested_port}; it has: {', '.join(map(str, declared_ports))}.",
        data={"port": requested_port, "ports": declared_ports},
    )
