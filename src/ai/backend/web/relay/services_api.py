"""Calls of model services from pages of the console.

Browsers may not send requests to app proxies: the policy of the console's page names no other origin, and a token of a
service would have to be in a page. So a page sends the call here, and the web server passes it on with a token of ten
minutes that it gets from the manager by the keys of the login session; no token leaves this process.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote

import aiohttp
import msgspec
from aiohttp import web
from msgspec import Meta
from yarl import URL

from ai.backend.common.errors import AuthenticationFailed, Conflict, InvalidInput, RateLimitExceeded, Unavailable
from ai.backend.infra.http.outbound import OutboundClient, OutboundFailed, check_plain, parse_url
from ai.backend.infra.http.routes import Call, Schema, route
from ai.backend.infra.http.streams import ACCESS_KEY, STREAMS
from ai.backend.web.cookies import CookiePolicy
from ai.backend.web.login.service import LoginService
from ai.backend.web.managers.pool import Keypair, ManagerPool

STATUS_HEADER, TYPE_HEADER = "X-BackendAI-Endpoint-Status", "X-BackendAI-Endpoint-Type"
MAX_ANSWER_BYTES = 32 << 20
MAX_CALLS_OF_LOGIN, _MAX_CALLS = 8, 512
_TOKEN_LIFETIME_S, _MIN_TOKEN_REST_S = 600, 60
_MAX_TOKENS = 4_096
_MAX_CALL_S = 1_800.0
_MAX_SILENCE_S = 600.0
"""Seconds until the head of an answer, and between its parts: a service without a replica starts one first."""
_DOT_SEGMENTS = frozenset([".", ".."])
_SHOWN_TYPE = re.compile(r"[ -~]{1,128}")


class ServiceCallBody(Schema, frozen=True):
    """A request for a model service; ``path`` follows the URL of the service."""

    path: Annotated[str, Meta(min_length=1, max_length=2_048, pattern=r"^/[!-~]*$")]
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    body: str | None = None
    content_type: Annotated[str, Meta(max_length=128, pattern=r"^[!-~ ]+$")] = "application/json"


class _Token(msgspec.Struct, frozen=True):
    text: str
    expires_s: float


class ServiceCallsApi:
    """Passes calls on to model services."""

    def __init__(
        self, managers: ManagerPool, logins: LoginService, cookies: CookiePolicy, *, verifies_tls: bool
    ) -> None:
        self._managers = managers
        self._logins = logins
        self._cookies = cookies
        # The URLs are the manager's, and app proxies of many sites have private addresses: no network is refused.
        self._client = OutboundClient(
            refused=(),
            timeout=aiohttp.ClientTimeout(total=_MAX_CALL_S, sock_connect=10.0, sock_read=_MAX_SILENCE_S),
            connections=_MAX_CALLS,
            ssl=verifies_tls,
        )
        self._tokens: dict[tuple[str, str], _Token] = {}
        self._calls: Counter[str] = Counter()

    async def close(self) -> None:
        """Closes the connections to app proxies."""
        await self._client.close()

    @route("POST", "/server/services/{e}/call", auth=False, limited=False, kind="relay", ends_with_client=True)
    async def call(self, call: Call) -> web.StreamResponse:
        """Passes a call on to a model service and streams its answer back.

        The answer is 200 whatever the service answers, whose status and media type are in headers: bytes of a service
        are no page of this origin, and a 401 of its engine is no end of the login session.
        """
        login = await self._logins.find(
            self._cookies.token_of(call.request), is_use=self._cookies.is_attended(call.request)
        )
        if login is None:
            raise AuthenticationFailed("You are not logged in.")
        call.request[ACCESS_KEY] = login.login_id  # the answer ends with the login session
        service_call = _decode_call(await call.read_body())
        keypair = Keypair(login.secret.access_key, login.secret.secret_key)
        # A client that leaves cancels this call, which closes the connection to the service: its engine stops.
        with self._count_call(login.login_id), call.request.app[STREAMS].registered(call.request):
            service = await self._ask_manager("GET", _manager_path(call.params["e"]), keypair)
            if isinstance(service, web.Response):
                return service
            url = _target_url(service, service_call.path)
            headers = {} if service_call.body is None else {"Content-Type": service_call.content_type}
            if service.get("is_public") is not True:
                token = await self._token_of(login.login_id, str(service.get("endpoint_id")), keypair)
                if isinstance(token, web.Response):
                    return token
                headers["Authorization"] = f"Bearer {token}"
            return await self._stream_answer(call.request, url, service_call, headers)

    async def _stream_answer(
        self, request: web.Request, url: URL, service_call: ServiceCallBody, headers: Mapping[str, str]
    ) -> web.StreamResponse:
        body = None if service_call.body is None else service_call.body.encode()
        client_response: web.StreamResponse | None = None
        try:
            async with self._client.request(service_call.method, url, headers=headers, body=body) as response:
                check_plain(response)
                client_response = web.StreamResponse(headers=_reply_headers(response))
                await client_response.prepare(request)
                sent_bytes = 0
                async for chunk in response.content.iter_any():
                    sent_bytes += len(chunk)
                    if sent_bytes > MAX_ANSWER_BYTES:
                        raise OutboundFailed("The answer is too long.")
                    await client_response.write(chunk)
        except OutboundFailed as e:
            if client_response is None:
                raise Unavailable(f"The service cannot be called: {e}") from None
            # An answer that broke off must not look complete.
            if request.transport is not None:
                request.transport.abort()
            return client_response
        await client_response.write_eof()
        return client_response

    async def _token_of(self, login_id: str, endpoint_id: str, keypair: Keypair) -> str | web.Response:
        """Returns the token with which a login session calls an endpoint; requests a new one before the last expires.

        Returns the response with the manager's refusal if there is no new one.
        """
        key = (login_id, endpoint_id)
        token, now = self._tokens.get(key), time.monotonic()
        if token is not None and now < token.expires_s - _MIN_TOKEN_REST_S:
            return token.text
        path = f"{_manager_path(endpoint_id)}/token"
        manager_answer = await self._ask_manager("POST", path, keypair, {"duration": f"{_TOKEN_LIFETIME_S}s"})
        if isinstance(manager_answer, web.Response):
            return manager_answer
        if len(self._tokens) >= _MAX_TOKENS:
            self._tokens = {
                token_key: cached_token
                for token_key, cached_token in self._tokens.items()
                if now < cached_token.expires_s
            }
        if len(self._tokens) < _MAX_TOKENS:
            self._tokens[key] = _Token(str(manager_answer.get("token")), now + _TOKEN_LIFETIME_S)
        return str(manager_answer.get("token"))

    async def _ask_manager(
        self, method: str, path: str, keypair: Keypair, body: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any] | web.Response:
        """Sends a request to the manager; returns the reply, or the response that passes the manager's refusal on."""
        options: dict[str, Any] = {}
        if body is not None:
            options = {"body": msgspec.json.encode(body), "headers": {"Content-Type": "application/json"}}
        status, document = await self._managers.read_json(method, path, keypair=keypair, **options)
        if status == 200:
            return document
        return web.json_response(document, status=status, content_type="application/problem+json")

    @contextmanager
    def _count_call(self, login_id: str) -> Iterator[None]:
        """Counts a running call of a model service during the block. Raises RateLimitExceeded for too many at once."""
        if self._calls[login_id] >= MAX_CALLS_OF_LOGIN or self._calls.total() >= _MAX_CALLS:
            raise RateLimitExceeded("Too many calls of services run at once; wait for one of them to end.")
        self._calls[login_id] += 1
        try:
            yield
        finally:
            self._calls[login_id] -= 1
            self._calls += Counter()  # drops those of zero


