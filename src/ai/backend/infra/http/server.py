"""Serves endpoints by aiohttp: its router selects the handler, one middleware wraps all handlers.

The handler of an endpoint authenticates, limits, decodes and answers. The middleware sets the id of a request, routes
former spellings of paths, converts errors to problem documents, and counts.
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
from contextlib import AbstractContextManager, ExitStack
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import Counter, Histogram
from yarl import URL

from ai.backend.common import errors
from ai.backend.common.signing import media_type
from ai.backend.infra.http import decode
from ai.backend.infra.http import errors as http_errors
from ai.backend.infra.http.addresses import client_of, may_come_from
from ai.backend.infra.http.client_tokens import TOKEN_HEADER, ClientTokens
from ai.backend.infra.http.connections import ConnectionCount, ConnectionLimits, LimitedListener, LimitedSite
from ai.backend.infra.http.paths import modern_path, split_target
from ai.backend.infra.http.ratelimit import Allowance, Limiter, RateLimiter
from ai.backend.infra.http.routes import (
    ROUTED,
    SAFE_METHODS,
    UNVERIFIED_BODIES_BYTES,
    VERIFIED_BODIES_BYTES,
    Call,
    Endpoint,
    MemoryBudget,
    Nothing,
    OwnerKey,
    Reply,
    RequestHandler,
    Routed,
    register,
)
from ai.backend.infra.http.signature import SigningKey
from ai.backend.infra.http.streams import ACCESS_KEY, STREAMS, ActiveKeys, Streams
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.telemetry import Metrics, bind_log_context
from ai.backend.infra.telemetry.tracing import HEADER, Span, child_span, exemplar, span
from ai.backend.infra.tls.reloading import ReloadedCertificate

log = logging.getLogger(__name__)
_CONNECTION_LIMITS = web.AppKey("connection_limits", ConnectionLimits)
_REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_METHOD_PATTERN = re.compile(r"[A-Z]{1,16}")
_RESERVED_PARAMETERS = frozenset({"owner_access_key"})
_PROBES = frozenset({"/livez", "/readyz", "/metrics"})
_BACKLOG_CONNECTIONS = 1024
_MAX_LINE_BYTES = 65_536
"""The longest request line or header. A longer one is refused by the library, without a problem document; its own
limit of 8,190 bytes would be too small for lists of paths in queries."""
_IDLE_TIMEOUT_S = 75.0
"""The seconds from the start of a connection, or the last response, until the head of the next request is whole."""
_SHUTDOWN_S = 15.0
"""The seconds that requests may take when the server stops; `backend.ai down` waits for twice that."""
_encode_json = msgspec.json.Encoder(enc_hook=str).encode


def _is_worth_a_record(record: logging.LogRecord) -> bool:
    """Returns False for records about malformed heads and bodies, because any client could flood the log with them."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError | web.RequestPayloadError))


def _check_utf8(request: web.Request) -> None:
    """Rejects invalid UTF-8, which aiohttp passes on as surrogates that cannot be encoded."""
    for name, value in (("path", request.raw_path), *request.headers.items()):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise decode.refuse({name[:64]: "not UTF-8"}) from None


async def _handler_of_respelled(request: web.Request, routed: Routed, *, has_versions: bool) -> RequestHandler | None:
    """Returns the handler of a request with a former path spelling or an overridden method.

    Returns None for other requests.
    """
    path, routed.raw_query = split_target(request.raw_path)
    path_of_route = modern_path(path) if has_versions else path
    override_method = request.headers.get("X-Method-Override")
    if override_method is not None and request.method == "POST":
        routed.method = override_method.strip().upper()
        if _METHOD_PATTERN.fullmatch(routed.method) is None:
            raise decode.refuse({"X-Method-Override": "not a method"})
    if path_of_route == path and routed.method == request.method:
        return None
    respelled_request = request.clone(method=routed.method, rel_url=URL.build(path=path_of_route, encoded=True))
    route_match = await request.app.router.resolve(respelled_request)
    routed.params = route_match
    return route_match.handler


class RequestAuthenticator(Protocol):
    """Authenticates requests, for example by signatures (:class:`~ai.backend.infra.http.signature.Authenticator`)."""

    async def authenticate(
        self, request: web.Request, *, method: str, read_body: Callable[[], Awaitable[bytes]]
    ) -> tuple[str, SigningKey]: ...


