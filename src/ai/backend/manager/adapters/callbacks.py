"""Posts callbacks over HTTP, and not to where the manager alone could reach."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from ai.backend.infra.http.addresses import Network, is_within
from ai.backend.manager.ports.world import CallbackFailed

ID_HEADER = "X-BackendAI-Callback-Id"


class _Refused(OSError):
    """The name leads to a refused address."""


class CheckingResolver(AbstractResolver):
    """Checks what a name resolves to at the moment of connecting, so that a name cannot change its mind in between."""

    def __init__(self, refused: tuple[Network, ...]) -> None:
        self._refused = refused
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        if any(is_within(one["host"], self._refused) for one in found):
            raise _Refused
        return found

    async def close(self) -> None:
        await self._resolver.close()


class HttpCallbackSender:
    """Implements :class:`ai.backend.manager.ports.world.CallbackSender`.

    Redirects are not followed, cookies and proxies of the environment not used, and no body of an answer is read.
    """

    def __init__(self, *, refused_networks: Iterable[str], timeout_s: float) -> None:
        self._refused = tuple(ipaddress.ip_network(text) for text in refused_networks)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._http: aiohttp.ClientSession | None = None

    async def send(self, url: str, callback_id: int, body: Mapping[str, Any]) -> None:
        headers = {"User-Agent": "backendai-manager", ID_HEADER: str(callback_id)}
        try:
            self._check_literal(url)
            async with self._session().post(url, json=body, headers=headers, allow_redirects=False) as reply:
                if not 200 <= reply.status < 300:
                    raise CallbackFailed(f"status {reply.status}")
        except aiohttp.ClientConnectorError as e:
            if isinstance(e.os_error, _Refused):
                raise _refusal() from None
            raise CallbackFailed(type(e).__name__) from None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as e:  # their texts may hold the URL
            raise CallbackFailed(type(e).__name__) from None

    def _check_literal(self, url: str) -> None:
        """aiohttp asks no resolver for an address."""
        host = urlsplit(url).hostname or ""
        try:
            refused = is_within(host, self._refused)
        except ValueError:
            return
        if refused:
            raise _refusal()

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            connector = aiohttp.TCPConnector(resolver=CheckingResolver(self._refused), force_close=True, limit=0)
            self._http = aiohttp.ClientSession(
                connector=connector, timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._http

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None


def _refusal() -> CallbackFailed:
    return CallbackFailed("its address is in one of callbacks.refused-networks", may_pass=False)
