"""Defines typed routes. An endpoint declares its path, body, query and reply in its signature.

An API is a class with methods marked by :func:`route`; :func:`endpoints_of` collects them from an instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, Generic, TypedDict, Unpack, get_type_hints
from uuid import UUID

import msgspec
from aiohttp import web
from typing_extensions import TypeVar

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.structs import replace
from ai.backend.infra.http.errors import BodyTooSlow, PayloadTooLarge
from ai.backend.infra.http.ratelimit import Allowance

MAX_JSON_BYTES = 1_048_576
BODY_TIMEOUT_S = 120.0
"""The timeout in seconds from the head of a request to the end of its body."""
READ_METHODS = ("GET", "HEAD", "REPORT")
"""Methods that a GET endpoint accepts. REPORT is a GET whose parameters come in a body (spec 03-07, "HTTP Methods")."""
UNVERIFIED_BODIES_BYTES = 64 << 20
"""The budget in bytes for bodies of unauthenticated senders, which only signatures over the body need to be read."""
VERIFIED_BODIES_BYTES = 512 << 20
_MAX_BUDGET_WAIT_S = 30.0
SMALL_BODY_BYTES = 65_536
"""Bodies up to this size do not count against the budgets, since a connection takes as much memory without a body."""
SAFE_METHODS = frozenset({"GET", "HEAD", "REPORT", "OPTIONS"})


class Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Serves as the base of request schemas.

    Unknown fields are rejected. ``null`` means absent if a field has a default.
    """


class Nothing(Schema, frozen=True):
    """Serves as the schema of requests without fields."""


B = TypeVar("B", bound=msgspec.Struct, default=Nothing)
Q = TypeVar("Q", bound=msgspec.Struct, default=Nothing)
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


class OwnerKey(Enum):
    """Lists how endpoints use the parameter ``owner_access_key`` (spec 03-07:1139)."""

    REFUSED = "refused"
    """It is an unknown parameter."""
    NAMED = "named"
    """It says whose session or object the path means; the handler checks that the caller may act for that keypair."""
    ASSUMED = "assumed"
    """The server checks that, and :attr:`Call.owner` acts instead of the signer."""


class MemoryBudget:
    """Limits the bytes in use. A request for more bytes than remain waits."""

    def __init__(self, size_bytes: int, *, patience_s: float = _MAX_BUDGET_WAIT_S) -> None:
        self.remaining = size_bytes
        self._size = size_bytes
        self._patience_s = patience_s
        self._returned = asyncio.Event()

    async def acquire(self, byte_count: int) -> int:
        """Acquires bytes, at most the whole budget, and returns the amount to release. Raises Unavailable after a
        timeout."""
        byte_count = min(byte_count, self._size)
        try:
            async with asyncio.timeout(self._patience_s):
                while self.remaining < byte_count:
                    await self._returned.wait()
        except TimeoutError:
            raise Unavailable("Too many large requests at once; try again.") from None
        self.remaining -= byte_count
        return byte_count

    def release(self, byte_count: int) -> None:
        self.remaining += byte_count
        self._returned.set()
        self._returned = asyncio.Event()


@dataclass(slots=True)
class Reply:
    """Holds a JSON reply with its own status or headers."""

    value: Any = None
    status: int = 200
    headers: Mapping[str, str] | None = None


