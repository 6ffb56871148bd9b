"""Requests and replies about endpoints of model services (spec 03-14)."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec

from ai.backend.appproxy.coordinator.circuits.schemas import SessionConfig
from ai.backend.common.wire.appproxy import (
    GatewayRoute,
    InferenceLimits,
    Port,
    ProxyProtocol,
    Ratio,
    RevisionShare,
    ServingOptions,
)
from ai.backend.infra.http.routes import Schema

_MAX_ROUTES = 1024


class EndpointConfig(Schema, frozen=True, kw_only=True):
    """Holds the id of an endpoint and its URL if it has one already (`EndpointConfig`)."""

    id: UUID
    existing_url: Annotated[str, msgspec.Meta(max_length=2048)] | None = None


class EndpointTags(Schema, frozen=True, kw_only=True):
    """Holds the session and the endpoint that the tags of an app describe (`EndpointTagConfig`)."""

    session: SessionConfig
    endpoint: EndpointConfig


class InferenceApp(Schema, frozen=True, kw_only=True):
    """Describes a replica of an endpoint and its address (`InferenceAppConfig`).

    With ``gateway``, host and port are those of the service gateway of the agent.
    """

    session_id: UUID
    kernel_host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    kernel_port: Port
    protocol: ProxyProtocol = ProxyProtocol.HTTP
    traffic_ratio: Ratio = 1.0
    gateway: GatewayRoute | None = None
    revision: RevisionShare | None = None


class EndpointBody(Schema, frozen=True, kw_only=True):
    """Requests an endpoint, or a change of its replicas (`EndpointCreationRequestModel`).

    ``apps`` has at most one app, with its replicas.
    """

    service_name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    tags: EndpointTags
    apps: dict[str, Annotated[list[InferenceApp], msgspec.Meta(max_length=_MAX_ROUTES)]]
    open_to_public: bool = False
    port: Port | None = None
    subdomain: Annotated[str, msgspec.Meta(max_length=63)] | None = None
    serving: ServingOptions | None = None


class EndpointReply(Schema, frozen=True, kw_only=True):
    """Answers with the URL of the endpoint (`EndpointCreationResponseModel`)."""

    endpoint: str


class EndpointTokenBody(Schema, frozen=True, kw_only=True):
    """Requests a token of an endpoint (`EndpointAPITokenGenerationRequestModel`).

    ``exp`` is a time in ISO 8601, or unix time. The token is good for the endpoint of the path and for the other
    ``endpoints``. ``limits`` replace those of the endpoints.
    """

    user_uuid: UUID
    exp: Annotated[str, msgspec.Meta(max_length=64)]
    endpoints: Annotated[list[UUID], msgspec.Meta(max_length=64)] = msgspec.field(default_factory=list)
    limits: InferenceLimits | None = None


class LoadsQuery(Schema, frozen=True, kw_only=True):
    """Asks for the loads of endpoints. With ``since``, the reply waits up to ``wait`` seconds for another version."""

    since: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    wait: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0


class UsageQuery(Schema, frozen=True, kw_only=True):
    after: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000
