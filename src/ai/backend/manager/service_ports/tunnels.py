"""Tunnels: connections of users to the services of their sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ai.backend.common.errors import Conflict, InvalidInput, LimitExceeded, NotFound, NotSupported
from ai.backend.common.ids import SessionId
from ai.backend.common.states import RUNNING_SESSION_STATUSES
from ai.backend.common.wire.execution import ArgumentValue, OpenPort, ServiceState, StartService
from ai.backend.common.wire.link import AgentCommands, ByteStream
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.store import AgentGateway
from ai.backend.manager.idle.activity import ActivityTracker
from ai.backend.manager.service_ports.settings import TunnelSettings
from ai.backend.manager.sessions.lookup import SessionFinder
from ai.backend.manager.sessions.model import Session

_PRIVATE_PROTOCOL = "internal"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelRequest:
    """``port`` chooses among several ports of the service; ``envs`` and ``arguments`` are for a service that has to be
    started first, and say nothing to one that runs."""

    app: str
    port: int | None = None
    envs: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, ArgumentValue] = field(default_factory=dict)


class Tunnel:
    """A :class:`~ai.backend.common.wire.link.ByteStream` that counts among those of its session until it is closed."""

    def __init__(
        self, stream: ByteStream, session: Session, counts: Counter[SessionId], activity: ActivityTracker
    ) -> None:
        self._stream = stream
        self._session = session.id
        self._counts = counts
        self._activity = activity
        self._is_closed = False
        self.write_eof = stream.write_eof

    async def read(self) -> bytes:
        data = await self._stream.read()
        if data:
            self._activity.touch(self._session)
        return data

    async def write(self, data: bytes) -> None:
        self._activity.touch(self._session)
        await self._stream.write(data)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            release(self._counts, self._session)
            await self._stream.close()


def release(counts: Counter[SessionId], session: SessionId) -> None:
    counts[session] -= 1
    if counts[session] <= 0:
        del counts[session]


class TunnelService:
    """Opens tunnels; the caller transfers the bytes and closes."""

    def __init__(
        self, finder: SessionFinder, gateway: AgentGateway, settings: TunnelSettings, activity: ActivityTracker
    ) -> None:
        self._activity = activity
        self._finder = finder
        self._gateway = gateway
        self.settings = settings
        self._counts: Counter[SessionId] = Counter()

    @property
    def open_tunnels(self) -> int:
        """Return the number of open tunnels of this manager."""
        return self._counts.total()

    async def open(
        self, caller: Caller, ref: str, request: TunnelRequest, *, owner_access_key: str | None = None
    ) -> Tunnel:
        """Connect to a service, which is started if it does not run. The caller closes the connection.

        Raises:
            SessionNotFound, TooManySessionsMatched, Forbidden: not the caller's session, or no services on its node.
            Conflict: the session is not RUNNING.
            NotFound: it has no such service. InvalidInput: the service has no such port, or refuses its arguments.
            LimitExceeded: it has as many tunnels as it may have.
            RunError: the service does not start. Unavailable: its agent is away, or nothing listens.
        """
        session = await self._finder.one(
            caller, ref, owner_access_key=owner_access_key, to_change=True, may_be_recent=True
        )
        agent = self._agent_of(session)
        if self._counts[session.id] >= self.settings.max_per_session:
            message = f"The session has {self.settings.max_per_session} tunnels, as many as it may have."
            raise LimitExceeded(message, data={"limit": self.settings.max_per_session})
        self._counts[session.id] += 1
        try:
            stream = await self._connect(agent, session, request)
        except BaseException:
            release(self._counts, session.id)
            raise
        return Tunnel(stream, session, self._counts, self._activity)

    def _agent_of(self, session: Session) -> AgentCommands:
        if session.status not in RUNNING_SESSION_STATUSES or session.main.agent is None:
            raise Conflict(
                f"The session is {session.status}, not RUNNING.",
                data={"status": session.status.value, "reason": session.status_info},
            )
        return self._gateway.agent(session.main.agent)

    async def _connect(self, agent: AgentCommands, session: Session, request: TunnelRequest) -> ByteStream:
        declared = [dict(port) for port in session.service_ports if port.get("name") == request.app]
        if session.service_ports and (not declared or declared[0].get("protocol") == _PRIVATE_PROTOCOL):
            names = sorted(
                str(port.get("name")) for port in session.service_ports if port.get("protocol") != _PRIVATE_PROTOCOL
            )
            message = f"The session has no service {request.app[:64]!r}; it has: {', '.join(names)}."
            raise NotFound(message, data={"app": request.app[:64], "services": names})
        kernel_id = str(session.main.id)
        state = await agent.start_service(
            StartService(
                kernel_id=kernel_id,
                name=request.app,
                port=request.port,
                envs=dict(request.envs),
                arguments=dict(request.arguments),
            )
        )
        ports = [int(port) for port in (declared[0].get("container_ports") if declared else None) or state.ports]
        return await agent.open_port(OpenPort(kernel_id=kernel_id, port=chosen_port(state, ports, request.port)))


def chosen_port(state: ServiceState, declared: list[int], requested: int | None) -> int:
    """Return the actual port by its position among the declared ones, as the workload may have other ports."""
    if not state.ports:
        raise NotSupported(f"The service {state.name} has no port.")
    if requested is None:
        return state.ports[0]
    if requested in declared and declared.index(requested) < len(state.ports):
        return state.ports[declared.index(requested)]
    raise InvalidInput(
        f"The service {state.name} has no port {requested}; it has: {', '.join(map(str, declared))}.",
        data={"port": requested, "ports": declared},
    )
