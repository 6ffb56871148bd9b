"""GraphQL queries and mutations of endpoints (client wire contract 3.2 and 3.3)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common.errors import InvalidInput, NotFound
from ai.backend.common.ids import UserId
from ai.backend.common.serving import EndpointStatus, ReplicaStatus
from ai.backend.manager.graphql.context import Info, context_of, decode_json_text, page_fields_of, run_mutation
from ai.backend.manager.graphql.resolvers import mutation, query
from ai.backend.manager.graphql.values import View
from ai.backend.manager.serving.model import EndpointQuery, EndpointToken, Replica, Service
from ai.backend.manager.serving.requests import ModifyService
from ai.backend.manager.serving.schemas import ModifyServiceBody
from ai.backend.manager.serving.service import ServingService
from ai.backend.manager.serving.views import modification_of

_ROUTE_STATUSES = {
    ReplicaStatus.READY: "HEALTHY",
    ReplicaStatus.UNHEALTHY: "UNHEALTHY",
    ReplicaStatus.PROVISIONING: "PROVISIONING",
    ReplicaStatus.WARMING: "PROVISIONING",
    ReplicaStatus.DRAINING: "TERMINATING",
    ReplicaStatus.TERMINATING: "TERMINATING",
    ReplicaStatus.TERMINATED: "TERMINATED",
}
"""The status of a replica -> the one of a routing of published clients."""
_STAGE_OF_STATUS = {EndpointStatus.DESTROYING: "destroying", EndpointStatus.DESTROYED: "destroyed"}
_ORDER_ALIASES = {"endpoint_id": "id", "project": "group_id", "replicas": "desired", "desired_session_count": "desired"}


def routing_view(service: Service, replica: Replica) -> View:
    error = {"reason": replica.reason.value, "detail": replica.detail} if replica.detail else None
    return {
        "routing_id": replica.id,
        "endpoint": service.endpoint.url,
        "session": replica.id,
        "status": _ROUTE_STATUSES[replica.status],
        "traffic_ratio": replica.traffic_ratio,
        "created_at": replica.created_at,
        "error_data": json.dumps(error) if error else None,
    }


def endpoint_view(service: Service) -> View:
    endpoint, spec = service.endpoint, service.current.spec
    return {
        "endpoint_id": endpoint.id,
        "name": endpoint.name,
        "status": endpoint.status.value,
        "status_reason": endpoint.reason.value,
        "image": spec.image,
        "domain": endpoint.domain_name,
        "project": endpoint.group_id,
        "resource_group": endpoint.resource_group,
        "resource_slots": json.dumps(spec.resources),
        "url": endpoint.url,
        "model": spec.model,
        "model_name": spec.served.name,
        "model_definition_path": spec.model_definition_path,
        "model_mount_destination": spec.model_mount_destination,
        "model_mount_destiation": spec.model_mount_destination,
        "runtime_variant": spec.runtime_variant,
        "created_user": endpoint.user_id if endpoint.created_by == endpoint.access_key else None,
        "created_user_email": endpoint.user_email if endpoint.created_by == endpoint.access_key else None,
        "session_owner": endpoint.user_id,
        "session_owner_email": endpoint.user_email,
        "tag": spec.tag,
        "startup_command": spec.startup_command,
        "bootstrap_script": spec.bootstrap_script,
        "callback_url": spec.callback_url,
        "environ": json.dumps(spec.environ),
        "resource_opts": json.dumps(spec.resource_opts),
        "claim": spec.claim,
        "variant_requirements": spec.variant_requirements,
        "device_requests": spec.device_requests,
        "replicas": endpoint.desired,
        "desired_session_count": endpoint.desired,
        "ready_count": sum(each.status is ReplicaStatus.READY for each in service.replicas),
        "cluster_mode": spec.cluster_mode.value,
        "cluster_size": spec.cluster_size,
        "open_to_public": endpoint.open_to_public,
        "created_at": endpoint.created_at,
        "destroyed_at": endpoint.destroyed_at,
        "retries": sum(each.failures for each in service.revisions),
        "lifecycle_stage": _STAGE_OF_STATUS.get(endpoint.status, "created"),
        "routings": [routing_view(service, each) for each in service.live_replicas],
        "revisions": [
            {
                "id": each.id,
                "number": each.number,
                "status": each.status.value,
                "status_reason": each.reason.value,
                "image": each.spec.image,
                "model_name": each.spec.served.name,
                "weight": each.weight,
                "created_at": each.created_at,
            }
            for each in service.revisions
        ],
    }


def _token_view(token: EndpointToken) -> View:
    return {
        "token": None,
        "endpoint_id": token.endpoint_id,
        "domain": token.domain_name,
        "project": str(token.group_id),
        "session_owner": token.user_id,
        "created_at": token.created_at,
        "valid_until": token.valid_until,
    }


def _parse_id(text: str | None, field: str) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        raise InvalidInput(f"{field} is a UUID.", data={field: "malformed"}) from None


def _modify_request(props: View) -> ModifyService:
    """Converts the GraphQL input ``props`` to a request that changes an endpoint. Raises InvalidInput."""
    values = {name: value for name, value in props.items() if value is not None}
    for name, field in (("replicas", "desired_session_count"), ("resource_slots", "resources")):
        if name in values:
            values[field] = values.pop(name)
    for name in ("environ", "resources", "resource_opts"):
        if name in values:
            values[name] = decode_json_text(name, values[name])
    try:
        return modification_of(msgspec.convert(values, ModifyServiceBody))
    except msgspec.ValidationError as e:
        raise InvalidInput(f"props: {e}", data={"props": "malformed"}) from None


class ServingResolvers:
    """Answers the GraphQL fields of endpoints; ``services`` is None if the manager has no model services."""

    def __init__(self, services: ServingService | None) -> None:
        self._services = services

    @query("endpoint")
    async def endpoint(self, info: Info, endpoint_id: UUID) -> View | None:
        if self._services is None:
            return None
        try:
            return endpoint_view(await self._services.get(context_of(info).caller, endpoint_id))
        except NotFound:
            return None

    @query("endpoint_list")
    async def endpoint_list(
        self,
        info: Info,
        domain_name: str | None = None,
        group_id: str | None = None,
        access_key: str | None = None,
        user_uuid: str | None = None,
        **arguments: Any,
    ) -> View:
        if self._services is None:
            return {"items": [], "total_count": 0}
        user_id = _parse_id(user_uuid, "user_uuid")
        selection = EndpointQuery(
            **page_fields_of(arguments, _ORDER_ALIASES),
            domain_name=domain_name,
            group_id=_parse_id(group_id, "group_id"),
            access_key=access_key,
            user_id=UserId(user_id) if user_id is not None else None,
        )
        page = await self._services.search(context_of(info).caller, selection)
        return {"items": [endpoint_view(each) for each in page.items], "total_count": page.total_count}

    @query("endpoint_token_list")
    async def endpoint_token_list(self, info: Info, endpoint_id: UUID | None = None, **arguments: Any) -> View:
        page = page_fields_of(arguments)
        if self._services is None or endpoint_id is None:
            return {"items": [], "total_count": 0}
        tokens = await self._services.tokens(
            context_of(info).caller, endpoint_id, limit=page["limit"], offset=page["offset"]
        )
        return {"items": [_token_view(each) for each in tokens.items], "total_count": tokens.total_count}

    @query("routing")
    async def routing(self, info: Info, routing_id: UUID, endpoint_id: UUID | None = None) -> View | None:
        return next(
            (each for each in await self._routings(info, endpoint_id) if each["routing_id"] == routing_id), None
        )

    @query("routing_list")
    async def routing_list(self, info: Info, endpoint_id: UUID | None = None, **arguments: Any) -> View:
        page, routings = page_fields_of(arguments), await self._routings(info, endpoint_id)
        return {"items": routings[page["offset"] :][: page["limit"]], "total_count": len(routings)}

    async def _routings(self, info: Info, endpoint_id: UUID | None) -> Sequence[View]:
        if self._services is None or endpoint_id is None:
            return []
        service = await self._services.get(context_of(info).caller, endpoint_id)
        return [routing_view(service, each) for each in service.replicas]

    @mutation("modify_endpoint")
    async def modify_endpoint(self, info: Info, endpoint_id: UUID, props: View) -> View:
        context, services = context_of(info), self._services

        async def modify() -> Service:
            if services is None:
                raise NotFound("This installation has no model services.")
            return await services.modify(context.caller, endpoint_id, _modify_request(props))

        return await run_mutation(info, "endpoint", str(endpoint_id), modify, endpoint_view)
