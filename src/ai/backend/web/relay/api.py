"""Routes below ``/func``: requests of logged-in users, signed with their keys and passed on to a manager.

Bodies are streamed in both directions; a WebSocket's messages are passed on as they come.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from urllib.parse import unquote

import aiohttp
from aiohttp import WSMsgType, web

from ai.backend.common.errors import AuthenticationFailed, Forbidden, NotSupported, Unavailable
from ai.backend.infra.http.paths import modern_path
from ai.backend.infra.http.routes import SAFE_METHODS, Call, route
from ai.backend.infra.http.streams import ACCESS_KEY, STREAMS, open_socket
from ai.backend.infra.loop import cancel_all
from ai.backend.web.cookies import CookiePolicy
from ai.backend.web.guard import is_websocket
from ai.backend.web.login.model import Login
from ai.backend.web.login.service import LoginService
from ai.backend.web.managers.pool import Keypair, ManagerPool

PREFIX = "/func"
ANONYMOUS_PATHS = ("/", "/ping")
ANONYMOUS_PREFIXES = (
    "/auth/signup", "/auth/verify-email",
    "/cloud/", "/custom-auth/", "/openid/", "/saml/", "/totp/anon", "/folders/_/tus/upload/",
)  # fmt: skip
PROOF_HEADER = "X-BackendAI-Proof"
_PASSWORD_PATH = "/auth/update-password"
_ROTATION_PATH = "/auth/keypair/rotate"
_HOP_BY_HOP = frozenset(
    [
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "http2-settings"),
    ]
)
"""RFC 9110, 7.6.1."""
_UNSENT_HEADERS = _HOP_BY_HOP | frozenset(
    [
        *("host", "cookie", "authorization", "date", "x-backendai-date", "origin", "referer", "forwarded", "expect"),
        *("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"),
        *("content-length", "x-backendai-unattended", "x-backendai-proof"),
    ]
)
_UNRETURNED_HEADERS = _HOP_BY_HOP | frozenset(
    ["set-cookie", "access-control-allow-origin", "access-control-allow-credentials", "strict-transport-security",
     "content-security-policy", "www-authenticate"]
)  # fmt: skip
_MAX_WHOLE_BYTES = 1 << 16
_SOCKET_HEADERS = ("User-Agent", "X-BackendAI-Version", "X-Request-ID", "Accept-Language")


class RelayApi:
    """Passes requests on to the managers."""

    def __init__(self, managers: ManagerPool, logins: LoginService, cookies: CookiePolicy) -> None:
        self._managers = managers
        self._logins = logins
        self._cookies = cookies

    @route("*", "/func", auth=False, limited=False, kind="relay")
    async def root(self, call: Call) -> web.StreamResponse:
        """Passes the version probe on."""
        return await self.relay(call)

    @route("*", "/func/{path*}", auth=False, limited=False, kind="relay")
    async def relay(self, call: Call) -> web.StreamResponse:
        """Passes a request on to a manager, signed if its path is not anonymous."""
        request = call.request
        raw_target = request.raw_path.removeprefix(PREFIX)
        if not raw_target.startswith("/"):
            raw_target = f"/{raw_target}"
        path = raw_target.partition("?")[0]
        is_use = self._cookies.is_attended(request)
        login = await self._logins.find(self._cookies.token_of(request), is_use=is_use)
        if login is None and not _is_anonymous(path):
            raise AuthenticationFailed("You are not logged in.")
        keypair = Keypair(login.secret.access_key, login.secret.secret_key) if login is not None else None
        if login is not None:
            request[ACCESS_KEY] = login.login_id  # streams end with the login session
        if is_websocket(request):
            if keypair is None:
                raise Forbidden("WebSockets are for logged-in users.")
            return await self._relay_socket(call, raw_target, keypair)
        return await self._relay_request(call, raw_target, keypair, login)

    @route("*", "/pipeline/{path*}", auth=False, limited=False, kind="relay")
    async def pipeline(self, call: Call) -> web.StreamResponse:
        """Refuses every request to the pipeline service of published consoles, since there is none here."""
        raise NotSupported("There is no pipeline service here.")

    async def _relay_request(
        self, call: Call, raw_target: str, keypair: Keypair | None, login: Login | None
    ) -> web.StreamResponse:
        request = call.request
        response = await self._managers.request(
            call.request.method,
            raw_target,
            keypair=keypair,
            headers={
                **_forwarded_headers(request.headers, call.address),
                **_length_of(request),
                **self._proof_header(request, login),
            },
            body=_body_chunks(request) if request.body_exists else None,
        )
        async with response:
            if login is not None and response.status == 200 and request.method not in SAFE_METHODS:
                await self._end_logins(login, raw_target)
            return await _send_back(request, response)

    async def _end_logins(self, login: Login, raw_target: str) -> None:
        """Ends login sessions after a relayed request has changed the user's password or keys.

        After a new password the user's other sessions end; after new keys all of them.
        """
        path = modern_path(unquote(raw_target.partition("?")[0]))  # as the manager finds the route
        if path == _PASSWORD_PATH:
            await self._logins.end_others(login)
        if path == _ROTATION_PATH:
            await self._logins.sign_out(login, everywhere=True)  # their secret is refused from now on

    def _proof_header(self, request: web.Request, login: Login | None) -> dict[str, str]:
        proof = self._cookies.proof_of(request) if login is not None else None
        return {PROOF_HEADER: proof} if proof else {}

    async def _relay_socket(self, call: Call, raw_target: str, keypair: Keypair) -> web.StreamResponse:
        request = call.request
        headers = {name: request.headers[name] for name in _SOCKET_HEADERS if name in request.headers}
        headers["X-Forwarded-For"] = call.address
        try:
            manager_socket = await self._managers.open_socket(
                raw_target, keypair=keypair, headers=headers, protocols=()
            )
        except aiohttp.WSServerHandshakeError as refusal:
            if refusal.status in (401, 403):
                raise Forbidden("The manager refuses this stream.") from None
            return web.Response(status=refusal.status if refusal.status >= 400 else 502)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(manager_socket.close)
            client_socket = await stack.enter_async_context(open_socket(request))
            relay_tasks = [
                asyncio.create_task(_pass_messages(manager_socket, client_socket)),
                asyncio.create_task(_pass_messages(client_socket, manager_socket)),
            ]
            try:
                await asyncio.wait(relay_tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancel_all(*relay_tasks)
            return client_socket


def _is_anonymous(path: str) -> bool:
    return path in ANONYMOUS_PATHS or path.startswith(ANONYMOUS_PREFIXES)


def _forwarded_headers(headers: Mapping[str, str], address: str) -> dict[str, str]:
    """Returns the headers of a request to pass on to the manager, with the browser's address added.

    Headers that ``Connection`` lists are left out: they belong to this connection alone.
    """
    connection_headers = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    omitted_headers = _UNSENT_HEADERS | connection_headers
    kept_headers = {name: value for name, value in headers.items() if name.lower() not in omitted_headers}
    return {**kept_headers, "X-Forwarded-For": address}


def _length_of(request: web.Request) -> dict[str, str]:
    """Returns the header ``Content-Length`` for the manager if the request has a body of known length.

    A length without its body would make the manager take the next request of this connection, which may be another
    user's, for the missing bytes.
    """
    if not request.body_exists or request.content_length is None:
        return {}
    return {"Content-Length": str(request.content_length)}


async def _body_chunks(request: web.Request) -> AsyncIterator[bytes]:
    async for chunk in request.content.iter_any():
        yield chunk


async def _send_back(request: web.Request, response: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = [(name, value) for name, value in response.headers.items() if name.lower() not in _UNRETURNED_HEADERS]
    content_length = response.content_length
    if content_length is not None and content_length <= _MAX_WHOLE_BYTES and request.method != "HEAD":
        return await _send_back_whole(response, headers)
    client_response = web.StreamResponse(status=response.status, reason=response.reason, headers=headers)
    if response.content_type == "text/event-stream":
        client_response.headers["X-Accel-Buffering"] = "no"  # reverse proxies would hold events back
    await client_response.prepare(request)
    try:
        with request.app[STREAMS].registered(request):
            async for chunk in response.content.iter_any():
                await client_response.write(chunk)
    except aiohttp.ClientError:
        # A body that broke off must not look complete: the connection is cut instead of ended.
        if request.transport is not None:
            request.transport.abort()
        return client_response
    await client_response.write_eof()
    return client_response


async def _send_back_whole(response: aiohttp.ClientResponse, headers: list[tuple[str, str]]) -> web.Response:
    """Reads a small response of the manager wholly and returns it for the browser.

    This takes one write instead of three. Raises Unavailable: its body broke off.
    """
    try:
        body = await response.read()
    except aiohttp.ClientError as e:
        raise Unavailable("The manager did not finish its answer; try again.") from e
    headers = [(name, value) for name, value in headers if name.lower() != "content-length"]
    return web.Response(status=response.status, reason=response.reason, headers=headers, body=body or None)


async def _pass_messages(
    source: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
    target: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
) -> None:
    """Passes WebSocket messages on from ``source`` to ``target`` until the source closes.

    The target is closed with the same code.
    """
    async for message in source:
        if message.type is WSMsgType.TEXT:
            await target.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await target.send_bytes(message.data)
    code = source.close_code
    await target.close(code=code if code is not None and code not in (1005, 1006) else 1000)
