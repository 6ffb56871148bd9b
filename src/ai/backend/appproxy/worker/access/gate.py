"""Decides for each request, upgrade and connection if a circuit admits it.

The rules are in `core.proxy`; docs/explanation/data-planes.md lists the attacks that each of them stops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import parse_qs

import msgspec

from ai.backend.appproxy.worker.access.replies import Response, error, redirect
from ai.backend.appproxy.worker.access.tokens import BadToken, Grant, Tokens
from ai.backend.common.appproxy_errors import (
    CookieInvalid,
    CookieMissing,
    HeaderMissing,
    MethodUnsupported,
    NotForInference,
    TokenMismatch,
)
from ai.backend.common.errors import BackendError
from ai.backend.common.wire.appproxy import SETUP_PATH, AppMode, Circuit
from ai.backend.core.proxy.cookies import (
    PERMIT_S,
    is_local_redirect,
    permit_name,
    set_permit_cookie,
    split_cookies,
)
from ai.backend.core.proxy.headers import Header, values_of
from ai.backend.core.proxy.hosts import client_address, is_same_origin
from ai.backend.infra.http.addresses import Network, is_within, may_come_from

_SETUP_TARGET = SETUP_PATH.encode()
_SCHEMES = ("backendai", "bearer")
_NOTHING_HIDDEN: frozenset[bytes] = frozenset()
_AUTHORIZATION = frozenset((b"authorization",))
_MAX_PERMITS = 4


class Admission(msgspec.Struct, frozen=True):
    """Describes an admitted request.

    ``cookies`` and all but the ``hidden`` fields go to the app; ``set_cookie`` renews the permit. ``grant`` is the
    token of an endpoint.
    """

    address: str
    cookies: str = ""
    hidden: frozenset[bytes] = _NOTHING_HIDDEN
    set_cookie: str | None = None
    grant: Grant | None = None


class Request(Protocol):
    """Holds the parts of a request that the gate reads. Names of headers are in lower case."""

    method: bytes
    target: bytes
    headers: Sequence[Header]
    host: bytes
    is_websocket: bool


class Gate:
    """Decides if a worker admits a request to a circuit. ``is_secure`` is True if browsers reach the worker by TLS."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        is_secure: bool,
        trusted_proxies: Sequence[Network] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tokens = tokens
        self._is_secure = is_secure
        self._trusted_proxies = trusted_proxies
        self._clock = clock

    @property
    def has_trusted_proxies(self) -> bool:
        """Returns True if there are trusted proxies, so that a client's address can differ from its connection's."""
        return bool(self._trusted_proxies)

    def admits_address(self, circuit: Circuit, address: str) -> bool:
        """Returns True if the circuit may be used from an address."""
        allowed = circuit.allowed_client_ips
        return allowed is None or (bool(allowed.strip()) and may_come_from(address, allowed.split(",")))

    def admits_connection(self, circuit: Circuit, address: str) -> bool:
        """Returns True if a raw TCP connection from an address to a circuit is permitted.

        It has no credentials, so that a circuit that is not public must limit its clients' networks.
        """
        if circuit.allowed_client_ips is None and not circuit.open_to_public:
            return False
        return self.admits_address(circuit, address)

    def check(self, circuit: Circuit, request: Request, peer_address: str) -> Admission | Response:
        """Admits a request of the client at ``peer``, or returns the reply that refuses it."""
        address = self._address(request, peer_address)
        if circuit.allowed_client_ips is not None and not self.admits_address(circuit, address):
            return error(403, "This address may not use this app.", as_page=wants_page(request))
        path, _, query = request.target.partition(b"?")
        if path == _SETUP_TARGET:
            return self._set_up(circuit, request, query)
        if circuit.app_mode is AppMode.INFERENCE:
            return self._check_token(circuit, request, address)
        if request.is_websocket and not self._is_own_origin(request):
            return error(403, "The page that opens this connection is of another origin.", as_page=wants_page(request))
        return self._check_permit(circuit, request, address)

    def _set_up(self, circuit: Circuit, request: Request, query: bytes) -> Response:
        if circuit.app_mode is AppMode.INFERENCE:
            return error(400, "Call the endpoint with a token.", NotForInference, as_page=wants_page(request))
        if request.method != b"GET" or request.is_websocket:
            return error(405, "Open this address in a browser.", as_page=wants_page(request))
        now = self._clock()
        try:
            code_values = parse_qs(query.decode("ascii", "replace"), max_num_fields=8).get("code", [])
            redirect_path = self._tokens.take_setup_code(code_values[0] if len(code_values) == 1 else "", circuit, now)
        except (BadToken, ValueError):
            return error(
                401, "Open the app again: this link is used or expired.", CookieInvalid, as_page=wants_page(request)
            )
        if not is_local_redirect(redirect_path):
            redirect_path = "/"
        cookie = None
        if circuit.user_id is not None and not circuit.open_to_public:
            permit = self._tokens.issue_permit(circuit.id, circuit.user_id, now)
            cookie = self._cookie(circuit, permit)
        return redirect(redirect_path, cookie)

    def _check_permit(self, circuit: Circuit, request: Request, address: str) -> Admission | Response:
        cookie_name = permit_name(circuit.id, is_secure=self._is_secure)
        permits, other_cookies = split_cookies(values_of(request.headers, b"cookie"), cookie_name)
        if circuit.open_to_public:
            return Admission(address, other_cookies)
        if not permits:
            return error(401, "Open the app from Backend.AI.", CookieMissing, as_page=wants_page(request))
        now = self._clock()
        for permit in permits[:_MAX_PERMITS]:
            try:
                expiry = self._tokens.permit_expiry(permit, circuit.id, circuit.user_id, now)
            except BadToken:
                continue
            renewed_cookie = None
            if expiry - now < PERMIT_S / 2 and circuit.user_id is not None:
                renewed_cookie = self._cookie(circuit, self._tokens.issue_permit(circuit.id, circuit.user_id, now))
            return Admission(address, other_cookies, set_cookie=renewed_cookie)
        return error(401, "Open the app again from Backend.AI.", CookieInvalid, as_page=wants_page(request))

    def _check_token(self, circuit: Circuit, request: Request, address: str) -> Admission | Response:
        _, cookies = split_cookies(values_of(request.headers, b"cookie"), "")
        if circuit.open_to_public:
            return Admission(address, cookies)
        grant = self.read_grant(request)
        if isinstance(grant, Response):
            return grant
        return self._admit(circuit, request, address, grant, cookies)

    def _admit(
        self, circuit: Circuit, request: Request, address: str, grant: Grant, cookies: str
    ) -> Admission | Response:
        if circuit.endpoint_id is None or str(circuit.endpoint_id) not in grant.audience:
            return _unauthorized(request, "The token is invalid or expired.", TokenMismatch)
        return Admission(address, cookies, hidden=_AUTHORIZATION, grant=grant)

    def admit_grant(self, circuit: Circuit, request: Request, peer_address: str, grant: Grant) -> Admission | Response:
        """Admits a request, which came to the base URL of all models, to the circuit of the model that it names.

        Returns the reply that refuses the request if it is not admitted.
        """
        address = self._address(request, peer_address)
        if not self.admits_address(circuit, address):
            return error(403, "This address may not use this model.", model_code="forbidden")
        _, cookies = split_cookies(values_of(request.headers, b"cookie"), "")
        if circuit.open_to_public:
            return Admission(address, cookies, hidden=_AUTHORIZATION, grant=grant)
        return self._admit(circuit, request, address, grant, cookies)

    def _address(self, request: Request, peer_address: str) -> str:
        """Returns the address of the client, also if the client is behind trusted proxies."""
        if not self._trusted_proxies:
            return peer_address
        forwarded_addresses = values_of(request.headers, b"x-forwarded-for")
        return client_address(peer_address, forwarded_addresses, lambda hop: is_within(hop, self._trusted_proxies))

    def read_grant(self, request: Request) -> Grant | Response:
        """Returns the grant of a request's token. Returns a refusing reply if the token is missing or invalid."""
        values = values_of(request.headers, b"authorization")
        if not values:
            return _unauthorized(request, "Send a token of the endpoint.", HeaderMissing)
        scheme, _, token = values[0].partition(" ")
        if scheme.lower() not in _SCHEMES:
            return _unauthorized(request, "Authorize with BackendAI or Bearer.", MethodUnsupported)
        try:
            if len(values) > 1:
                raise BadToken("the header is ambiguous")
            return self._tokens.grant(token.strip(), self._clock())
        except BadToken:
            return _unauthorized(request, "The token is invalid or expired.", TokenMismatch)

    def _is_own_origin(self, request: Request) -> bool:
        """Returns True if the header Origin of a request names the app's own address, or if the request has no Origin.

        The pages of browsers do not open WebSockets without Origin.
        """
        origins = values_of(request.headers, b"origin")
        host = request.host.decode("latin-1")
        return not origins or (len(origins) == 1 and is_same_origin(origins[0], host))

    def _cookie(self, circuit: Circuit, permit: str) -> str:
        return set_permit_cookie(permit_name(circuit.id, is_secure=self._is_secure), permit, is_secure=self._is_secure)


def _unauthorized(request: Request, detail: str, kind: type[BackendError]) -> Response:
    challenge = b"WWW-Authenticate: Bearer\r\n"
    return error(401, detail, kind, as_page=wants_page(request), fields=challenge, model_code="invalid_api_key")


def wants_page(request: Request) -> bool:
    """Returns True if the client accepts HTML."""
    return any("text/html" in value for value in values_of(request.headers, b"accept"))