class AuditTrail(Protocol):
    """Records calls that change something."""

    async def record(self, call: Call[Any, Any], outcome: str) -> None: ...


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the options of an HTTP server: its limits, the trusted proxies, and versions in paths.

    ``connections_per_address`` limits open connections. ``anonymous_rate_limit`` limits unsigned requests of one
    address per 15 minutes (zero: any number). ``has_versions``: a version before a path, as in ``/v4/session``, is left
    out.
    """

    connections_per_address: int = 1_000
    anonymous_rate_limit: int = 5_000
    trusted_proxies: frozenset[str] = frozenset()
    has_versions: bool = True


@dataclass(eq=False)
class HttpServer:
    """Serves the endpoints of a daemon.

    Attributes:
        authenticator: None if no endpoint needs a signature.
        audit: is called once after every audited call, also after a failed one.
        on_admitted: is called with the access key of every request with a valid signature.
        active_keys: returns the valid keys of open streams; without it streams stay open.
        resolve_owner: returns the identity of an ``owner_access_key``, for endpoints that assume it. Raises Forbidden
            unless the signer may act for it.
        identify: returns the identity of an admitted call, where more than its key matters, such as its headers.
        unverified, verified: memory for bodies before and after the signature was verified.
    """

    endpoints: Iterable[Endpoint]
    _: KW_ONLY
    metrics: Metrics
    authenticator: RequestAuthenticator | None = None
    audit: AuditTrail | None = None
    client_tokens: ClientTokens | None = None
    options: HttpOptions = field(default_factory=HttpOptions)
    on_admitted: Callable[[Any], None] | None = None
    limiter: Limiter = field(default_factory=RateLimiter)
    active_keys: ActiveKeys | None = None
    resolve_owner: Callable[[Any, str], Awaitable[Any]] | None = None
    identify: Callable[[Call[Any, Any]], Awaitable[Any]] | None = None
    unverified: MemoryBudget = field(default_factory=lambda: MemoryBudget(UNVERIFIED_BODIES_BYTES))
    verified: MemoryBudget = field(default_factory=lambda: MemoryBudget(VERIFIED_BODIES_BYTES))

    def __post_init__(self) -> None:
        labels = ["route", "status"]
        self._served: Counter = self.metrics.counter("http_requests", "Requests by route and status.", labels)
        self._took: Histogram = self.metrics.histogram("http_request_seconds", "Time to reply by route.", labels[:1])
        self._counters: dict[tuple[str, int], Any] = {}
        self._timers: dict[str, Any] = {}
        self._working: set[asyncio.Task[web.StreamResponse]] = set()
        requests_run = secrets.token_hex(6)
        self._ids = (f"{requests_run}-{name:x}" for name in itertools.count(1))
        self._ending_handlers: set[Any] = set()  # those of endpoints whose calls end with their client

    def application(self) -> web.Application:
        """Returns the aiohttp application. Streams are closed when the application shuts down."""
        logging.getLogger("aiohttp.server").addFilter(_is_worth_a_record)
        app = web.Application(client_max_size=0, middlewares=[self._answer_request])
        options = self.options
        app[_CONNECTION_LIMITS] = ConnectionLimits(options.connections_per_address, options.trusted_proxies)
        streams = app[STREAMS] = Streams(self.active_keys)
        register(app.router, self.endpoints, self._make_handler)
        app.on_response_prepare.append(_add_headers)
        app.on_shutdown.append(lambda _: streams.close())
        app.on_cleanup.append(lambda _: cancel_all(*self._working))
        return app

    @web.middleware
    async def _answer_request(self, request: web.Request, handler: RequestHandler) -> web.StreamResponse:
        """Answers one request. A request that may change something is finished even if its client disconnects.

        It is not finished if its endpoint says that it ends then.
        """
        if request.method in SAFE_METHODS or request.match_info.handler in self._ending_handlers:
            return await self._answer_and_log(request, handler)
        answer_task = asyncio.ensure_future(self._answer_and_log(request, handler))
        self._working.add(answer_task)
        answer_task.add_done_callback(self._working.discard)
        return await asyncio.shield(answer_task)

    async def _answer_and_log(self, request: web.Request, handler: RequestHandler) -> web.StreamResponse:
        started_s = time.perf_counter()
        client_request_id = request.headers.get("X-Request-ID")
        request_id = (
            client_request_id
            if client_request_id is not None and _REQUEST_ID_PATTERN.fullmatch(client_request_id)
            else next(self._ids)
        )
        routed = request[ROUTED] = Routed(request_id, request.method, request.match_info, "")
        response: web.StreamResponse
        with (
            bind_log_context(request_id=request_id),
            _span_of(request) as request_span,
        ):
            try:
                _check_utf8(request)
                response = await (
                    await _handler_of_respelled(request, routed, has_versions=self.options.has_versions) or handler
                )(request)
                outcome = "ok"
            except errors.BackendError as error:
                response, outcome = await self._refusal_response(request, routed, error), error.code
            except web.HTTPException as error:
                response, outcome = await self._refusal_response(request, routed, _translate_error(error)), "http-error"
            except web.RequestPayloadError:
                invalid_body = decode.refuse({"body": "not as Content-Encoding and Transfer-Encoding say, or cut off"})
                response, outcome = await self._refusal_response(request, routed, invalid_body), invalid_body.code
            except ConnectionError:
                response, outcome = web.Response(status=499), "gone"
            except Exception:
                log.exception("%s failed", routed.call.endpoint.template if routed.call is not None else request.method)
                response = http_errors.problem_response(errors.InternalError(), request_id=request_id)
                outcome = errors.InternalError.code
            call, routed.call, route = routed.call, None, "unmatched"
            if call is not None:
                route = call.endpoint.template
                await self._close_call(call, outcome)
            took_s = time.perf_counter() - started_s
            self._count_request(route, response.status, took_s, exemplar() if request_span.is_recording else None)
            if request_span.is_recording:
                _describe_span(request_span, request, route, response.status, request_id, outcome)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %d in %.1f ms, request %s", route, response.status, took_s * 1000, request_id)
        return response

    async def _close_call(self, call: Call[Any, Any], outcome: str) -> None:
        call.release_body()
        call.raw_body = None  # a traceback may keep the call until the next collection
        if call.endpoint.audited and self.audit is not None:
            await self.audit.record(call, "replayed" if outcome == "ok" and call.is_replayed else outcome)

    def _make_handler(self, endpoint: Endpoint) -> RequestHandler:
        takes_owner = endpoint.owner_key not in (None, OwnerKey.REFUSED)
        query = decode.QuerySchema(endpoint.query, reserved=_RESERVED_PARAMETERS if takes_owner else frozenset())

        async def handle(request: web.Request) -> web.StreamResponse:
            routed = request[ROUTED]
            call: Call[Any, Any] = Call(request, routed, endpoint, self._client_address(request), self.unverified)
            routed.call = call
            routed.allowance = await self._admit_call(call)
            await _decode_call(call, query)
            if call.owner_access_key and endpoint.owner_key is OwnerKey.ASSUMED and self.resolve_owner is not None:
                call.owner = await self.resolve_owner(call.identity, call.owner_access_key)
            if self.client_tokens is None or TOKEN_HEADER not in request.headers:
                return await _run_handler(call)
            return await self.client_tokens.answer(call, partial(_run_handler, call))

        if endpoint.ends_with_client:
            self._ending_handlers.add(handle)
        return handle

    async def _admit_call(self, call: Call[Any, Any]) -> Allowance | None:
        endpoint = call.endpoint
        if not endpoint.auth:
            if not endpoint.limited:
                return None
            return await self.limiter.count(f"ip:{client_of(call.address)}", self.options.anonymous_rate_limit)
        if self.authenticator is None:
            raise errors.AuthenticationFailed("Nobody can sign in here.")
        access_key, key = await self.authenticator.authenticate(
            call.request, method=call.method, read_body=call.read_body
        )
        if not all(
            may_come_from(call.address, allowed_networks) for allowed_networks in (key.networks, key.own_networks)
        ):
            raise errors.Forbidden("This keypair may not be used from where you are.")
        call.access_key, call.identity = access_key, key.identity
        call.request[ACCESS_KEY] = access_key
        call.release_body()
        call.budget = self.verified
        if self.on_admitted is not None:
            self.on_admitted(access_key)
        allowance = await self.limiter.count(access_key, key.rate_limit)
        if self.identify is not None:
            call.identity = await self.identify(call)
        return allowance

    async def _refusal_response(self, request: web.Request, routed: Routed, error: errors.BackendError) -> web.Response:
        call = routed.call
        is_unknown = isinstance(error, http_errors.RouteNotFound | http_errors.MethodNotAllowed)
        if is_unknown and self.authenticator is not None and _is_unsigned(request):
            error = errors.AuthenticationFailed("The Authorization header is missing.")
        if (call is None or call.identity is None) and not isinstance(error, errors.RateLimitExceeded):
            is_counted = call is not None and not call.endpoint.auth
            if not is_counted:  # an anonymous endpoint has been counted already
                try:
                    await self.limiter.count(
                        f"ip:{client_of(self._client_address(request))}", self.options.anonymous_rate_limit
                    )
                except errors.RateLimitExceeded as rate_error:
                    error = rate_error
        if http_errors.status_of(error) >= 500:
            log.error("%s: %s", error.code, error.message)
        response = http_errors.problem_response(error, request_id=routed.request_id)
        if isinstance(error, http_errors.PayloadTooLarge | http_errors.BodyTooSlow):
            response.force_close()
        return response

    def _client_address(self, request: web.Request) -> str:
        """Returns the address of the client, which is the nearest hop that is no trusted proxy."""
        address = request.remote or ""
        if address in self.options.trusted_proxies:
            # A proxy may append a header line instead of a word to the client's line.
            forwarded_for = ",".join(request.headers.getall("X-Forwarded-For", ()))
            proxy_addresses = [
                proxy_address.strip() for proxy_address in forwarded_for.split(",") if proxy_address.strip()
            ]
            for proxy_address in reversed(proxy_addresses):
                address = proxy_address[:64]
                if address not in self.options.trusted_proxies:
                    break
        return address

    def _count_request(self, route: str, status: int, took_s: float, labels: dict[str, str] | None) -> None:
        counter = self._counters.get((route, status))
        if counter is None:
            counter = self._counters[route, status] = self._served.labels(route, str(status))
            self._timers.setdefault(route, self._took.labels(route))
        counter.inc()
        self._timers[route].observe(took_s, labels)


def _span_of(request: web.Request) -> AbstractContextManager[Span]:
    """Returns the span of a request. Frequent probes begin no traces."""
    begin_span = child_span if request.path in _PROBES else span
    return begin_span(request.method, kind="server", parent=request.headers.get(HEADER))


def _describe_span(
    request_span: Span, request: web.Request, route: str, status: int, request_id: str, outcome: str
) -> None:
    """Names the span of a request by its route, and adds the result of the request (OpenTelemetry, semantic
    conventions, HTTP)."""
    request_span.name(route)
    request_span.set(
        {
            "http.request.method": request.method,
            "http.route": route.partition(" ")[2],
            "http.response.status_code": status,
            "backendai.request_id": request_id,
        }
    )
    if status >= 500:
        request_span.fail(outcome)


async def _add_headers(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Adds the headers that every response has, including streams and downloads, before the head is sent (spec 03-07).

    The name of the server has no version: the library would send its own, and Python's.
    """
    response.headers["Server"] = "backend.ai"
    routed = request.get(ROUTED)
    if routed is None:
        return
    response.headers["X-Request-ID"] = routed.request_id
    response.headers.setdefault("Content-Language", "en")
    if routed.allowance is not None:
        response.headers.update(routed.allowance.headers())


