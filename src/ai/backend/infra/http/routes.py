"""Typed routes: an endpoint declares its path, body, query and reply in its signature.

An API is a class with methods marked by :func:`route`; :func:`endpoints_of` collects them from an instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Generic
from uuid import UUID

import msgspec
from aiohttp import web
from typing_extensions import TypeVar

from ai.backend.infra.http.errors import BodyTooSlow, PayloadTooLarge
from ai.backend.infra.http.memory_budget import SMALL, MemoryBudget
from ai.backend.infra.http.ratelimit import Allowance

MAX_JSON_BYTES = 1_048_576
BODY_TIMEOUT_S = 120.0
"""The timeout in seconds from the head of a request to the end of its body."""
READ_METHODS = ("GET", "HEAD", "REPORT")
"""Methods that a GET endpoint accepts. REPORT is a GET whose parameters come in a body (spec 03-07, "HTTP Methods")."""
SAFE_METHODS = frozenset({"GET", "HEAD", "REPORT", "OPTIONS"})


class Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of request schemas: unknown fields are rejected; ``null`` means absent where a field has a default."""


class Nothing(Schema, frozen=True):
    """A schema without fields."""


B = TypeVar("B", bound=msgspec.Struct, default=Nothing)
Q = TypeVar("Q", bound=msgspec.Struct, default=Nothing)
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


@dataclass(slots=True)
class Reply:
    """A JSON reply with its own status or headers."""

    value: Any = None
    status: int = 200
    headers: Mapping[str, str] | None = None