def _decode_call(content: bytes) -> ServiceCallBody:
    try:
        service_call = msgspec.json.decode(content, type=ServiceCallBody)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise InvalidInput(f"The body is no call of a service: {e}", data={"body": "malformed"}) from None
    path_segments = unquote(service_call.path.partition("?")[0]).replace("\\", "/").split("/")
    if not _DOT_SEGMENTS.isdisjoint(path_segments) or "#" in service_call.path:
        raise InvalidInput("The path leaves the service.", data={"path": "malformed"})
    return service_call


def _manager_path(endpoint: str) -> str:
    return f"/services/{quote(endpoint, safe='')}"


def _target_url(service: Mapping[str, Any], path: str) -> URL:
    """Returns the URL of a model service with the path of a call. Raises Conflict before the service has a URL."""
    url_text = service.get("service_endpoint")
    if not isinstance(url_text, str) or not url_text:
        message = "The service has no URL yet: no replica was ready so far."
        raise Conflict(message, data={"status": str(service.get("status"))})
    base_url = parse_url(url_text)
    return URL(f"{base_url.scheme}://{base_url.raw_authority}{base_url.raw_path.rstrip('/')}{path}", encoded=True)


def _reply_headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    """Returns the headers of a model service's reply for the browser, without the service's own headers.

    Those of the service are not passed on, as its answer is not of this origin.
    """
    media_type = response.headers.get("Content-Type", "")
    return {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": "attachment",
        STATUS_HEADER: str(response.status),
        TYPE_HEADER: media_type if _SHOWN_TYPE.fullmatch(media_type) else "",
        "X-Accel-Buffering": "no",  # reverse proxies would hold tokens back
    }
