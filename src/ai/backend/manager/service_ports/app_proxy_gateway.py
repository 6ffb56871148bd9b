"""Interface of the coordinators of the app proxy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ai.backend.common.ids import SessionId
from ai.backend.common.wire.execution import RouteOpened
from ai.backend.manager.sessions.model import Session


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """The address of the coordinator of a resource group, and the secret that it shares with managers."""

    url: str
    secret: str = field(repr=False)


class CoordinatorGateway(Protocol):
    """Calls coordinators. Every method raises Unavailable, or PeerRefused with the coordinator's reason."""

    async def authority(self, coordinator: CoordinatorAddress) -> str:
        """Returns the certificate (PEM) by which gateways of agents recognize its workers."""

    async def permit(self, coordinator: CoordinatorAddress, session: Session, app: str, route: RouteOpened) -> str:
        """Returns a token by which one browser may reach an app of a session over a route, once."""

    async def sessions(self, coordinator: CoordinatorAddress) -> Sequence[SessionId]:
        """Returns the sessions that browsers reach by it or may reach; also those of other managers."""

    async def remove_sessions(self, coordinator: CoordinatorAddress, ids: Sequence[SessionId]) -> None:
        """Cuts sessions off: removes their circuits and unused tokens."""

    async def workers(self, coordinator: CoordinatorAddress) -> Sequence[Mapping[str, Any]]:
        """Returns its workers, as it describes them (spec 03-14, ``GET /api/worker``)."""

    async def circuits(self, coordinator: CoordinatorAddress, worker_id: str) -> Sequence[Mapping[str, Any]]:
        """Returns the circuits of a worker (spec 03-14)."""

    async def remove_circuit(self, coordinator: CoordinatorAddress, circuit_id: str) -> None:
        """Removes a circuit. Raises NotFound too."""

    async def close(self) -> None: ...
