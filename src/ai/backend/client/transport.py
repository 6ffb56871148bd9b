"""Signed HTTP to one cluster that may have several endpoints.

Retries (an endpoint that fails is left for the next one):

* a connection that was never made: always, the request has not left this computer;
* a connection that broke afterwards: only if the call says ``repeatable``. Calls that change something are repeatable
  where they carry a client token, by which the server recognises the repetition.

An answer is never retried, whatever its status.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendAPIError, EndpointUnreachable
from ai.backend.client.portal import Remote
from ai.backend.client.wire import Call, Reply, call_url, prepare, problem, sign_headers

_PAUSES_S = (0.1, 0.4)
"""Seconds between rounds over all endpoints."""
_NEVER_SENT_ERRORS = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_HEARTBEAT_S = 30.0
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024


class Transport(Remote):
    """Connections to the endpoints of ``config``. Belongs to one event loop; open it there with ``async with``."""

    def __init__(self, config: APIConfig) -> None:
        self.config = config
        self._http: aiohttp.ClientSession | None = None
        self._tunnels: aiohttp.ClientSession | None = None

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

    def _unlimited(self) -> aiohttp.ClientSession:
        """Returns the HTTP session of long-lived connections, whose number must not limit requests."""
        if self._tunnels is None:
            connector = aiohttp.TCPConnector(ssl=not self.config.skip_sslcert_validation, limit=0)
            self._tunnels = aiohttp.ClientSession(connector=connector, timeout=self.session.timeout)
        return self._tunnels

    async def close(self) -> None:
        if self._tunnels is not None:
            await self._tunnels.close()
            self._tunnels = None
        if self._http is not None:
            await self._http.close()
            self._http = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """The HTTP session underneath, for unsigned requests to other servers."""
        if self._http is None:
            raise RuntimeError("the API session is not open: use it in a `with` block, or call open() first")
        return self._http

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yields the answer to ``call`` with its body unread.

        Raises:
            BackendAPIError: the server refused.
            EndpointUnreachable: no endpoint answered.
        """
        response = await self._send(call)
        try:
            if response.status >= 400:
                raise problem(response.status, response.reason or "", await response.read())
            yield response
        finally:
            response.release()

    async def request(self, call: Call) -> Reply:
        """Returns the whole answer to ``call``; errors as :meth:`stream`."""
        for is_last_try in (False, True):
            try:
                async with self.stream(call) as response:
                    return Reply(response.status, response.headers, await response.read())
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                # The answer broke off in its middle.
                if is_last_try or not call.repeatable:
                    raise EndpointUnreachable(_broken_text(self.config.endpoint, error)) from error
                self.config.fail_over()
        raise AssertionError("unreachable")

    async def _send(self, call: Call) -> aiohttp.ClientResponse:
        http = self.session
        failure: Exception | None = None
        for pause_s in (*_PAUSES_S, 0.0):
            for _ in self.config.endpoints:
                url, headers, body = prepare(self.config, call)
                try:
                    return await http.request(
                        call.method,
                        url,
                        data=body,
                        headers=headers,
                        allow_redirects=False,
                        skip_auto_headers=["Accept-Encoding"],
                    )
                except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                    if not call.repeatable and not isinstance(error, _NEVER_SENT_ERRORS):
                        raise EndpointUnreachable(_broken_text(self.config.endpoint, error)) from error
                    failure = error
                self.config.fail_over()
            await asyncio.sleep(pause_s)
        endpoint_names = ", ".join(str(url) for url in self.config.endpoints)
        raise EndpointUnreachable(f"no answer from {endpoint_names}: {failure or 'timed out'}") from failure

    @asynccontextmanager
    async def websocket(
        self, path: str, params: Mapping[str, str] | None = None, *, for_bytes: bool = False
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Opens a WebSocket.

        One ``for_bytes`` waits for no pongs, as slow readers answer late; the number of such connections is not
        limited, and a refusal has the server's full explanation.

        Raises:
            BackendAPIError: the server refused the upgrade.
            EndpointUnreachable: no endpoint answered.
        """
        http = self._unlimited() if for_bytes else self.session
        failure: Exception | None = None
        socket: aiohttp.ClientWebSocketResponse | None = None
        for _ in range(len(self.config.endpoints)):
            url = call_url(self.config.endpoint, path, params)
            headers = {"User-Agent": self.config.user_agent, **sign_headers(self.config, "GET", url, None)}
            try:
                socket = await http.ws_connect(
                    url,
                    headers=headers,
                    autoping=True,
                    heartbeat=None if for_bytes else _HEARTBEAT_S,
                    max_msg_size=_MAX_MESSAGE_BYTES,
                )
                break
            except aiohttp.WSServerHandshakeError as error:
                if for_bytes:
                    # The upgrade's answer has no body here: asked without one, the server says why.
                    await self.request(Call(method="GET", path=path, params=dict(params or {}), repeatable=True))
                raise BackendAPIError(error.status, error.message, {"title": _refusal_text(error.status)}) from error
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                failure = error
                self.config.fail_over()
        if socket is None:
            raise EndpointUnreachable(_broken_text(self.config.endpoint, failure)) from failure
        try:
            yield socket
        finally:
            await socket.close()


def _refusal_text(status: int) -> str:
    explanations = {401: "The credentials are missing, wrong or expired.", 404: "There is no such session."}
    return explanations.get(status, f"The server refused the stream with status {status}.")


def _broken_text(endpoint: URL, error: Exception | None) -> str:
    return f"the connection to {endpoint} broke: {str(error) or type(error).__name__}"