@dataclass(slots=True, eq=False)
class Call(Generic[B, Q]):
    """Represents a request to an endpoint.

    Attributes:
        address: that of the client, the nearest hop that is no trusted proxy; empty if the socket has none.
        access_key: the one that signed the request; None if anonymous, as ``identity``.
        identity: the signer as the daemon's own key store represents it.
        owner_access_key: on whose behalf the caller wants to act; not yet permitted.
        owner: the identity of that keypair, where the endpoint assumes it and the caller may act for it.
        call_id: the same for all repetitions of a call with a client token; None without a token.
        is_replayed: True if the reply is that of an earlier call of the same client token.
        audit_detail: what the record of the call in the audit trail says besides its route.
    """

    request: web.Request
    routed: Routed
    endpoint: Endpoint
    address: str
    budget: MemoryBudget
    access_key: str | None = None
    identity: Any = None
    call_id: UUID | None = None
    is_replayed: bool = False
    owner_access_key: str | None = None
    owner: Any = None
    audit_detail: dict[str, Any] = field(default_factory=dict)
    raw_body: bytes | None = None
    acquired: int = 0
    body: B = field(init=False)
    query: Q = field(init=False)

    @property
    def method(self) -> str:
        return self.routed.method

    @property
    def params(self) -> Mapping[str, str]:
        return self.routed.params

    @property
    def request_id(self) -> str:
        return self.routed.request_id

    async def read_body(self) -> bytes:
        """Returns the whole body. Raises PayloadTooLarge, BodyTooSlow, or Unavailable if the memory for bodies is used
        up."""
        if self.raw_body is None:
            max_bytes = self.endpoint.max_body
            content_length = self.request.content_length
            if content_length is not None and content_length > max_bytes:
                raise PayloadTooLarge(f"At most {max_bytes} bytes are taken.", data={"limit": max_bytes})
            # A compressed body becomes as large as it likes.
            is_compressed = "Content-Encoding" in self.request.headers
            expected_bytes = max_bytes if content_length is None or is_compressed else content_length
            if expected_bytes > SMALL_BODY_BYTES:
                self.acquired = await self.budget.acquire(expected_bytes)
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    self.raw_body = await self._gather_body(max_bytes)
            except TimeoutError:
                raise BodyTooSlow from None
        return self.raw_body

    def release_body(self) -> None:
        """Releases the memory budget of the body. The body itself stays."""
        if self.acquired:
            self.budget.release(self.acquired)
            self.acquired = 0

    async def _gather_body(self, max_bytes: int) -> bytes:
        chunks: list[bytes] = []
        size_bytes = 0
        try:
            async for chunk in self.request.content.iter_any():
                size_bytes += len(chunk)
                if size_bytes > max_bytes:
                    raise PayloadTooLarge(f"At most {max_bytes} bytes are taken.", data={"limit": max_bytes})
                chunks.append(chunk)
            return b"".join(chunks)
        finally:
            chunks.clear()  # the connection may keep the error, and so this frame, until the next collection


Handler = Callable[[Call[Any, Any]], Awaitable[Any]]
RequestHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Routed:
    """Passes a request from the middleware to the handler of an endpoint, and passes the handler's call back to the
    middleware.

    ``method`` is the one after an override; ``params`` are the decoded variable parts of the path; ``raw_query`` is
    percent-encoded. ``allowance``: the remaining requests of the caller; None if they are not counted. ``call`` is None
    once it is answered: it refers to the request, which refers to this, and both would stay until a collection.
    """

    request_id: str
    method: str
    params: Mapping[str, str]
    raw_query: str
    call: Call[Any, Any] | None = None
    allowance: Allowance | None = None


