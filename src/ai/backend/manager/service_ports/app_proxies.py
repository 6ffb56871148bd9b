"""Lets browsers reach services through the app proxy of a resource group, and removes access to ended sessions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.ids import SessionId
from ai.backend.common.wire.execution import OpenRoute
from ai.backend.common.wire.link import AgentCommands
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.resource_groups.model import ResourceGroup
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.service_ports.app_proxy_gateway import CoordinatorAddress, CoordinatorGateway
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.store import SessionStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppAccess:
    """Holds a token for one browser and the coordinator's address, or the reason why there is no token."""

    token: str = field(default="", repr=False)
    wsproxy_addr: str = ""
    reason: str = ""


def coordinator_of(group: ResourceGroup | None) -> CoordinatorAddress | None:
    """Returns the coordinator of a resource group, or None if its address or token is not set."""
    if group is None or not group.wsproxy_addr or not group.wsproxy_api_token:
        return None
    return CoordinatorAddress(group.wsproxy_addr.rstrip("/"), group.wsproxy_api_token)


class AppProxies:
    """Gives browsers access to services of sessions through the app proxy of the session's resource group.

    It opens a route at the agent, by which the workers of the app proxy reach the service.
    """

    def __init__(self, resource_groups: ResourceGroupStore, coordinators: CoordinatorGateway) -> None:
        self._resource_groups = resource_groups
        self._coordinators = coordinators
        self._authorities: dict[CoordinatorAddress, str] = {}

    async def permit(self, session: Session, agent: AgentCommands, app: str, port: int) -> AppAccess | None:
        """Opens a route to a port of the service ``app`` and returns a token by which a browser reaches the port.

        Returns None if the resource group has no app proxy. Tunnels need no app proxy, so its failure is a reason in
        the result and no error.
        """
        coordinator = coordinator_of(await self._resource_groups.resource_group(session.scaling_group))
        if coordinator is None:
            return None
        try:
            authority = await self._authority(coordinator)
            request = OpenRoute(kernel_id=str(session.main.id), port=port, authority=authority)
            route = await agent.open_route(request)
            token = await self._coordinators.permit(coordinator, session, app, route)
        except BackendError as e:
            log.warning("no app proxy for %s of session %s: %s", app, session.id, e)
            self._authorities.pop(coordinator, None)
            return AppAccess(wsproxy_addr=coordinator.url, reason=e.message)
        return AppAccess(token=token, wsproxy_addr=coordinator.url)

    async def _authority(self, coordinator: CoordinatorAddress) -> str:
        if coordinator not in self._authorities:
            self._authorities[coordinator] = await self._coordinators.authority(coordinator)
        return self._authorities[coordinator]


class EndedAppsLoop(PeriodicLoop):
    """Removes the circuits of ended sessions from coordinators. Each round compares what coordinators have with the
    sessions, so that it does not matter who was away when a session ended."""

    period_s = 15.0

    def __init__(
        self, resource_groups: ResourceGroupStore, sessions: SessionStore, coordinators: CoordinatorGateway
    ) -> None:
        super().__init__()
        self._resource_groups = resource_groups
        self._sessions = sessions
        self._coordinators = coordinators

    async def once(self) -> None:
        groups = await self._resource_groups.resource_groups()
        failures = []
        for coordinator in dict.fromkeys(filter(None, map(coordinator_of, groups))):
            try:
                await self._remove_ended_sessions(coordinator)
            except BackendError as e:
                failures.append(e.message)
        if failures:
            raise Unavailable("; ".join(failures))

    async def _remove_ended_sessions(self, coordinator: CoordinatorAddress) -> None:
        session_ids = await self._coordinators.sessions(coordinator)
        ended_ids = await self._select_ended(session_ids) if session_ids else []
        if ended_ids:
            await self._coordinators.remove_sessions(coordinator, ended_ids)

    async def _select_ended(self, ids: Sequence[SessionId]) -> list[SessionId]:
        """Returns the ids of those sessions among ``ids`` that are stored and have ended.

        Sessions that are not stored may belong to another manager.
        """
        return [session.id for session in await self._sessions.get_many(ids) if session.status.is_final]