async def _decode_call(call: Call[Any, Any], schema: decode.QuerySchema[Any]) -> None:
    endpoint, request = call.endpoint, call.request
    if endpoint.kind == "relay":
        return
    raw_fields: dict[str, Any] = {}
    if endpoint.kind != "upload" and request.body_exists:
        body = await call.read_body()
        if body:
            decode.check_json_type(media_type(request.headers.get("Content-Type", "")))
            raw_fields = decode.parse_json_object(body)
    body_completes_query = endpoint.method in SAFE_METHODS or endpoint.method == "DELETE" or endpoint.body is Nothing
    call.query, reserved_parameters = schema.read(call.routed.raw_query, raw_fields if body_completes_query else None)
    call.owner_access_key = reserved_parameters.get("owner_access_key") or None
    if not body_completes_query:
        if endpoint.body_aliases:
            decode.rename_aliases(raw_fields, endpoint.body_aliases)
        call.body = decode.convert(raw_fields, endpoint.body)


async def _run_handler(call: Call[Any, Any]) -> web.StreamResponse:
    result = await call.endpoint.handler(call)
    if isinstance(result, web.StreamResponse):
        return result
    status, headers = call.endpoint.status, None
    if isinstance(result, Reply):
        status, headers, result = result.status, result.headers, result.value
    if result is None:
        return web.Response(status=204, headers=headers)
    body = result if isinstance(result, msgspec.Raw) else _encode_json(result)
    return web.Response(body=bytes(body), status=status, headers=headers, content_type="application/json")


