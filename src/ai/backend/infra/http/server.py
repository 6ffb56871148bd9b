"""Serves endpoints by aiohttp: its router selects the handler, one middleware wraps all handlers.

The handler of an endpoint authenticates, limits, decodes and answers. The middleware gives a request its id, routes old
spellings of paths, turns errors into problem documents, and counts.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import Counter, Histogram
from yarl import URL

from ai.backend.common.errors import (
    AuthenticationFailed,
    BackendError,
    Forbidden,
    InternalError,
    InvalidInput,
    RateLimitExceeded,
)
from ai.backend.common.signing import media_type
from ai.backend.infra.http.addresses import may_come_from
from ai.backend.infra.http.client_tokens import TOKEN_HEADER, ClientTokens
from ai.backend.infra.http.decode import (
    QuerySchema,
    check_json_type,
    convert,
    parse_json_object,
    refuse,
    rename_aliases,
)
from ai.backend.infra.http.errors import (
    BodyTooSlow,
    MethodNotAllowed,
    PayloadTooLarge,
    RouteNotFound,
    problem_response,
    status_of,
)
from ai.backend.infra.http.memory_budget import UNVERIFIED_BYTES, VERIFIED_BYTES, MemoryBudget
from ai.backend.infra.http.paths import modern_path, split_target
from ai.backend.infra.http.ratelimit import Allowance, Limiter, RateLimiter
from ai.backend.infra.http.routes import (
    ROUTED,
    SAFE_METHODS,
    Call,
    Endpoint,
    Reply,
    RequestHandler,
    Routed,
    register,
)
from ai.backend.infra.http.signature import SigningKey
from ai.backend.infra.http.streams import ACCESS_KEY, STREAMS, ActiveKeys, Streams
from ai.backend.infra.telemetry import Metrics, bind_log_context

log = logging.getLogger(__name__)
_JSON = "application/json"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_METHOD = re.compile(r"[A-Z]{1,16}")
_RESERVED = frozenset({"owner_access_key"})
_BACKLOG = 1024
_SHUTDOWN_S = 15.0
"""The seconds that requests may take when the server stops; `backend.ai down` waits for twice that."""
_encode = msgspec.json.Encoder(enc_hook=str).encode


def _is_worth_a_record(record: logging.LogRecord) -> bool:
    """Drops records of malformed HTTP, with which any client could flush the log."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def _check_text(request: web.Request) -> None:
    """Rejects invalid UTF-8, which aiohttp passes on as surrogates that cannot be encoded."""
    for name, value in (("path", request.raw_path), *request.headers.items()):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise refuse({name[:64]: "not UTF-8"}) from None


async def _respelled(request: web.Request, routed: Routed) -> RequestHandler | None:
    """Returns the handler of a request whose path is a former spelling or whose method is overridden; None for any
    other.

    The request itself stays as it came, because signatures cover it.
    """
    path, routed.raw_query = split_target(request.raw_path)
    modern = modern_path(path)
    override = request.headers.get("X-Method-Override")
    if override is not None and request.method == "POST":
        routed.method = override.strip().upper()
        if _METHOD.fullmatch(routed.method) is None:
            raise refuse({"X-Method-Override": "not a method"})
    if modern == path and routed.method == request.method:
        return None
    respelled = request.clone(method=routed.method, rel_url=URL.build(path=modern, encoded=True))
    match = await request.app.router.resolve(respelled)
    routed.params = match
    return match.handler


class RequestAuthenticator(Protocol):
    """Authenticates requests; :class:`~ai.backend.infra.http.signature.Authenticator` does so by signatures."""

    async def authenticate(
        self, request: web.Request, *, method: str, read_body: Callable[[], Awaitable[bytes]]
    ) -> tuple[str, SigningKey]: ...


