"""Fetches from registries over HTTP, only from allowed hosts and never more than announced.

A registry is not trusted: its URLs and redirects may lead to machines that only this proxy can reach, and its responses
may have no end. So all requests use :mod:`ai.backend.infra.http.outbound`, and sizes are counted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from ai.backend.common.errors import (
    ArtifactChanged,
    ArtifactDamaged,
    ArtifactNotFound,
    RegistryRefused,
    RegistryUnavailable,
)
from ai.backend.infra.http.outbound import (
    NOT_PUBLIC,
    READ_BYTES,
    OutboundClient,
    OutboundFailed,
    Response,
    check_plain,
    parse_url,
)

MAX_REDIRECTS = 5
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=30.0)


class RangeIgnored(Exception):
    """Raised when the server sends the whole file instead of the requested range."""


class Fetcher:
    """Sends GET requests to ``allowed_hosts`` (names, addresses, ``*.domain``), or if empty, to any public address."""

    def __init__(self, allowed_hosts: Sequence[str]) -> None:
        self._client = OutboundClient(
            refused=NOT_PUBLIC, timeout=_TIMEOUT, allowed_hosts=allowed_hosts, only_allowed=bool(allowed_hosts)
        )

    async def stop(self) -> None:
        await self._client.close()

    @asynccontextmanager
    async def get(self, url: str | URL, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """Returns the response to a GET after redirects; ``Authorization`` stays with the first origin.

        Raises AddressRefused: the URL or a redirect leads to a refused address; RegistryUnavailable: the server does
        not respond in time, also while the body is read.
        """
        try:
            request = self._client.request("GET", parse_url(str(url)), headers=headers, max_redirects=MAX_REDIRECTS)
            async with request as response:
                check_plain(response)
                yield response
        except OutboundFailed as e:
            raise RegistryUnavailable(str(e)) from None

    async def read(self, url: str | URL, headers: Mapping[str, str], *, limit: int, follow: bool = True) -> Response:
        """Returns a whole response, whose body has at most ``limit`` bytes. Raises as :meth:`get` does."""
        next_url, max_redirects = parse_url(str(url)), MAX_REDIRECTS if follow else 0
        try:
            return await self._client.read("GET", next_url, headers=headers, limit=limit, max_redirects=max_redirects)
        except OutboundFailed as e:
            raise RegistryUnavailable(str(e)) from None

    async def file(
        self, url: str | URL, headers: Mapping[str, str], *, offset: int, size: int
    ) -> AsyncGenerator[bytes, None]:
        """Downloads a file of ``size`` bytes and yields its bytes from ``offset`` on.

        Yields all of them unless it raises.

        Raises RangeIgnored: only from the beginning; ArtifactChanged, ArtifactDamaged: it has another size;
        ArtifactNotFound, RegistryRefused, and as :meth:`get` does.
        """
        range_headers = {**headers, "Range": f"bytes={offset}-"} if offset else headers
        async with self.get(url, range_headers) as response:
            raise_for(response.status, response.url.host)
            if offset:
                if response.status != 206:
                    raise RangeIgnored
                if response.headers.get("Content-Range", "") != f"bytes {offset}-{size - 1}/{size}":
                    raise ArtifactChanged("A file has another size than was announced.", data={"size": size})
            elif response.status != 200:
                raise RegistryUnavailable(f"{response.url.host} answers {response.status}.")
            remaining_bytes = size - offset
            if response.content_length is not None and response.content_length != remaining_bytes:
                raise ArtifactDamaged(f"A file has {offset + response.content_length} bytes, not {size}.")
            async for part in response.content.iter_chunked(READ_BYTES):
                remaining_bytes -= len(part)
                if remaining_bytes < 0:
                    raise ArtifactDamaged(f"A file has more than the {size} bytes that were announced.")
                yield part
            if remaining_bytes:
                raise RegistryUnavailable(f"{response.url.host} broke off in the middle of a file.")


def raise_for(status: int, host: str | None) -> None:
    """Raises ArtifactNotFound, RegistryRefused, RegistryUnavailable for a status from 400 on."""
    if status in (401, 403, 407):
        raise RegistryRefused(f"{host} answers {status}.")
    if status in (404, 410):
        raise ArtifactNotFound(f"{host} has no such thing.")
    if status >= 400:
        raise RegistryUnavailable(f"{host} answers {status}.")