class Call(Generic[B, Q]):
    """One request to one endpoint.

    Attributes:
        request: the request underneath, for streams.
        endpoint: what was called.
        method: as it is after an override.
        address: of the client, the nearest hop that is no trusted proxy; no address where a socket has none.
        params: the variable parts of the path, decoded.
        access_key: the one that signed the request; None if anonymous.
        allowance: how many more requests the caller may send; None if they are not counted.
        identity: whoever signed the request, as the daemon's own key store knows them; None if anonymous.
        owner_access_key: on whose behalf the caller says to act; not yet permitted.
        raw_query: still percent-encoded.
        request_id: names this request in logs and problems.
        call_id: the same for all repetitions of a call with a client token; None without a token.
        is_replayed: whether the reply is the one that an earlier call of the same client token got.
    """

    __slots__ = (
        "access_key",
        "acquired",
        "address",
        "allowance",
        "body",
        "budget",
        "call_id",
        "endpoint",
        "identity",
        "is_replayed",
        "method",
        "owner_access_key",
        "params",
        "query",
        "raw_body",
        "raw_query",
        "request",
        "request_id",
    )

    def __init__(
        self, request: web.Request, routed: Routed, endpoint: Endpoint, address: str, budget: MemoryBudget
    ) -> None:
        self.request = request
        self.endpoint = endpoint
        self.address = address
        self.budget = budget
        self.method = routed.method
        self.params = routed.params
        self.raw_query = routed.raw_query
        self.request_id = routed.request_id
        self.access_key: str | None = None
        self.allowance: Allowance | None = None
        self.identity: Any = None
        self.call_id: UUID | None = None
        self.is_replayed = False
        self.owner_access_key: str | None = None
        self.raw_body: bytes | None = None
        self.acquired = 0
        self.body: B
        self.query: Q

    async def read_body(self) -> bytes:
        """Returns the whole body, up to the endpoint's limit.

        Raises:
            PayloadTooLarge: it is longer.
            BodyTooSlow: it does not come within :data:`BODY_TIMEOUT_S`.
            Unavailable: the memory for bodies is used up.
        """
        if self.raw_body is None:
            limit = self.endpoint.max_body
            length = self.request.content_length
            if length is not None and length > limit:
                raise PayloadTooLarge(f"At most {limit} bytes are taken.", data={"limit": limit})
            expected = limit if length is None else length
            if expected > SMALL:
                self.acquired = await self.budget.acquire(expected)
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    self.raw_body = await self._gather(limit)
            except TimeoutError:
                raise BodyTooSlow from None
        return self.raw_body

    def release_body(self) -> None:
        """Releases the memory budget of the body; the body stays."""
        if self.acquired:
            self.budget.release(self.acquired)
            self.acquired = 0

    async def _gather(self, limit: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in self.request.content.iter_any():
                size += len(chunk)
                if size > limit:
                    raise PayloadTooLarge(f"At most {limit} bytes are taken.", data={"limit": limit})
                chunks.append(chunk)
            return b"".join(chunks)
        finally:
            chunks.clear()  # the connection may keep the error, and so this frame, until the next collection


Handler = Callable[[Call[Any, Any]], Awaitable[Any]]
RequestHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Routed:
    """Passes a request from the middleware to the handler of an endpoint, and its result back.

    Attributes:
        method: as it is after an override.
        params: the variable parts of the path, decoded.
        raw_query: still percent-encoded.
        call: what the handler made of the request; None until it runs.
    """

    request_id: str
    method: str
    params: Mapping[str, str]
    raw_query: str
    call: Call[Any, Any] | None = None


ROUTED: web.RequestKey[Routed] = web.RequestKey("routed", Routed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint as its :func:`route` mark declares it.

    Attributes:
        path: with ``{name}`` for variable parts, which are whole segments.
        body: schema of the JSON body. GET and DELETE take the fields of ``query`` in a JSON body as well (wire
            contract 1.6).
        body_aliases: other spellings of body fields, dotted: ``{"config.scaling_group": "config.scalingGroup"}``.
        kind: ``json``; ``upload`` reads multipart itself; ``stream`` answers with an event stream, ``socket`` with a
            WebSocket.
        max_body: bytes that a body may have.
        audited: whether a call is written to the audit trail; by default if the method changes something.
        limited: whether calls count against the rate limit.
        repeatable: whether a call with a client token that was cut off in the middle may simply be done again; by
            default if its method is idempotent (RFC 9110, 9.2.2).
    """

    method: str
    path: str
    handler: Handler
    name: str
    summary: str
    body: type[msgspec.Struct] = Nothing
    query: type[msgspec.Struct] = Nothing
    reply: Any = None
    status: int = 200
    auth: bool = True
    kind: str = "json"
    max_body: int = MAX_JSON_BYTES
    body_aliases: Mapping[str, str] = field(default_factory=dict)
    audited: bool = False
    tag: str = ""
    limited: bool = True
    repeatable: bool = False

    @property
    def template(self) -> str:
        return f"{self.method} {self.path}"


def route(
    method: str,
    path: str,
    *,
    body: type[msgspec.Struct] = Nothing,
    query: type[msgspec.Struct] = Nothing,
    reply: Any = None,
    status: int = HTTPStatus.OK,
    auth: bool = True,
    kind: str = "json",
    max_body: int = MAX_JSON_BYTES,
    body_aliases: Mapping[str, str] | None = None,
    audited: bool | None = None,
    limited: bool = True,
    repeatable: bool | None = None,
) -> Callable[[F], F]:
    """Marks a method ``async def (self, call: Call[Body, Query])`` as an endpoint; see :class:`Endpoint`.

    The first line of its docstring becomes the summary. It returns a value that msgspec can encode, a :class:`Reply`,
    None for 204, or an aiohttp response. Several marks on one method are several endpoints.
    """

    def mark(function: F) -> F:
        declared = Endpoint(
            method=method,
            path=path,
            handler=function,
            name=function.__name__,
            summary=(function.__doc__ or function.__name__).strip().partition("\n")[0],
            body=body,
            query=query,
            reply=reply,
            status=int(status),
            auth=auth,
            kind=kind,
            max_body=max_body,
            body_aliases=body_aliases or {},
            audited=method not in SAFE_METHODS if audited is None else audited,
            limited=limited,
            repeatable=method in ("PUT", "DELETE") if repeatable is None else repeatable,
        )
        function.__dict__.setdefault("__endpoints__", []).append(declared)
        return function

    return mark


def endpoints_of(api: object, *, tag: str = "") -> list[Endpoint]:
    """Returns the endpoints of an API object, bound to it, in the order of their declaration."""
    return [
        replace(declared, handler=getattr(api, name), tag=tag or type(api).__name__)
        for name, function in vars(type(api)).items()
        for declared in getattr(function, "__endpoints__", ())
    ]


def register(
    router: web.UrlDispatcher, endpoints: Iterable[Endpoint], handler_of: Callable[[Endpoint], RequestHandler]
) -> None:
    """Adds endpoints to aiohttp's router. A literal segment wins over a variable one.

    Raises:
        RuntimeError: one is declared twice.
    """

    def order(endpoint: Endpoint) -> tuple[list[bool], str]:
        return [segment.startswith("{") for segment in endpoint.path.split("/")], endpoint.path

    for endpoint in sorted(endpoints, key=order):
        handler = handler_of(endpoint)
        path = endpoint.path.replace("}", ":[^/]+}")  # aiohttp's own pattern refuses braces in names
        for method in READ_METHODS if endpoint.method == "GET" else (endpoint.method,):
            router.add_route(method, path, handler)
