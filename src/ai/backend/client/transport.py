"""Signed HTTP to one cluster that may have several endpoints.

Retries (an endpoint that fails is left for the next one):

* a connection that was never made: always, the request has not left this computer;
* a connection that broke afterwards: only if the call says ``repeatable``. Calls that change something are repeatable
  where they carry a client token, by which the server recognises the repetition.

An answer is never retried, whatever its status.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendAPIError, EndpointUnreachable, UnusableReply
from ai.backend.common.signing import SignedParts, authorization, media_type, sign

TOKEN_HEADER = "X-BackendAI-Client-Token"
ROUNDS = 3
_PAUSES = (0.1, 0.4)
_HEARTBEAT_S = 30.0
_MAX_MESSAGE = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer with a 2xx or 3xx status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The decoded body; an empty object where there is none.

        Raises:
            UnusableReply: the body is not JSON.
        """
        if not self.body:
            return {}
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise UnusableReply(f"the server's answer is not JSON: {self.body[:80]!r}") from error

    def object(self) -> dict[str, Any]:
        """As :meth:`json`, for the answers that are objects."""
        value = self.json()
        if not isinstance(value, dict):
            raise UnusableReply(f"the server's answer is not an object: {self.body[:80]!r}")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request before it has an endpoint, a date and a signature.

    ``json`` is encoded if it is not None; ``form`` (a factory, because a form can be sent once) makes a multipart body.
    """

    method: str
    path: str
    params: Mapping[str, str] | None = None
    json: Any = None
    content: bytes | None = None
    content_type: str | None = None
    form: Any = None
    signed: bool = True
    repeatable: bool = False
    token: str | None = None
    headers: Mapping[str, str] | None = None


def segment(text: str) -> str:
    """One part of a path, encoded as the spec asks (03-07, "Parameters in URI")."""
    return quote(text, safe="~()*!.'")


def new_token() -> str:
    """A client token: names one change, however often it is sent."""
    return uuid.uuid4().hex


def _url(endpoint: URL, path: str, params: Mapping[str, str] | None) -> URL:
    query = "?" + urlencode(params) if params else ""
    return URL(str(endpoint).rstrip("/") + path + query, encoded=True)


def _authority(url: URL) -> str:
    return url.host_port_subcomponent or ""


class Transport:
    """Connections to the endpoints of ``config``. Belongs to one event loop; open it there with ``async with``."""

    def __init__(self, config: APIConfig) -> None:
        self.config = config
        self._http: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        if self._http is not None:
            return
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self.config.connection_timeout or None, sock_read=self.config.read_timeout or None
        )
        connector = aiohttp.TCPConnector(ssl=not self.config.skip_sslcert_validation, limit=64)
        self._http = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=True)
        if len(self.config.endpoints) > 1:
            for _ in range(random.randrange(len(self.config.endpoints))):
                self.config.fail_over()

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise RuntimeError("the API session is not open: use it in a `with` block, or call open() first")
        return self._http

    def sign_headers(self, method: str, url: URL, content_type: str | None) -> dict[str, str]:
        """The headers that identify the caller, for a request with this media type (None: no such header is sent)."""
        config = self.config
        date = datetime.now(UTC).isoformat()
        headers = {"Date": date, "X-BackendAI-Version": config.version, "X-BackendAI-Domain": config.domain}
        if config.is_anonymous:
            return headers
        access_key, secret_key = config.access_key, config.secret_key
        parts = SignedParts(
            method=method,
            raw_target=url.raw_path_qs,
            date=date,
            host=_authority(url),
            content_type=media_type(content_type),
            version=config.version,
        )
        signature = sign(parts, secret_key, hash_name=config.hash_type)
        headers["Authorization"] = authorization(access_key, signature, hash_name=config.hash_type)
        return headers

    def _prepare(self, call: Call) -> tuple[URL, dict[str, str], Any]:
        url = _url(self.config.endpoint, call.path, call.params)
        body: Any = None
        content_type: str | None = "text/plain"
        if call.form is not None:
            body, content_type = call.form(), "multipart/form-data"
        elif call.json is not None:
            body, content_type = json.dumps(call.json).encode(), "application/json"
        elif call.content is not None:
            body, content_type = call.content, call.content_type or "application/octet-stream"
        headers = {"User-Agent": self.config.user_agent, **(call.headers or {})}
        if call.token:
            headers[TOKEN_HEADER] = call.token
        if call.signed:
            headers |= self.sign_headers(call.method, url, content_type)
        if content_type and call.form is None:
            headers["Content-Type"] = content_type
        return url, headers, body

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to ``call`` with its body unread.

        Raises:
            BackendAPIError: the server refused.
            EndpointUnreachable: no endpoint answered.
        """
        response = await self._send(call)
        try:
            if response.status >= 400:
                raise await _problem(response)
            yield response
        finally:
            response.release()

    async def request(self, call: Call) -> Reply:
        """The whole answer to ``call``; errors as :meth:`stream`."""
        for last in (False, True):
            try:
                async with self.stream(call) as response:
                    return Reply(response.status, response.headers, await response.read())
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                # The answer broke off in its middle.
                if last or not call.repeatable:
                    raise EndpointUnreachable(_broken(self.config.endpoint, error)) from error
                self.config.fail_over()
        raise AssertionError("unreachable")

    async def _send(self, call: Call) -> aiohttp.ClientResponse:
        http = self._session()
        failure: Exception | None = None
        attempts = ROUNDS if len(self.config.endpoints) == 1 else ROUNDS * len(self.config.endpoints)
        for attempt in range(attempts):
            url, headers, body = self._prepare(call)
            try:
                return await http.request(
                    call.method,
                    url,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    skip_auto_headers=["Accept-Encoding"],
                )
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                failure = error
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                if not call.repeatable:
                    raise EndpointUnreachable(_broken(self.config.endpoint, error)) from error
                failure = error
            self.config.fail_over()
            if (attempt + 1) % len(self.config.endpoints) == 0 and attempt + 1 < attempts:
                done = (attempt + 1) // len(self.config.endpoints)
                await asyncio.sleep(_PAUSES[min(done, len(_PAUSES)) - 1])
        names = ", ".join(str(url) for url in self.config.endpoints)
        raise EndpointUnreachable(f"no answer from {names}: {failure or 'timed out'}") from failure

    @asynccontextmanager
    async def websocket(
        self, path: str, params: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """An open WebSocket.

        Raises:
            BackendAPIError: the server refused the upgrade.
            EndpointUnreachable: no endpoint answered.
        """
        http = self._session()
        failure: Exception | None = None
        socket: aiohttp.ClientWebSocketResponse | None = None
        for _ in range(len(self.config.endpoints)):
            url = _url(self.config.endpoint, path, params)
            headers = {"User-Agent": self.config.user_agent, **self.sign_headers("GET", url, None)}
            try:
                socket = await http.ws_connect(
                    url, headers=headers, autoping=True, heartbeat=_HEARTBEAT_S, max_msg_size=_MAX_MESSAGE
                )
                break
            except aiohttp.WSServerHandshakeError as error:
                raise BackendAPIError(error.status, error.message, {"title": _refused(error.status)}) from error
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                failure = error
                self.config.fail_over()
        if socket is None:
            raise EndpointUnreachable(_broken(self.config.endpoint, failure)) from failure
        try:
            yield socket
        finally:
            await socket.close()


def _refused(status: int) -> str:
    known = {401: "The credentials are missing, wrong or expired.", 404: "There is no such session."}
    return known.get(status, f"The server refused the stream with status {status}.")


def _broken(endpoint: URL, error: Exception | None) -> str:
    return f"the connection to {endpoint} broke: {str(error) or type(error).__name__}"


async def _problem(response: aiohttp.ClientResponse) -> BackendAPIError:
    text = (await response.read()).decode(errors="replace")
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        data = {"msg": text[:200].strip()} if text.strip() else {}
    return BackendAPIError(response.status, response.reason or "", data)
