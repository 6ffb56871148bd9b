"""HTTP to registries: only where we may go, and never more than was announced.

A registry is not trusted: its URLs and redirects may lead to machines that only we can reach, and its answers may have
no end. So every address is judged as it is connected to, redirects are followed one by one, compression is refused, and
sizes are counted.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from ai.backend.common.errors import (
    AddressRefused,
    ArtifactChanged,
    ArtifactDamaged,
    ArtifactNotFound,
    RegistryRefused,
    RegistryUnavailable,
)

MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_READ_BYTES = 1 << 18
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=30.0)
_ANSWER_S = 60.0
"""For a small answer as a whole."""


def is_public(address: str) -> bool:
    """Whether an IP address is one of the internet: not ours, nor one that leads to ours in disguise."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo and found.teredo[1])
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner:
            return inner.is_global and not inner.is_multicast
    return found.is_global and not found.is_multicast


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


class _PublicResolver(AbstractResolver):
    """Finds public addresses only; of hosts that are allowed by name, any."""

    def __init__(self, allowed: AllowedHosts) -> None:
        self._allowed = allowed
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if self._allowed.names(host):
            return found
        public = [one for one in found if is_public(one["host"])]
        if not public:
            raise AddressRefused(
                f"{host[:128]} is at no public address; `allowed-hosts` of [artifacts] can name it.",
                data={"host": host[:128]},
            )
        return public

    async def close(self) -> None:
        await self._inner.close()


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """``patterns`` are names, addresses, or ``*.domain``; none at all: any host at a public address."""

    patterns: Sequence[str]

    def names(self, host: str) -> bool:
        """Whether the host is allowed by name, wherever it is."""
        host = host.lower().rstrip(".")
        return any(
            host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern
            for pattern in map(str.lower, self.patterns)
        )

    def check(self, url: URL) -> URL:
        """Return ``url``. Raises AddressRefused: no http(s), a host that is not allowed, or an address of ours."""
        host = url.host or ""
        if url.scheme not in ("http", "https") or not host or url.user or url.password:
            raise AddressRefused("Only http(s) URLs without credentials are fetched.", data={"scheme": url.scheme[:32]})
        if self.names(host):
            return url
        looks_numeric = ":" in host or host.replace(".", "").isdigit()  # the HTTP library resolves none of these
        if self.patterns or (looks_numeric and not (_is_address(host) and is_public(host))):
            raise AddressRefused(
                f"{host[:128]} is not among the hosts that `allowed-hosts` of the storage proxy's [artifacts] names.",
                data={"host": host[:128]},
            )
        return url


class RangeIgnored(Exception):
    """The server sends all of the file though a part was asked for."""


def parse_url(text: str) -> URL:
    """Raises AddressRefused."""
    try:
        return URL(text)
    except ValueError:
        raise AddressRefused("That is no URL.", data={"url": text[:128]}) from None


class Fetcher:
    """Args: allowed_hosts: see :class:`AllowedHosts`."""

    def __init__(self, allowed_hosts: Sequence[str]) -> None:
        self.allowed = AllowedHosts(tuple(allowed_hosts))
        self._http: aiohttp.ClientSession | None = None

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(resolver=_PublicResolver(self.allowed), limit=64, ttl_dns_cache=60),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=_TIMEOUT,
                headers={"Accept-Encoding": "identity"},
            )
        return self._http

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    @asynccontextmanager
    async def get(
        self, url: str | URL, headers: Mapping[str, str], *, follow: bool = True
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a GET, after redirects; ``Authorization`` stays with the first origin.

        Raises:
            AddressRefused: it leads where we do not go.
            RegistryUnavailable: nobody answers, or nothing comes for some time, also while the body is read.
        """
        at = self.allowed.check(parse_url(url) if isinstance(url, str) else url)
        sent = dict(headers)
        try:
            for _ in range(MAX_REDIRECTS + 1):
                async with self._session().get(at, headers=sent, allow_redirects=False) as response:
                    if not follow or response.status not in _REDIRECTS:
                        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                            raise RegistryUnavailable(f"{at.host} compresses what was asked for as it is.")
                        yield response
                        return
                    to = self.allowed.check(at.join(parse_url(response.headers.get("Location", ""))))
                if to.origin() != at.origin():
                    sent.pop("Authorization", None)
                at = to
        except aiohttp.ClientConnectorError as e:
            if isinstance(e.__cause__, AddressRefused):
                raise e.__cause__ from None
            raise RegistryUnavailable(f"{at.host} does not answer: {e.os_error.strerror or e}.") from None
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as e:
            raise RegistryUnavailable(f"{at.host} does not answer: {type(e).__name__}.") from None
        raise RegistryUnavailable(f"{at.host} redirects more than {MAX_REDIRECTS} times.")

    async def answer(
        self, url: str | URL, headers: Mapping[str, str], *, limit: int, follow: bool = True
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body, which has at most ``limit`` bytes. Raises as :meth:`get` does."""
        try:
            async with asyncio.timeout(_ANSWER_S), self.get(url, headers, follow=follow) as response:
                body = bytearray()
                async for part in response.content.iter_chunked(_READ_BYTES):
                    body += part
                    if len(body) > limit:
                        raise RegistryUnavailable(f"{response.url.host} answers more than {limit} bytes.")
                return response.status, dict(response.headers), bytes(body)
        except TimeoutError:
            raise RegistryUnavailable("The registry answers too slowly.") from None

    async def file(
        self, url: str | URL, headers: Mapping[str, str], *, offset: int, size: int
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of a file of ``size`` bytes from ``offset`` on: exactly so many, or an error. Close it.

        Raises:
            RangeIgnored: only from the beginning.
            ArtifactChanged, ArtifactDamaged: it has another size.
            ArtifactNotFound, RegistryRefused, and as :meth:`get` does.
        """
        asked = {**headers, "Range": f"bytes={offset}-"} if offset else headers
        async with self.get(url, asked) as response:
            raise_for(response.status, response.url.host)
            if offset:
                if response.status != 206:
                    raise RangeIgnored
                if response.headers.get("Content-Range", "") != f"bytes {offset}-{size - 1}/{size}":
                    raise ArtifactChanged("A file has another size than was announced.", data={"size": size})
            elif response.status != 200:
                raise RegistryUnavailable(f"{response.url.host} answers {response.status}.")
            left = size - offset
            if response.content_length is not None and response.content_length != left:
                raise ArtifactDamaged(f"A file has {offset + response.content_length} bytes, not {size}.")
            async for part in response.content.iter_chunked(_READ_BYTES):
                left -= len(part)
                if left < 0:
                    raise ArtifactDamaged(f"A file has more than the {size} bytes that were announced.")
                yield part
            if left:
                raise RegistryUnavailable(f"{response.url.host} broke off in the middle of a file.")


def raise_for(status: int, host: str | None) -> None:
    """Raises ArtifactNotFound, RegistryRefused, RegistryUnavailable for a status from 400 on."""
    if status in (401, 403, 407):
        raise RegistryRefused(f"{host} answers {status}.")
    if status in (404, 410):
        raise ArtifactNotFound(f"{host} has no such thing.")
    if status >= 400:
        raise RegistryUnavailable(f"{host} answers {status}.")