def _is_unsigned(request: web.Request) -> bool:
    """Returns True for a request of an API client without a signature.

    Such a request gets 401 at any path (spec 03-07:1300).
    """
    return "X-BackendAI-Version" in request.headers and "Authorization" not in request.headers


def _translate_error(error: web.HTTPException) -> errors.BackendError:
    """Translates an error of aiohttp into an error of the platform."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        return http_errors.MethodNotAllowed(data={"allowed": sorted(error.allowed_methods)})
    if error.status == 404:
        return http_errors.RouteNotFound()
    if error.status == 413:
        return http_errors.PayloadTooLarge()
    if error.status < 500:
        return decode.refuse({"request": error.reason or "malformed"})
    return errors.InternalError(error.reason or "")


def make_runner(app: web.Application, *, decodes_bodies: bool = True) -> web.AppRunner:
    """Returns the runner of a daemon's server. ``await runner.cleanup()`` stops the server, also after a failed start.

    ``decodes_bodies``: bodies with a ``Content-Encoding`` are decompressed. A server that passes bodies on leaves them
    as they are, for which alone their ``Content-Length`` is right.
    """
    return web.AppRunner(
        app,
        auto_decompress=decodes_bodies,
        access_log=None,
        handle_signals=False,
        max_line_size=_MAX_LINE_BYTES,
        max_field_size=_MAX_LINE_BYTES,
        handler_cancellation=True,
        keepalive_timeout=_IDLE_TIMEOUT_S,
        shutdown_timeout=_SHUTDOWN_S,
    )


async def serve_on(
    runner: web.AppRunner,
    address: socket.socket | tuple[str, int],
    *,
    tls: ssl.SSLContext | None = None,
    shares_port: bool = False,
) -> tuple[str, int]:
    """Serves on a bound socket, or on a host and port (0 is any). Returns the actual host and port. Raises OSError.

    ``shares_port`` lets other processes of the daemon listen on the same port. Raises InvalidInput to share port 0.
    """
    if shares_port and not isinstance(address, socket.socket) and address[1] == 0:
        raise errors.InvalidInput("With num-proc above 1, service-addr needs a port.", data={"service-addr": "no port"})
    await runner.setup()
    connection_count = ConnectionCount(runner.app.get(_CONNECTION_LIMITS, ConnectionLimits()))
    for listener in [address] if isinstance(address, socket.socket) else await _bind_sockets(*address, shares_port):
        limited_listener = LimitedListener.of(listener, connection_count)
        await LimitedSite(runner, limited_listener, backlog=_BACKLOG_CONNECTIONS, ssl_context=tls).start()
    host, port = runner.addresses[0][:2]
    return str(host), int(port)


async def _bind_sockets(host: str, port: int, shares_port: bool) -> list[socket.socket]:
    """Returns a socket for every address of a host. Raises OSError."""
    loop = asyncio.get_running_loop()
    address_infos = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with ExitStack() as open_sockets:
        sockets = [
            open_sockets.enter_context(socket.create_server(address, family=family, reuse_port=shares_port))
            for family, _, _, _, address in dict.fromkeys(address_infos)
        ]
        open_sockets.pop_all()
    return sockets


def tls_of(certificate: Path, key: Path, *, metrics: Metrics | None = None, prefix: str = "") -> ssl.SSLContext:
    """Returns the TLS context of servers, from files in PEM. Raises InvalidInput if they cannot be used.

    Later connections get what is in the files by then. ``metrics`` get ``<prefix>tls_expiry_timestamp_seconds``.
    """
    reloaded_certificate = ReloadedCertificate(certificate.expanduser(), key.expanduser())
    if metrics is not None:
        help_text = "When the certificate in use expires, in seconds since 1970."
        metrics.add_computed_gauge(
            f"{prefix}tls_expiry_timestamp_seconds", help_text, lambda: reloaded_certificate.expires_at
        )
    return reloaded_certificate.context
