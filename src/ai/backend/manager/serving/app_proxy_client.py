"""Calls coordinators of the app proxy about endpoints, over HTTP (spec 03-14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from uuid import UUID

import msgspec

from ai.backend.common.errors import NotFound, PeerRefused
from ai.backend.common.ids import UserId
from ai.backend.common.wire.appproxy import EndpointLoads, RouteInfo, ServingOptions, UsageRow, UsageRows
from ai.backend.manager.service_ports.app_proxy_gateway import CoordinatorAddress
from ai.backend.manager.serving.gateway import CoordinatorCalls
from ai.backend.manager.serving.model import Endpoint


class HttpEndpointCoordinators:
    """Implements :class:`ai.backend.manager.serving.gateway.EndpointCoordinators`."""

    def __init__(self, coordinators: CoordinatorCalls) -> None:
        self._coordinators = coordinators

    async def authority(self, coordinator: CoordinatorAddress) -> str:
        return await self._coordinators.authority(coordinator)

    async def put_endpoint(
        self,
        coordinator: CoordinatorAddress,
        endpoint: Endpoint,
        routes: Sequence[RouteInfo],
        serving: ServingOptions,
    ) -> str:
        body = {
            "service_name": endpoint.name,
            "tags": {
                "session": {
                    "user_uuid": endpoint.user_id,
                    "group_id": str(endpoint.group_id),
                    "access_key": endpoint.access_key,
                    "domain_name": endpoint.domain_name,
                },
                "endpoint": {"id": endpoint.id, "existing_url": endpoint.url},
            },
            "apps": {endpoint.name: [_route_body(route) for route in routes]},
            "serving": serving,
            "open_to_public": endpoint.open_to_public,
        }
        return str((await self._coordinators.call(coordinator, "POST", _path(endpoint), body))["endpoint"])

    async def in_flight(self, coordinator: CoordinatorAddress, endpoint: Endpoint) -> Mapping[UUID, int] | None:
        report = await self.loads(coordinator, since=None, wait_s=0.0)
        return next((load.in_flight for load in report.loads if load.endpoint_id == endpoint.id), None)

    async def loads(self, coordinator: CoordinatorAddress, *, since: int | None, wait_s: float) -> EndpointLoads:
        query = f"?since={since}&wait={wait_s:g}" if since is not None else ""
        reply = await self._coordinators.call(coordinator, "GET", f"/v2/endpoints/loads{query}")
        try:
            return msgspec.convert(reply, EndpointLoads)
        except msgspec.ValidationError as e:
            raise PeerRefused(f"The app proxy {coordinator.url} does not tell its loads: {e}") from None

    async def usage(self, coordinator: CoordinatorAddress, *, after: int, limit: int) -> Sequence[UsageRow]:
        reply = await self._coordinators.call(coordinator, "GET", f"/v2/endpoints/usage?after={after}&limit={limit}")
        try:
            return msgspec.convert(reply, UsageRows).rows
        except msgspec.ValidationError as e:
            raise PeerRefused(f"The app proxy {coordinator.url} does not tell the use of endpoints: {e}") from None

    async def remove_endpoint(self, coordinator: CoordinatorAddress, endpoint: Endpoint) -> None:
        with suppress(NotFound):
            await self._coordinators.call(coordinator, "DELETE", _path(endpoint))

    async def endpoint_token(
        self, coordinator: CoordinatorAddress, endpoint: Endpoint, user_id: UserId, valid_until: datetime
    ) -> str:
        body = {"user_uuid": user_id, "exp": valid_until.isoformat()}
        try:
            reply = await self._coordinators.call(coordinator, "POST", f"{_path(endpoint)}/token", body)
        except NotFound as e:
            raise PeerRefused(f"The app proxy does not have the endpoint; `service sync` sends it again: {e}") from None
        return str(reply["token"])


def _route_body(route: RouteInfo) -> dict[str, object]:
    body: dict[str, object] = msgspec.to_builtins(route)
    return {name: value for name, value in body.items() if name != "session_name"}


def _path(endpoint: Endpoint) -> str:
    return f"/v2/endpoints/{endpoint.id}"
