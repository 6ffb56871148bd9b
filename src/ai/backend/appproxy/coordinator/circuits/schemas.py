"""Requests and replies about circuits, set-ups and sessions (spec 03-14)."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec

from ai.backend.common.wire.appproxy import Circuit, GatewayRoute, Port, ProxyProtocol
from ai.backend.infra.http.routes import Schema

_MAX_IDS = 10_000
_Ids = Annotated[list[UUID], msgspec.Meta(max_length=_MAX_IDS)]
_Text = Annotated[str, msgspec.Meta(max_length=256)]
_AppName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_LongText = Annotated[str, msgspec.Meta(max_length=8192)]


class CircuitList(Schema, frozen=True, kw_only=True):
    """Answers with one page of circuits (`CircuitListResponseModel`)."""

    circuits: list[Circuit]


class CircuitStatistics(Circuit, frozen=True, kw_only=True):
    """Describes the use of a circuit (`CircuitStatisticsModel`).

    ``last_access`` is unix time, ``ttl`` the seconds until removal; None is never.
    """

    requests: int
    last_access: int | None
    ttl: int | None


class BulkRemoval(Schema, frozen=True, kw_only=True):
    """Names the circuits to remove (`BulkRemoveCircuitsRequestModel`)."""

    circuit_ids: _Ids = msgspec.field(default_factory=list)


class SessionRemoval(Schema, frozen=True, kw_only=True):
    """The sessions whose circuits and set-ups are removed."""

    session_ids: _Ids


class SessionList(Schema, frozen=True, kw_only=True):
    """The sessions with circuits of apps, or with set-ups."""

    session_ids: list[UUID]


class SessionConfig(Schema, frozen=True, kw_only=True):
    """Describes a session by its id, its user, group and domain (`SessionConfig`)."""

    id: UUID | None = None
    user_uuid: UUID
    group_id: _Text
    access_key: _Text | None = None
    domain_name: _Text


class ConfBody(Schema, frozen=True, kw_only=True):
    """Requests a token by which one browser may reach a service of a session (`ConfRequestModel`).

    ``app`` binds the token to one app. With ``gateway``, host and port are those of the service gateway of the agent.
    """

    login_session_token: str | None = None
    kernel_host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    kernel_port: Port
    session: SessionConfig
    app: _AppName | None = None
    gateway: GatewayRoute | None = None


class Token(Schema, frozen=True, kw_only=True):
    """Answers with a token (`TokenResponseModel`)."""

    token: str


class AddQuery(Schema, frozen=True, kw_only=True):
    """Asks for a circuit to an app (`AddRequestModel`). ``envs`` may be a JSON text in a query."""

    app: _AppName
    protocol: ProxyProtocol = ProxyProtocol.HTTP
    envs: dict[str, str | None] | _LongText | None = None
    args: _LongText | None = None
    open_to_public: bool = False
    allowed_client_ips: Annotated[str, msgspec.Meta(max_length=2048)] | None = None
    redirect: Annotated[str, msgspec.Meta(max_length=2048)] = "/"
    no_reuse: bool = False
    port: Port | None = None
    subdomain: Annotated[str, msgspec.Meta(max_length=63)] | None = None


class ProxyQuery(AddQuery, frozen=True, kw_only=True):
    """Asks for an app of a session, by the token of a user (`ProxyRequestModel`)."""

    token: Annotated[str, msgspec.Meta(max_length=1024)]
    session_id: UUID


class AddReply(Schema, frozen=True, kw_only=True):
    """Answers with the address of a new circuit (`AddResponseModel`)."""

    code: int = 200
    url: str


class ProxyReply(Schema, frozen=True, kw_only=True):
    """Answers with the address of an app, and whether its circuit existed before (`ProxyResponseModel`)."""

    redirect_url: str
    reuse: bool
