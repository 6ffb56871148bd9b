"""Manages circuits of model services, and the tokens with which clients call them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from ai.backend.appproxy.coordinator.circuits.placement import check_subdomain
from ai.backend.appproxy.coordinator.circuits.service import CircuitService
from ai.backend.common.appproxy_errors import NoSuchObject
from ai.backend.common.errors import InvalidInput
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import (
    AppMode,
    Circuit,
    FrontendMode,
    InferenceLimits,
    ProxyProtocol,
    RouteInfo,
    ServingOptions,
)

_MAX_TOKEN_YEARS = 10


class EndpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an endpoint as a manager requests it. A requested port or name is used if it is free."""

    id: UUID
    service_name: str
    user_id: UUID
    routes: tuple[RouteInfo, ...]
    open_to_public: bool
    tags: dict[str, str]
    port: int | None = None
    subdomain: str | None = None
    existing_url: str | None = None
    serving: ServingOptions | None = None


@dataclass(slots=True)
class EndpointService:
    """Creates, changes and removes endpoints. An endpoint is one circuit, which keeps its URL while it exists."""

    circuits: CircuitService

    async def put(self, request: EndpointRequest) -> str:
        """Creates an endpoint or changes its routes; returns its URL once its worker serves it.

        Raises InvalidInput: routes of several protocols. SlotTaken: the wanted port or name. Unavailable.
        """
        protocols = {route.protocol for route in request.routes} or {ProxyProtocol.HTTP}
        if len(protocols) > 1:
            raise InvalidInput("apps: the routes of an endpoint have one protocol", data={"apps": "several protocols"})
        stored_circuit = await self.circuits.store.of_endpoint(request.id)
        now = self.circuits.clock.now().isoformat()
        if stored_circuit is None:
            circuit = await self.circuits.open(_circuit_of(request, protocols.pop(), now), request.tags)
        else:
            circuit = replace(
                stored_circuit.circuit,
                protocol=protocols.pop() if request.routes else stored_circuit.circuit.protocol,
                route_info=list(request.routes),
                session_ids=[route.session_id for route in request.routes],
                open_to_public=request.open_to_public,
                serving=request.serving,
                updated_at=now,
            )
            await self.circuits.store.replace(circuit)
            await self.circuits.links.wait_delivered(circuit.id)
        worker = await self.circuits.workers.get(circuit.worker)
        return worker.url_of(circuit.port, circuit.subdomain)

    async def remove(self, endpoint_id: UUID) -> None:
        """Removes an endpoint. Raises NoSuchObject."""
        await self.circuits.remove([(await self._circuit(endpoint_id)).id])

    async def token(
        self, endpoint_ids: Sequence[UUID], user_id: UUID, exp: str, limits: InferenceLimits | None = None
    ) -> str:
        """Returns a token that permits calls of the given endpoints. Raises NoSuchObject, InvalidInput."""
        for endpoint_id in endpoint_ids:
            await self._circuit(endpoint_id)
        expires_at = _time_of(exp)
        now = self.circuits.clock.now()
        if not now < expires_at <= now + timedelta(days=366 * _MAX_TOKEN_YEARS):
            message = f"exp: a time in the future, within {_MAX_TOKEN_YEARS} years"
            raise InvalidInput(message, data={"exp": "out of range"})
        return self.circuits.tokens.endpoint_token(endpoint_ids, user_id, expires_at, limits)

    async def _circuit(self, endpoint_id: UUID) -> Circuit:
        stored_circuit = await self.circuits.store.of_endpoint(endpoint_id)
        if stored_circuit is None:
            raise NoSuchObject("endpoint")
        return stored_circuit.circuit


def _circuit_of(request: EndpointRequest, protocol: ProxyProtocol, now: str) -> Circuit:
    placeholder_id = UUID(int=0)
    port, subdomain = request.port, request.subdomain
    if port is None and subdomain is None and request.existing_url:
        port = _port_of(request.existing_url)
    return Circuit(
        id=placeholder_id,
        app="",
        protocol=protocol,
        worker=placeholder_id,
        app_mode=AppMode.INFERENCE,
        frontend_mode=FrontendMode.PORT,
        open_to_public=request.open_to_public,
        port=port,
        subdomain=check_subdomain(subdomain) if subdomain is not None else None,
        user_id=request.user_id,
        endpoint_id=request.id,
        route_info=list(request.routes),
        session_ids=[route.session_id for route in request.routes],
        serving=request.serving,
        created_at=now,
        updated_at=now,
    )


def _port_of(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return None


def _time_of(text: str) -> datetime:
    """Parses a time in ISO 8601 (UTC by default) or in unix seconds. Raises InvalidInput."""
    try:
        if text.isascii() and text.isdigit():
            return datetime.fromtimestamp(int(text), UTC)
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidInput("exp: a time as 2030-01-01T00:00:00Z", data={"exp": "malformed"}) from None
