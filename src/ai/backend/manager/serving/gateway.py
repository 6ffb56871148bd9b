"""Declares the interfaces that model services need: coordinators of the app proxy, model folders, replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from ai.backend.common.ids import UserId
from ai.backend.common.wire.appproxy import EndpointLoads, RouteInfo, ServingOptions, UsageRow
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.service_ports.app_proxy_gateway import CoordinatorAddress
from ai.backend.manager.serving.model import Endpoint, Replica
from ai.backend.manager.sessions.model import Session


class CoordinatorCalls(Protocol):
    """Sends requests to coordinators. Every method raises Unavailable, or PeerRefused with the coordinator's reason."""

    async def authority(self, coordinator: CoordinatorAddress) -> str: ...

    async def call(self, coordinator: CoordinatorAddress, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Sends a request to a coordinator and returns the reply. Raises NotFound where it does not have what the path
        names.
        """
        ...


class EndpointCoordinators(Protocol):
    """Calls coordinators of the app proxy about endpoints (spec 03-14). Every method may be repeated, and raises
    Unavailable, or PeerRefused with the coordinator's reason."""

    async def authority(self, coordinator: CoordinatorAddress) -> str:
        """Returns the certificate (PEM) by which gateways of agents recognize the workers of a coordinator."""
        ...

    async def put_endpoint(
        self,
        coordinator: CoordinatorAddress,
        endpoint: Endpoint,
        routes: Sequence[RouteInfo],
        serving: ServingOptions,
    ) -> str:
        """Creates an endpoint or replaces its routes, and returns its URL once its worker serves the routes."""
        ...

    async def in_flight(self, coordinator: CoordinatorAddress, endpoint: Endpoint) -> Mapping[UUID, int] | None:
        """Returns the number of open requests of an endpoint by session, or None if no worker has reported them."""
        ...

    async def loads(self, coordinator: CoordinatorAddress, *, since: int | None, wait_s: float) -> EndpointLoads:
        """Returns the open and waiting requests of all endpoints, as soon as they differ from version ``since``.
        Without a change, the reply comes after ``wait_s`` seconds.
        """
        ...

    async def usage(self, coordinator: CoordinatorAddress, *, after: int, limit: int) -> Sequence[UsageRow]:
        """Returns the coordinator's next reports of token use, which follow the report with the id ``after``."""
        ...

    async def remove_endpoint(self, coordinator: CoordinatorAddress, endpoint: Endpoint) -> None:
        """Removes an endpoint from a coordinator, or does nothing if the coordinator does not have it."""

    async def endpoint_token(
        self, coordinator: CoordinatorAddress, endpoint: Endpoint, user_id: UserId, valid_until: datetime
    ) -> str:
        """Returns a token with which clients may call the endpoint."""
        ...


class ModelFolders(Protocol):
    """Reads small files of folders and artifacts that a caller may mount."""

    async def read(self, caller: Caller, ref: str, path: str, *, max_bytes: int) -> bytes:
        """Returns the bytes of a file in a folder or artifact. Raises NotFound, Forbidden,
        LimitExceeded, Unavailable.
        """
        ...


class ReplicaProbe(Protocol):
    """Sends requests, such as the health check of an endpoint, to a replica."""

    async def probe(self, session: Session, replica: Replica, *, port: int, path: str, timeout_s: float) -> int:
        """Sends a GET of ``path`` to ``port`` of a replica and returns the HTTP status of the answer. Raises
        Unavailable if nothing answers in time, or not in HTTP.
        """
        ...

    async def read(self, session: Session, *, port: int, path: str, timeout_s: float, max_bytes: int) -> bytes:
        """Sends a GET of ``path`` to ``port`` of a replica and returns the body of the answer. Raises Unavailable also
        for another status than 200 and for a body of more than ``max_bytes``.
        """
        ...
