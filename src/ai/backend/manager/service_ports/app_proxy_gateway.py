"""Declares the interface to the coordinators of the app proxy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ai.backend.common.ids import SessionId
from ai.backend.common.wire.execution import RouteOpened
from ai.backend.manager.sessions.model import Session


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """Holds the address of a resource group's coordinator, and the secret that it shares with managers."""

    url: str
    secret: str = field(repr=False)


class CoordinatorGateway(Protocol):
    """Calls coordinators of the app proxy about browsers, workers and circuits. Every method raises Unavailable, or
    PeerRefused with the coordinator's reason.
    """

    async def authority(self, coordinator: CoordinatorAddress) -> str:
        """Returns the certificate (PEM) by which gateways of agents recognize the workers of a coordinator."""

    async def permit(self, coordinator: CoordinatorAddress, session: Session, app: str, route: RouteOpened) -> str:
        """Returns a token that lets one browser open, once, an app of a session through the given route."""

    async def sessions(self, coordinator: CoordinatorAddress) -> Sequence[SessionId]:
        """Returns the ids of the sessions for which a coordinator has interactive circuits or unused tokens.

        Sessions of other managers are included.
        """

    async def remove_sessions(self, coordinator: CoordinatorAddress, ids: Sequence[SessionId]) -> None:
        """Removes the circuits and unused tokens of sessions, so that browsers do not reach the sessions any more."""

    async def workers(self, coordinator: CoordinatorAddress) -> Sequence[Mapping[str, Any]]:
        """Returns the workers of a coordinator as it describes them (spec 03-14, ``GET /api/worker``)."""

    async def circuits(self, coordinator: CoordinatorAddress, worker_id: str) -> Sequence[Mapping[str, Any]]:
        """Returns the circuits of a worker (spec 03-14)."""

    async def remove_circuit(self, coordinator: CoordinatorAddress, circuit_id: str) -> None:
        """Removes a circuit of a worker. Raises NotFound if there is no such circuit."""

    async def close(self) -> None: ...