class AuditTrail(Protocol):
    """Records calls that change something."""

    async def record(self, call: Call[Any, Any], outcome: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Limits of a server.

    Attributes:
        anonymous_rate_limit: requests per 15 minutes from one address that are not signed; zero: any number.
        trusted_proxies: addresses of peers whose ``X-Forwarded-*`` headers count.
    """

    anonymous_rate_limit: int = 5_000
    trusted_proxies: frozenset[str] = frozenset()


class HttpServer:
    """Serves the endpoints of a daemon.

    Args:
        authenticator: None if no endpoint needs a signature.
        audit: called once after every audited call, whatever became of it.
        client_tokens: recognises repeated calls; None takes no notice of client tokens.
        on_admitted: told the access key of every request whose signature was right.
        limiter: who counts requests; this process by default.
        active_keys: asked now and then about the keys of open streams; without it they stay open.
    """

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        *,
        metrics: Metrics,
        authenticator: RequestAuthenticator | None = None,
        audit: AuditTrail | None = None,
        client_tokens: ClientTokens | None = None,
        options: HttpOptions | None = None,
        on_admitted: Callable[[Any], None] | None = None,
        limiter: Limiter | None = None,
        active_keys: ActiveKeys | None = None,
    ) -> None:
        self._active_keys = active_keys
        self._endpoints = tuple(endpoints)
        self._authenticator = authenticator
        self._audit = audit
        self._client_tokens = client_tokens
        self._on_admitted = on_admitted
        self._options = options or HttpOptions()
        self._limiter: Limiter = limiter or RateLimiter()
        self._unverified, self._verified = MemoryBudget(UNVERIFIED_BYTES), MemoryBudget(VERIFIED_BYTES)
        self._served: Counter = metrics.counter("http_requests", "Requests by route and status.", ["route", "status"])
        self._took: Histogram = metrics.histogram("http_request_seconds", "Time to reply by route.", ["route"])
        self._counters: dict[tuple[str, int], Any] = {}
        self._timers: dict[str, Any] = {}
        self._working: set[asyncio.Task[web.StreamResponse]] = set()
        run = secrets.token_hex(6)
        self._ids = (f"{run}-{n:x}" for n in itertools.count(1))

    def application(self) -> web.Application:
        """Returns the aiohttp application; streams are closed when it shuts down."""
        logging.getLogger("aiohttp.server").addFilter(_is_worth_a_record)
        app = web.Application(client_max_size=0, middlewares=[self._finish])
        streams = app[STREAMS] = Streams(self._active_keys)

        async def close_streams(_: web.Application) -> None:
            await streams.close()

        async def drop_work(_: web.Application) -> None:
            for work in list(self._working):
                work.cancel()
            await asyncio.gather(*self._working, return_exceptions=True)

        register(app.router, self._endpoints, self._handler)
        app.on_shutdown.append(close_streams)
        app.on_cleanup.append(drop_work)
        return app

    @web.middleware
    async def _finish(self, request: web.Request, handler: RequestHandler) -> web.StreamResponse:
        """Answers one request. Raises nothing but cancellation.

        A call that may change something is finished even if its client goes away in the middle: nothing is left
        half-way and the audit trail has its end.
        """
        if request.method in SAFE_METHODS:
            return await self._report(request, handler)
        work = asyncio.ensure_future(self._report(request, handler))
        self._working.add(work)
        work.add_done_callback(self._working.discard)
        return await asyncio.shield(work)

    async def _report(self, request: web.Request, handler: RequestHandler) -> web.StreamResponse:
        started = time.perf_counter()
        sent_id = request.headers.get("X-Request-ID")
        request_id = sent_id if sent_id is not None and _REQUEST_ID.fullmatch(sent_id) else next(self._ids)
        routed = request[ROUTED] = Routed(request_id, request.method, request.match_info, "")
        extra = {"X-Request-ID": request_id}
        response: web.StreamResponse
        with bind_log_context(request_id=request_id):
            try:
                _check_text(request)
                response = await (await _respelled(request, routed) or handler)(request)
                outcome = "ok"
            except BackendError as error:
                response, outcome = await self._refuse(request, routed, error), error.code
            except web.HTTPException as error:
                response, outcome = await self._refuse(request, routed, _translated(error)), "http-error"
            except (ConnectionError, web.RequestPayloadError):
                response, outcome = web.Response(status=499), "gone"
            except Exception:
                log.exception("%s failed", routed.call.endpoint.template if routed.call is not None else request.method)
                response, outcome = problem_response(InternalError(), request_id=request_id), InternalError.code
            call, route = routed.call, "unmatched"
            if call is not None:
                route = call.endpoint.template
                await self._close(call, outcome)
                if call.allowance is not None:
                    extra.update(call.allowance.headers())
        if not response.prepared:
            response.headers.update(extra)
        took_s = time.perf_counter() - started
        self._count(route, response.status, took_s)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %d in %.1f ms, request %s", route, response.status, took_s * 1000, request_id)
        return response

    async def _close(self, call: Call[Any, Any], outcome: str) -> None:
        call.release_body()
        call.raw_body = None  # a traceback may keep the call until the next collection
        if call.endpoint.audited and self._audit is not None:
            await self._audit.record(call, "replayed" if outcome == "ok" and call.is_replayed else outcome)

    def _handler(self, endpoint: Endpoint) -> RequestHandler:
        query = QuerySchema(endpoint.query, reserved=_RESERVED)

        async def handle(request: web.Request) -> web.StreamResponse:
            routed = request[ROUTED]
            call: Call[Any, Any] = Call(request, routed, endpoint, self._address(request), self._unverified)
            routed.call = call
            call.allowance = await self._admit(call)
            await _decode(call, query)
            if self._client_tokens is None or TOKEN_HEADER not in request.headers:
                return _reply(call, await endpoint.handler(call))
            return await self._client_tokens.answer(call, partial(_run, call))

        return handle

    async def _admit(self, call: Call[Any, Any]) -> Allowance | None:
        endpoint = call.endpoint
        if not endpoint.auth:
            if not endpoint.limited:
                return None
            limit = self._options.anonymous_rate_limit
            return await self._limiter.count(f"ip:{call.address}", limit)
        if self._authenticator is None:
            raise AuthenticationFailed("Nobody can sign in here.")
        access_key, key = await self._authenticator.authenticate(
            call.request,
            method=call.method,
            read_body=call.read_body,
        )
        if not may_come_from(call.address, key.networks):
            raise Forbidden("This keypair may not be used from where you are.")
        call.access_key, call.identity = access_key, key.identity
        call.request[ACCESS_KEY] = access_key
        call.release_body()
        call.budget = self._verified
        if self._on_admitted is not None:
            self._on_admitted(access_key)
        return await self._limiter.count(access_key, key.rate_limit)

    async def _refuse(self, request: web.Request, routed: Routed, error: BackendError) -> web.Response:
        call = routed.call
        if (call is None or call.identity is None) and not isinstance(error, RateLimitExceeded):
            anonymous = call is not None and not call.endpoint.auth
            if not anonymous:  # an anonymous endpoint has been counted already
                try:
                    await self._limiter.count(f"ip:{self._address(request)}", self._options.anonymous_rate_limit)
                except RateLimitExceeded as limited:
                    error = limited
        if status_of(error) >= 500:
            log.error("%s: %s", error.code, error.message)
        response = problem_response(error, request_id=routed.request_id)
        if isinstance(error, PayloadTooLarge | BodyTooSlow):
            response.force_close()
        return response

    def _address(self, request: web.Request) -> str:
        """Returns the address of the client: the nearest hop that is no trusted proxy. A proxy may append a header line
        instead of a word to the client's line."""
        peer = request.remote or ""
        if peer in self._options.trusted_proxies:
            told = ",".join(request.headers.getall("X-Forwarded-For", ()))
            hops = [hop.strip() for hop in told.split(",") if hop.strip()]
            for hop in reversed(hops):
                peer = hop[:64]
                if peer not in self._options.trusted_proxies:
                    break
        return peer

    def _count(self, route: str, status: int, took_s: float) -> None:
        counter = self._counters.get((route, status))
        if counter is None:
            counter = self._counters[route, status] = self._served.labels(route, str(status))
            self._timers.setdefault(route, self._took.labels(route))
        counter.inc()
        self._timers[route].observe(took_s)


async def _decode(call: Call[Any, Any], schema: QuerySchema[Any]) -> None:
    endpoint, request = call.endpoint, call.request
    raw: dict[str, Any] = {}
    if endpoint.kind != "upload" and request.body_exists:
        body = await call.read_body()
        if body:
            check_json_type(media_type(request.headers.get("Content-Type", "")))
            raw = parse_json_object(body)
    reads = endpoint.method in SAFE_METHODS or endpoint.method == "DELETE"
    call.query, reserved = schema.read(call.raw_query, raw if reads else None)
    call.owner_access_key = reserved.get("owner_access_key") or None
    if not reads:
        if endpoint.body_aliases:
            rename_aliases(raw, endpoint.body_aliases)
        call.body = convert(raw, endpoint.body)


async def _run(call: Call[Any, Any]) -> web.StreamResponse:
    return _reply(call, await call.endpoint.handler(call))


def _reply(call: Call[Any, Any], value: Any) -> web.StreamResponse:
    if isinstance(value, web.StreamResponse):
        return value
    status, headers = call.endpoint.status, None
    if isinstance(value, Reply):
        status, headers, value = value.status, value.headers, value.value
    if value is None:
        return web.Response(status=204, headers=headers)
    body = value if isinstance(value, msgspec.Raw) else _encode(value)
    return web.Response(body=bytes(body), status=status, headers=headers, content_type=_JSON)


def _translated(error: web.HTTPException) -> BackendError:
    """Translates an error of aiohttp."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        return MethodNotAllowed(data={"allowed": sorted(error.allowed_methods)})
    if error.status == 404:
        return RouteNotFound()
    if error.status == 413:
        return PayloadTooLarge()
    if error.status < 500:
        return refuse({"request": error.reason or "malformed"})
    return InternalError(error.reason or "")


def make_runner(app: web.Application) -> web.AppRunner:
    """Returns the runner of a daemon's server; ``await runner.cleanup()`` stops it, also after a failed start."""
    return web.AppRunner(
        app, access_log=None, handle_signals=False, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
    )


async def serve_on(
    runner: web.AppRunner,
    where: socket.socket | tuple[str, int],
    *,
    tls: ssl.SSLContext | None = None,
    shares: bool = False,
) -> tuple[str, int]:
    """Serves on a bound socket, or on a host and port (0 is any), and returns the actual host and port.

    Args:
        tls: speaks TLS; None: plain HTTP.
        shares: the port, with the other processes of this daemon; the kernel deals connections out to them.

    Raises:
        OSError: the address cannot be bound. InvalidInput: a port is to be shared that is not named.
    """
    if shares and not isinstance(where, socket.socket) and where[1] == 0:
        raise InvalidInput("With num-proc above 1, service-addr needs a port.", data={"service-addr": "no port"})
    await runner.setup()
    if isinstance(where, socket.socket):
        await web.SockSite(runner, where, backlog=_BACKLOG, ssl_context=tls).start()
    else:
        await web.TCPSite(runner, *where, backlog=_BACKLOG, ssl_context=tls, reuse_port=shares or None).start()
    host, port = runner.addresses[0][:2]
    return str(host), int(port)


async def serve(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Makes a runner and serves on it."""
    runner = make_runner(app)
    return runner, (await serve_on(runner, (host, port)))[1]
