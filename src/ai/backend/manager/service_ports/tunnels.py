"""Opens tunnels, which are connections of users to the services of their sessions."""

from __future__ import annotations

from collections import Counter

from ai.backend.common.errors import LimitExceeded, NotFound
from ai.backend.common.ids import SessionId
from ai.backend.common.wire.execution import OpenPort
from ai.backend.common.wire.link import AgentCommands, ByteStream
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.idle.activity import ActivityTracker
from ai.backend.manager.service_ports.service import (
    ServicePorts,
    ServiceRequest,
    choose_port,
    is_private,
    start_service,
)
from ai.backend.manager.service_ports.settings import TunnelSettings
from ai.backend.manager.sessions.model import Session


class Tunnel:
    """Represents a byte stream to a service, which counts as a tunnel of its session until it is closed."""

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
    """Subtracts one closed tunnel from the number of tunnels of a session."""
    counts[session] -= 1
    if counts[session] <= 0:
        del counts[session]


class TunnelService:
    """Opens tunnels; the caller transfers the bytes and closes the tunnel."""

    def __init__(self, services: ServicePorts, settings: TunnelSettings, activity: ActivityTracker) -> None:
        self._services = services
        self.settings = settings
        self._activity = activity
        self._counts: Counter[SessionId] = Counter()

    @property
    def open_tunnels(self) -> int:
        """Returns the number of open tunnels of this manager."""
        return self._counts.total()

    async def open(
        self, caller: Caller, ref: str, request: ServiceRequest, *, owner_access_key: str | None = None
    ) -> Tunnel:
        """Connects to a service, and starts the service first if it does not run. The caller closes the connection.

        Raises:
            SessionNotFound, TooManySessionsMatched, Forbidden: not the caller's session, or no services on its node.
            Conflict: the session is not RUNNING.
            NotFound: it has no such service. InvalidInput: the service has no such port, or refuses its arguments.
            LimitExceeded: it has as many tunnels as it may have.
            RunError: the service does not start. Unavailable: its agent is away, or nothing listens.
        """
        session, agent = await self._services.running(caller, ref, owner_access_key)
        if self._counts[session.id] >= self.settings.max_per_session:
            message = f"The session has {self.settings.max_per_session} tunnels, as many as it may have."
            raise LimitExceeded(message, data={"limit": self.settings.max_per_session})
        self._counts[session.id] += 1
        try:
            stream = await _connect(session, agent, request)
        except BaseException:
            release(self._counts, session.id)
            raise
        return Tunnel(stream, session, self._counts, self._activity)


async def _connect(session: Session, agent: AgentCommands, request: ServiceRequest) -> ByteStream:
    service_name = session.service_name(request.app)
    declared_service = next((dict(port) for port in session.service_ports if port.get("name") == service_name), None)
    if session.service_ports and (declared_service is None or is_private(declared_service)):
        service_names = sorted(str(port.get("name")) for port in session.service_ports if not is_private(port))
        message = f"The session has no service {request.app[:64]!r}; it has: {', '.join(service_names)}."
        raise NotFound(message, data={"app": request.app[:64], "services": service_names})
    state = await start_service(session, agent, request)
    declared_ports = [int(port) for port in (declared_service or {}).get("container_ports") or state.ports]
    kernel_id = str(session.main.id)
    return await agent.open_port(OpenPort(kernel_id=kernel_id, port=choose_port(state, declared_ports, request.port)))