ROUTED: web.RequestKey[Routed] = web.RequestKey("routed", Routed)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an endpoint as its :func:`route` mark declares it.

    Attributes:
        method: ``*`` for all.
        path: with ``{name}`` for variable parts, which are whole segments; a last ``{name*}`` is the rest of the path.
        body: schema of the JSON body. GET and DELETE, and others without this schema, take fields of ``query`` in a
            JSON body as well (wire contract 1.6; spec 03-07, "Parameters in URI and JSON Request Body").
        body_aliases: other spellings of body fields, dotted: ``{"config.scaling_group": "config.scalingGroup"}``.
        status: of a success; by default 204 if the handler returns None by its annotation, 101 of a socket, else 200.
        also: further statuses of a success, such as 200 for what existed before.
        produces: media types of the reply.
        reply: schema of the JSON reply; by default what the handler returns by its annotation.
        kind: ``json``; ``upload`` reads multipart itself; ``stream`` sends events, ``socket`` is a WebSocket;
            ``relay`` reads body and query itself, whatever they are.
        audited: calls are written to the audit trail; by default if the method changes something.
        repeatable: an interrupted call with a client token may be repeated; by default PUT and DELETE (RFC 9110,
            9.2.2).
        ends_with_client: the call is cancelled if its client disconnects; by default only if the method changes
            nothing, since a change is finished.
        owner_key: what it does with ``owner_access_key``; by default as the attribute ``owner_key`` of its API says.
        problems: errors that its use case raises, beyond those of every endpoint; added to the attribute ``problems``
            of its API. Only their statuses are declared.
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
    also: tuple[int, ...] = ()
    produces: tuple[str, ...] = ("application/json",)
    auth: bool = True
    kind: str = "json"
    max_body: int = MAX_JSON_BYTES
    body_aliases: Mapping[str, str] = msgspec.field(default_factory=dict)
    audited: bool = False
    tag: str = ""
    limited: bool = True
    repeatable: bool = False
    ends_with_client: bool = False
    owner_key: OwnerKey | None = None
    problems: tuple[type[BackendError], ...] = ()

    @property
    def template(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def statuses(self) -> tuple[int, ...]:
        """Returns the statuses of the endpoint's successful replies."""
        return (self.status, *self.also)


class RouteOptions(TypedDict, total=False):
    """Holds the options of a :func:`route`, which become attributes of its :class:`Endpoint`."""

    body: type[msgspec.Struct]
    query: type[msgspec.Struct]
    reply: Any
    status: int
    also: tuple[int, ...]
    produces: tuple[str, ...]
    auth: bool
    kind: str
    max_body: int
    body_aliases: Mapping[str, str]
    audited: bool
    limited: bool
    repeatable: bool
    ends_with_client: bool
    owner_key: OwnerKey
    problems: tuple[type[BackendError], ...]


def route(method: str, path: str, **options: Unpack[RouteOptions]) -> Callable[[F], F]:
    """Marks a method ``async def (self, call: Call[Body, Query])`` as an endpoint; see :class:`Endpoint`.

    The first line of its docstring becomes the summary. It returns a value that msgspec can encode, a :class:`Reply`,
    None for 204, or an aiohttp response. Several marks on one method are several endpoints.
    """
    options.setdefault("audited", method not in SAFE_METHODS)
    options.setdefault("repeatable", method in ("PUT", "DELETE"))

    def mark(function: F) -> F:
        name = function.__name__
        has_no_reply = function.__annotations__.get("return") in (None, "None")
        default_status = 101 if options.get("kind") == "socket" else 204 if has_no_reply else 200
        summary = (function.__doc__ or name).strip().partition("\n")[0]
        all_options: RouteOptions = {"status": default_status, **options}
        endpoint = Endpoint(method=method, path=path, handler=function, name=name, summary=summary, **all_options)
        function.__dict__.setdefault("__endpoints__", []).append(endpoint)
        return function

    return mark


def endpoints_of(api: object, *, tag: str = "") -> list[Endpoint]:
    """Returns the endpoints of an API object in the order of their declaration.

    The endpoints are bound to the object.
    """
    owner_key = getattr(type(api), "owner_key", OwnerKey.REFUSED)
    return [
        replace(
            endpoint,
            handler=getattr(api, name),
            tag=tag or type(api).__name__,
            owner_key=endpoint.owner_key or owner_key,
            problems=(*getattr(type(api), "problems", ()), *endpoint.problems),
            reply=endpoint.reply if endpoint.reply is not None else _annotated_reply(function),
        )
        for name, function in vars(type(api)).items()
        for endpoint in getattr(function, "__endpoints__", ())
    ]


@cache  # reading annotations is most of the work of building an application
def _annotated_reply(function: Callable[..., Any]) -> Any:
    """Returns the reply type from the annotation of a handler.

    Returns None if the annotation says nothing about the fields.
    """
    annotation = get_type_hints(function).get("return")
    has_no_fields = isinstance(annotation, type) and issubclass(
        annotation, (Reply, web.StreamResponse, msgspec.Raw, type(None))
    )
    return None if has_no_fields or annotation in (Any, dict[str, Any], list[Any]) else annotation


def register(
    router: web.UrlDispatcher, endpoints: Iterable[Endpoint], handler_of: Callable[[Endpoint], RequestHandler]
) -> None:
    """Adds endpoints to aiohttp's router, which raises RuntimeError for duplicates. A literal segment wins over a
    variable."""

    def sort_key(endpoint: Endpoint) -> tuple[list[bool], str]:
        return [segment.startswith("{") for segment in endpoint.path.split("/")], endpoint.path

    for endpoint in sorted(endpoints, key=sort_key):
        handler = handler_of(endpoint)
        # aiohttp's own pattern refuses braces in names
        path = endpoint.path.replace("*}", ":.*}").replace("}", ":[^/]+}").replace(":.*:[^/]+}", ":.*}")
        for method in READ_METHODS if endpoint.method == "GET" else (endpoint.method,):
            router.add_route(method, path, handler)
