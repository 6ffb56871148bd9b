"""Defines values and messages of the app proxy: coordinator, workers and managers (spec 03-14).

The worker link is a WebSocket that a worker opens at ``GET /api/worker/{worker_id}/link?node=NODE`` with the header
``X-BackendAI-Token``. Its frames are JSON texts. The coordinator sends :class:`State`, :class:`Change`,
:class:`Counted`; the worker sends :class:`Ack`, :class:`UsageReport`. The field ``frame`` names the kind.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import msgspec

from ai.backend.common.wire import Wire

TOKEN_HEADER = "X-BackendAI-Token"
"""The header with the secret that manager, coordinator and workers share (spec 03-16)."""
SETUP_PATH = "/.backendai/setup"
"""Path at the origin of every circuit where a worker takes a set-up code: ``?code=CODE``."""
SETUP_AUDIENCE = "appproxy-setup"
"""``aud`` of set-up codes."""
SETUP_KEY = "appproxy/setup"
"""Purpose of the key of set-up codes, for :func:`purpose_key`."""
INFERENCE_KEY = "appproxy/inference"
"""Purpose of the key of the tokens of inference endpoints."""
PERMIT_KEY = "appproxy/permit"
"""Purpose of the key of the permit cookies, which only workers read."""
SETUP_CODE_S = 60
"""Seconds that a set-up code is valid."""
HEARTBEAT_S = 10.0
"""Seconds between two heartbeats of a worker (PATCH)."""
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class AppMode(StrEnum):
    INTERACTIVE = "interactive"
    INFERENCE = "inference"


class FrontendMode(StrEnum):
    WILDCARD = "wildcard"
    PORT = "port"


class ProxyProtocol(StrEnum):
    HTTP = "http"
    GRPC = "grpc"
    H2 = "h2"
    TCP = "tcp"


class GatewayRoute(Wire, frozen=True, kw_only=True):
    """A route of an agent's service gateway: its TLS server name and the PEM of the gateway's certificate."""

    name: str
    certificate: str


class RevisionShare(Wire, frozen=True, kw_only=True):
    """Names the revision of an endpoint that a route belongs to, and the revision's share of the requests.

    Revisions get exactly their weights, however many routes each of them has. A revision of weight zero gets no request
    until there is no other revision.
    """

    id: UUID
    weight: Ratio


class RouteInfo(Wire, frozen=True, kw_only=True):
    """The target of a circuit (spec 03-14, RouteInfo). With ``gateway``, host and port are those of the gateway."""

    session_id: UUID
    session_name: str | None = None
    kernel_host: str
    kernel_port: Port
    protocol: ProxyProtocol
    traffic_ratio: Ratio = 1.0
    gateway: GatewayRoute | None = None
    revision: RevisionShare | None = None


class RoutingKind(StrEnum):
    """Lists the ways to choose one replica of a revision for a request.

    ``least-outstanding``: the replica with the fewest open requests. ``prefix``: the replica that has computed the
    longest part of the prompt before, until the replica is saturated.
    """

    LEAST_OUTSTANDING = "least-outstanding"
    PREFIX = "prefix"


Amount = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class TokenKind(StrEnum):
    """The tokens that a limit counts: of prompts, of answers, or both."""

    INPUT = "input"
    OUTPUT = "output"
    TOTAL = "total"


class RequestWindow(Wire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most ``amount`` requests in any ``seconds``."""

    amount: Amount
    seconds: Annotated[int, msgspec.Meta(ge=1, le=31 * 86_400)] = 60


