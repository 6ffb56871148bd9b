"""Implements the transport of asyncio programs on aiohttp: requests, streams and WebSockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from yarl import URL

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendAPIError
from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call, Reply, api_error_of, call_url, sign_headers, trace_headers

_HEARTBEAT_S = 30.0
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024


class AiohttpTransport(Transport):
    """Sends requests by aiohttp. It belongs to one event loop and must be opened there."""

    never_sent_errors = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
    broken_errors = (aiohttp.ClientError, TimeoutError, ConnectionError)

    def __init__(self, config: APIConfig) -> None:
        super().__init__(config)
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
        await super().open()

    def _unlimited_session(self) -> aiohttp.ClientSession:
        """Returns the HTTP session for long-lived connections, whose number must not limit requests."""
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
        if self._http is None:
            raise RuntimeError("the API session is not open: use it in a `with` block, or call open() first")
        return self._http

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: Any) -> aiohttp.ClientResponse:
        return await self.session.request(
            method,
            URL(url, encoded=True),
            data=body,
            headers=headers,
            allow_redirects=False,
            skip_auto_headers=["Accept-Encoding"],
        )

    async def _receive(self, response: aiohttp.ClientResponse) -> Reply:
        try:
            return Reply(response.status, response.headers, await response.read())
        finally:
            response.release()

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[aiohttp.ClientResponse]:
        response = await self._send(call)
        try:
            if response.status >= 400:
                raise api_error_of(response.status, response.reason or "", await response.read())
            yield response
        finally:
            response.release()

    @asynccontextmanager
    async def websocket(
        self, path: str, params: Mapping[str, str] | None = None, *, for_bytes: bool = False
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        http_session = self._unlimited_session() if for_bytes else self.session
        last_error: Exception | None = None
        socket: aiohttp.ClientWebSocketResponse | None = None
        for _ in self.config.endpoint_urls:
            url = call_url(self.config.endpoint_url, path, params)
            headers = {
                "User-Agent": self.config.user_agent,
                **trace_headers(),
                **sign_headers(self.config, "GET", url, None),
            }
            try:
                socket = await http_session.ws_connect(
                    URL(url, encoded=True),
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
                last_error = error
                self.config.fail_over()
        if socket is None:
            raise self.unreachable(last_error) from last_error
        try:
            yield socket
        finally:
            await socket.close()


def _refusal_text(status: int) -> str:
    explanations = {401: "The credentials are missing, wrong or expired.", 404: "There is no such session."}
    return explanations.get(status, f"The server refused the stream with status {status}.")
