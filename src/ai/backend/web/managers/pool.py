"""Sends requests to one of several managers, and to the next one if a manager cannot be reached."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import aiohttp
import msgspec
from multidict import istr
from yarl import URL

from ai.backend.common.errors import Unavailable
from ai.backend.common.signing import SignedParts, authorization, derive_key, media_type, sign_with_key
from ai.backend.infra.http.client_traces import client_traces
from ai.backend.infra.http.paths import API_VERSION

log = logging.getLogger(__name__)
Body = bytes | AsyncIterable[bytes] | None
VERSION_HEADER = "X-BackendAI-Version"
_AVOIDANCE_S = 10.0
"""Seconds for which a manager that could not be reached is asked last."""
_PROBE_TIMEOUT_S = 0.8
_SKIPPED_HEADERS = frozenset([istr("Content-Type"), istr("User-Agent")])
_MAX_CACHED_TARGETS = 256
_MAX_CACHED_KEYS = 256
_MAX_MESSAGE_BYTES = 16 << 20
_NEVER_SENT_ERRORS = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class Keypair(msgspec.Struct, frozen=True):
    """Holds the keys that sign the requests of a login session."""

    access_key: str
    secret_key: str


class ManagerPool:
    """Holds connections to the managers of one installation.

    A request goes to another manager only if no connection was made: nothing has been sent then. Answers are not
    repeated, whatever their status.
    """

    def __init__(self, endpoints: list[str], *, verifies_tls: bool, connect_timeout_s: float) -> None:
        self._endpoints = [URL(endpoint) for endpoint in endpoints]
        self._avoided_until = dict.fromkeys(self._endpoints, 0.0)
        self._verifies_tls = verifies_tls
        self._connect_timeout_s = connect_timeout_s
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Makes the HTTP client. Connections are made when they are needed."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s)
        connector = aiohttp.TCPConnector(ssl=self._verifies_tls, limit=0)
        self._http = aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=client_traces(),
        )

    async def stop(self) -> None:
        """Closes all connections. May be called without ``start``."""
        if self._http is not None:
            await self._http.close()

    async def request(
        self,
        method: str,
        raw_target: str,
        *,
        keypair: Keypair | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body = None,
        timeout_s: float | None = None,
    ) -> aiohttp.ClientResponse:
        """Sends a request, signed if a keypair is given, and returns the response. The caller must release it.

        Raises:
            Unavailable: no manager can be reached, or the connection broke before the head of the response.
        """
        for endpoint in self._endpoints_in_order():
            request = self._session.request(
                method,
                _target_url(endpoint, raw_target),
                headers=_signed_headers(endpoint, method, raw_target, keypair, headers or {}),
                data=body,
                allow_redirects=False,
                # Without a body of the caller aiohttp would send a length of zero for some methods only.
                skip_auto_headers=_SKIPPED_HEADERS,
            )
            try:
                return await (request if timeout_s is None else asyncio.wait_for(request, timeout_s))
            except _NEVER_SENT_ERRORS as e:
                self._mark_unreachable(endpoint, e)
            except (aiohttp.ClientError, TimeoutError) as e:
                raise Unavailable("The manager did not answer; try again.") from e
        raise Unavailable("No manager can be reached; try again.")

    async def open_socket(
        self, raw_target: str, *, keypair: Keypair, headers: Mapping[str, str], protocols: tuple[str, ...]
    ) -> aiohttp.ClientWebSocketResponse:
        """Opens a WebSocket of a manager.

        Raises:
            Unavailable: no manager can be reached.
            WSServerHandshakeError: the manager refuses; its status says why.
        """
        for endpoint in self._endpoints_in_order():
            try:
                return await self._session.ws_connect(
                    _target_url(endpoint, raw_target),
                    headers=_signed_headers(endpoint, "GET", raw_target, keypair, headers),
                    protocols=protocols,
                    max_msg_size=_MAX_MESSAGE_BYTES,
                    autoping=True,
                    autoclose=True,
                )
            except _NEVER_SENT_ERRORS as e:
                self._mark_unreachable(endpoint, e)
            except aiohttp.WSServerHandshakeError:
                raise
            except (aiohttp.ClientError, TimeoutError) as e:
                raise Unavailable("The manager did not answer; try again.") from e
        raise Unavailable("No manager can be reached; try again.")

    async def read_json(
        self, method: str, raw_target: str, *, timeout_s: float = 30.0, **options: Any
    ) -> tuple[int, dict[str, Any]]:
        """Returns the status and the JSON object of a small response. Any other body counts as an empty object."""
        response = await self.request(method, raw_target, timeout_s=timeout_s, **options)
        async with response:
            try:
                value = await response.json(content_type=None)
            except (ValueError, aiohttp.ClientError):
                value = None
        return response.status, value if isinstance(value, dict) else {}

    async def is_reachable(self) -> bool:
        """Returns True if a manager answers the version probe within 0.8 s. Otherwise logs the reason.

        Who probes this server usually gives up after a second, which cancels the request, and leaves no trace of it.
        """
        try:
            status, _ = await self.read_json("GET", "/", timeout_s=_PROBE_TIMEOUT_S)
        except Unavailable as e:
            log.warning("this server is not ready: %s", e.message)
            return False
        if status != 200:
            log.warning("this server is not ready: the manager answers %d", status)
        return status == 200

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise Unavailable("The web server is not started.")
        return self._http

    def _endpoints_in_order(self) -> list[URL]:
        """Returns the manager endpoints in the order of the settings. Recently unreachable endpoints come last."""
        now = time.monotonic()
        return sorted(self._endpoints, key=lambda endpoint: self._avoided_until[endpoint] > now)

    def _mark_unreachable(self, endpoint: URL, error: Exception) -> None:
        self._avoided_until[endpoint] = time.monotonic() + _AVOIDANCE_S
        log.warning("the manager at %s cannot be reached: %s", endpoint, error)


@lru_cache(_MAX_CACHED_TARGETS)
def _target_url(endpoint: URL, raw_target: str) -> URL:
    return URL(f"{endpoint.scheme}://{endpoint.raw_authority}{endpoint.raw_path.rstrip('/')}{raw_target}", encoded=True)


def _signed_headers(
    endpoint: URL, method: str, raw_target: str, keypair: Keypair | None, headers: Mapping[str, str]
) -> dict[str, str]:
    now = datetime.now(UTC)
    date = now.isoformat()
    version = headers.get(VERSION_HEADER, API_VERSION)
    all_headers = {**headers, VERSION_HEADER: version, "Date": date, "Host": endpoint.raw_authority}
    if keypair is not None:
        signed_parts = SignedParts(
            method=method,
            raw_target=endpoint.raw_path.rstrip("/") + raw_target,
            date=date,
            host=endpoint.raw_authority,
            content_type=media_type(headers.get("Content-Type")),
            version=version,
        )
        key = _key_of_day(keypair.secret_key, f"{now:%Y%m%d}", endpoint.raw_authority)
        all_headers["Authorization"] = authorization(keypair.access_key, sign_with_key(signed_parts, key))
    return all_headers


_key_of_day = lru_cache(_MAX_CACHED_KEYS)(derive_key)
