"""Routes of endpoints of model services (spec 03-14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ai.backend.appproxy.coordinator.circuits.schemas import Token
from ai.backend.appproxy.coordinator.endpoints.schemas import (
    EndpointBody,
    EndpointReply,
    EndpointTokenBody,
    LoadsQuery,
    UsageQuery,
)
from ai.backend.appproxy.coordinator.endpoints.service import EndpointRequest, EndpointService
from ai.backend.appproxy.coordinator.workers.schemas import Success
from ai.backend.appproxy.coordinator.workers.service import id_of
from ai.backend.common.appproxy_errors import NotForInteractive
from ai.backend.common.wire.appproxy import AppMode, EndpointLoads, RouteInfo, UsageRows
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.routes import Call, route


@dataclass(slots=True)
class EndpointsApi:
    """Routes of endpoints."""

    endpoints: EndpointService

    @route("POST", "/v2/endpoints/{endpoint_id}", body=EndpointBody, repeatable=True)
    async def put(self, call: Call[EndpointBody]) -> EndpointReply:
        """Creates an endpoint, or changes its routes."""
        return EndpointReply(endpoint=await self.endpoints.put(_request_of(await self._endpoint_id(call), call.body)))

    @route("DELETE", "/v2/endpoints/{endpoint_id}")
    async def remove(self, call: Call) -> Success:
        """Removes an endpoint."""
        await self.endpoints.remove(await self._endpoint_id(call))
        return Success()

    @route("POST", "/v2/endpoints/{endpoint_id}/token", body=EndpointTokenBody)
    async def token(self, call: Call[EndpointTokenBody]) -> Token:
        """Returns a token by which the endpoint is called."""
        endpoint_id = await self._endpoint_id(call)
        body = call.body
        endpoint_ids = list(dict.fromkeys((endpoint_id, *body.endpoints)))
        return Token(token=await self.endpoints.token(endpoint_ids, body.user_uuid, body.exp, body.limits))

    @route("GET", "/v2/endpoints/loads", query=LoadsQuery)
    async def loads(self, call: Call[Any, LoadsQuery]) -> EndpointLoads:
        """Returns the open and waiting requests of all endpoints."""
        return await self.endpoints.circuits.links.loads(call.query.since, call.query.wait)

    @route("GET", "/v2/endpoints/usage", query=UsageQuery)
    async def usage(self, call: Call[Any, UsageQuery]) -> UsageRows:
        """Returns the use of replicas by token and minute, from the report after ``after`` on."""
        return UsageRows(rows=list(await self.endpoints.circuits.store.usage(call.query.after, call.query.limit)))

    async def _endpoint_id(self, call: Call[EndpointBody] | Call[EndpointTokenBody] | Call) -> UUID:
        """Returns the id of the path. Raises NoSuchObject; NotForInteractive if it is the circuit of an app."""
        endpoint_id = id_of(call.params["endpoint_id"], "endpoint")
        stored_circuit = await self.endpoints.circuits.store.circuit(endpoint_id)
        if stored_circuit is not None and stored_circuit.circuit.app_mode is AppMode.INTERACTIVE:
            raise NotForInteractive
        return endpoint_id


def _request_of(endpoint_id: UUID, body: EndpointBody) -> EndpointRequest:
    if len(body.apps) > 1:
        raise refuse({"apps": "an endpoint has one app"})
    if body.tags.endpoint.id != endpoint_id:
        raise refuse({"tags.endpoint.id": "contradicts the path"})
    session = body.tags.session
    tags = {
        "endpoint.id": str(endpoint_id),
        "endpoint.name": body.service_name,
        "session.user_uuid": str(session.user_uuid),
        "session.group_id": session.group_id,
        "session.domain_name": session.domain_name,
    }
    routes = [
        RouteInfo(
            session_id=replica.session_id,
            kernel_host=replica.kernel_host,
            kernel_port=replica.kernel_port,
            protocol=replica.protocol,
            traffic_ratio=replica.traffic_ratio,
            gateway=replica.gateway,
            revision=replica.revision,
        )
        for replicas in body.apps.values()
        for replica in replicas
    ]
    return EndpointRequest(
        id=endpoint_id,
        service_name=body.service_name,
        user_id=session.user_uuid,
        routes=tuple(routes),
        open_to_public=body.open_to_public,
        tags=tags,
        port=body.port,
        subdomain=body.subdomain,
        existing_url=body.tags.endpoint.existing_url,
        serving=body.serving,
    )