class TokenWindow(Wire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most ``amount`` tokens of a kind in any ``seconds``."""

    amount: Amount
    seconds: Annotated[int, msgspec.Meta(ge=1, le=31 * 86_400)] = 60
    kind: TokenKind = TokenKind.TOTAL


class InferenceLimits(Wire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits the requests and model tokens of one API token, or of each API token of an endpoint.

    ``concurrent`` limits open requests. Each node of a worker counts by itself.
    """

    requests: Annotated[list[RequestWindow], msgspec.Meta(max_length=8)] = []
    tokens: Annotated[list[TokenWindow], msgspec.Meta(max_length=8)] = []
    concurrent: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None = None

    @property
    def is_empty(self) -> bool:
        return self == InferenceLimits()


class ServingOptions(Wire, frozen=True, kw_only=True):
    """How requests to an endpoint of a model service are served.

    ``models`` are the names by which the base URL of a worker finds it; without any, its name is used. While it has no
    route, ``hold_requests`` wait for one for up to ``hold_s``, with ``hold_bytes`` of bodies together. ``limits`` are
    of each token that has none of its own. ``drain_s``: for the requests of a route that is removed.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    models: Annotated[list[Annotated[str, msgspec.Meta(max_length=256)]], msgspec.Meta(max_length=64)] = []
    routing: RoutingKind = RoutingKind.LEAST_OUTSTANDING
    hold_requests: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 100
    hold_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 32 << 20
    hold_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 300.0
    limits: InferenceLimits | None = None
    project: UUID | None = None


class Circuit(Wire, frozen=True, kw_only=True):
    """A connection of a slot of a worker with services of sessions (spec 03-14, SerializableCircuit).

    ``user_id`` may use an interactive circuit; with ``open_to_public`` anyone may. ``allowed_client_ips`` are networks
    separated by commas; None permits any address. Times are in ISO 8601.
    """

    id: UUID
    app: str
    protocol: ProxyProtocol
    worker: UUID
    app_mode: AppMode
    frontend_mode: FrontendMode
    envs: dict[str, Any] = {}
    arguments: str | None = None
    open_to_public: bool = False
    allowed_client_ips: str | None = None
    port: Port | None = None
    subdomain: str | None = None
    user_id: UUID | None = None
    endpoint_id: UUID | None = None
    route_info: list[RouteInfo] = []
    session_ids: list[UUID] = []
    serving: ServingOptions | None = None
    created_at: str
    updated_at: str


class AppFilter(Wire, frozen=True, kw_only=True):
    """Holds one filter of a worker. A worker with ``filtered_apps_only`` serves sessions with one of its filters.

    See the coordinator's reference.
    """

    key: str
    value: str


class WorkerRegistration(Wire, frozen=True, kw_only=True):
    """The body of ``PUT /api/worker`` (spec 03-14, WorkerRequestModel).

    ``wildcard_domain`` begins with a dot; ``wildcard_port`` is the port of the domain that clients use, the usual one
    of the scheme if None. ``node`` names one process of the worker, new for each start. ``certificate_request`` is a
    PEM; the reply then has a client certificate for the gateways of agents.
    """

    authority: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    frontend_mode: FrontendMode
    protocol: ProxyProtocol
    hostname: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    use_tls: bool = False
    api_port: Port
    port_range: tuple[Port, Port] | None = None
    wildcard_domain: Annotated[str, msgspec.Meta(max_length=190)] | None = None
    filtered_apps_only: bool = False
    accepted_traffics: list[AppMode] = msgspec.field(default_factory=lambda: list(AppMode))
    app_filters: list[AppFilter] = []
    wildcard_port: Port | None = None
    node: Annotated[str, msgspec.Meta(max_length=64)] = ""
    certificate_request: str | None = None


class Slot(Wire, frozen=True, kw_only=True):
    frontend_mode: FrontendMode
    in_use: bool
    port: int | None = None
    subdomain: str | None = None
    circuit_id: UUID | None = None


class WorkerInfo(Wire, frozen=True, kw_only=True):
    """The reply to ``PUT /api/worker`` (spec 03-14, WorkerResponseModel).

    ``certificate`` answers a certificate request, ``authority_certificate`` is of the coordinator's authority (PEM).
    """

    authority: str
    frontend_mode: FrontendMode
    protocol: ProxyProtocol
    hostname: str
    use_tls: bool
    api_port: int
    port_range: tuple[int, int] | None = None
    wildcard_domain: str | None = None
    filtered_apps_only: bool
    accepted_traffics: list[AppMode]
    id: UUID
    created_at: str
    updated_at: str
    available_slots: int
    occupied_slots: int
    nodes: int
    slots: list[Slot] = []
    certificate: str | None = None
    authority_certificate: str | None = None


class Frame(Wire, frozen=True, kw_only=True, tag_field="frame"):
    """Serves as the base of the frames of the worker link."""


class State(Frame, frozen=True, kw_only=True, tag="state"):
    """Holds all circuits of the worker at ``version``. The frame replaces all circuits that the worker has."""

    version: int
    circuits: list[Circuit]


class Change(Frame, frozen=True, kw_only=True, tag="change"):
    """Holds the circuits that are new or changed since the previous version, and the ids of removed circuits."""

    version: int
    set: list[Circuit] = []
    removed: list[UUID] = []


class Ack(Frame, frozen=True, kw_only=True, tag="ack"):
    """Reports that the worker serves ``version``.

    ``failed`` are circuits of it that cannot be served, with the reason.
    """

    version: int
    failed: dict[UUID, str] = {}


class CircuitUsage(Wire, frozen=True, kw_only=True):
    """Counts a circuit's requests since the previous counted report, and the circuit's open connections.

    ``last_used`` is unix time, ``open`` counts connections that are open now.

    Of endpoints: ``queued`` requests wait for a route now, ``in_flight`` are with the routes of these sessions now;
    ``waits`` is how often requests began to wait since the previous counted report.
    """

    id: UUID
    requests: Amount = 0
    last_used: float
    open: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    queued: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    waits: Amount = 0
    in_flight: dict[UUID, Annotated[int, msgspec.Meta(ge=0, le=2**31)]] = {}


FIRST_BYTE_BOUNDS_S = (*(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),)
"""Upper bounds of the buckets of the time to the first byte (OpenTelemetry's ``gen_ai.server.time_to_first_token``)."""


class InferenceUsage(Wire, frozen=True, kw_only=True):
    """The use of one replica of an endpoint by one token in one minute, since the previous counted report.

    ``minute`` is unix time divided by 60; ``token`` is a hash of the token's id, empty for requests without one;
    ``user`` is whom it was issued for. ``first_bytes`` counts responses by :data:`FIRST_BYTE_BOUNDS_S` and one bucket
    for what took longer. ``estimated`` requests are those whose engine named no tokens. ``busy_ms`` is the time of all
    requests.
    """

    minute: Amount
    token: Annotated[str, msgspec.Meta(max_length=64)] = ""
    user: UUID | None = None
    circuit: UUID
    endpoint: UUID | None = None
    project: UUID | None = None
    revision: UUID | None = None
    session: UUID | None = None
    requests: Amount = 0
    errors: Amount = 0
    prompt_tokens: Amount = 0
    cached_tokens: Amount = 0
    output_tokens: Amount = 0
    estimated: Amount = 0
    busy_ms: Amount = 0
    first_bytes: Annotated[list[Amount], msgspec.Meta(max_length=len(FIRST_BYTE_BOUNDS_S) + 1)] = []


class UsageReport(Frame, frozen=True, kw_only=True, tag="usage"):
    """A report of a worker's node. ``sequence`` grows by one from 1; it is sent again until it is counted.

    ``time`` is the worker's clock, by which the coordinator reads ``last_used``.
    """

    sequence: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    time: float
    circuits: list[CircuitUsage]
    inference: Annotated[list[InferenceUsage], msgspec.Meta(max_length=20_000)] = []


class EndpointLoad(Wire, frozen=True, kw_only=True):
    """Holds the load of an endpoint, as all nodes of the endpoint's worker reported it last.

    ``in_flight`` are open requests by session. ``requests`` and ``tokens``, those of prompts and answers, only grow.
    """

    endpoint_id: UUID
    queued: int = 0
    in_flight: dict[UUID, int] = {}
    requests: int = 0
    tokens: int = 0
    last_used: float


class EndpointLoads(Wire, frozen=True, kw_only=True):
    """The reply to ``GET /v2/endpoints/loads``: the loads of endpoints.

    ``version`` grows when requests begin to wait somewhere.
    """

    version: int
    loads: list[EndpointLoad]


class UsageRow(Wire, frozen=True, kw_only=True):
    """Holds one report about the usage of an endpoint, and the number that identifies the report for ever.

    A later report has a larger ``id``.
    """

    id: int
    usage: InferenceUsage


class UsageRows(Wire, frozen=True, kw_only=True):
    """The reply to ``GET /v2/endpoints/usage?after=ID``: the next reports, oldest first, each for a day."""

    rows: list[UsageRow]


class Counted(Frame, frozen=True, kw_only=True, tag="counted"):
    """Replies to :class:`UsageReport`: all reports up to this sequence number are counted."""

    sequence: int


ToWorker = State | Change | Counted
ToCoordinator = Ack | UsageReport


class SetupCode(Wire, frozen=True, kw_only=True):
    """The claims of a set-up code: a JWT (HS256) by the key :data:`SETUP_KEY`.

    A worker takes each ``jti`` once, sets the permit of ``circuit`` for the user ``sub`` (None: public), and redirects
    to ``redirect``, which begins with exactly one slash.
    """

    aud: str = SETUP_AUDIENCE
    circuit: UUID
    sub: str | None = None
    redirect: str = "/"
    jti: str
    exp: int


class InferenceToken(Wire, frozen=True, kw_only=True):
    """The claims of a token for endpoints: a JWT (HS256) by the key :data:`INFERENCE_KEY`. ``aud`` are the ids of the
    endpoints that it is good for, one or several; ``sub`` is the user."""

    typ: str = "inference"
    aud: str | list[str]
    sub: str
    jti: str
    exp: int
    limits: InferenceLimits | None = None


def purpose_key(secret: str, purpose: str) -> bytes:
    """Returns the key that is derived from a shared secret for one purpose.

    A token of one purpose is invalid for other purposes.
    """
    return hmac.digest(secret.encode(), purpose.encode(), hashlib.sha256)
