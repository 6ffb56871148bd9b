"""Sends requests to URLs that users and other servers name, guarded against access to internal services (SSRF).

The guard checks the address of every socket right before it is connected, so neither spelling, name resolution nor
redirects evade it. Bodies are bounded, compression is refused, cookies and proxies of the environment are not used.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver
from yarl import URL

from ai.backend.common.errors import AddressRefused
from ai.backend.infra.http.addresses import Network, is_within

REDIRECT_STATUSES = (301, 302, 303, 307, 308)
READ_BYTES = 1 << 18
_MAX_ANSWER_S = 60.0
"""The timeout in seconds of a whole small response."""


def parse_networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(network_text) for network_text in texts)


LOOPBACK = parse_networks("127.0.0.0/8", "::1/128")
LINK_LOCAL = parse_networks(
    *("0.0.0.0/8", "169.254.0.0/16", "::/128", "fe80::/10"),
    *("100.100.100.200/32", "fd00:ec2::254/128", "fd20:ce::254/128"),  # Alibaba Cloud, AWS, Google Cloud
)
"""Networks of this machine or its link, which include the metadata services of clouds, and further such services."""
NOT_PUBLIC = parse_networks(
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
    *("192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
    *("::/16", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16"),
    *("fc00::/7", "fe80::/9", "ff00::/8"),
)
"""Networks of the special-purpose registries of IANA, in which no public host has an address."""
_NAT64_NETWORK = ipaddress.IPv6Network("64:ff9b::/96")


class OutboundFailed(Exception):
    """Raised when a request got no usable response. The text names the host, and neither path nor query of the URL."""


class RedirectRefused(OutboundFailed):
    """Raised when a redirect leads to a weaker scheme or nowhere, or when there are too many redirects."""


class CertificateRefused(OutboundFailed):
    """Raised when the certificate of the server is not valid."""


class ResponseTooLarge(OutboundFailed):
    """Raised when a body is longer than its limit."""


class _SocketRefused(OSError):
    """Raised when a socket would connect to a blocked address."""

    def __str__(self) -> str:  # aiohttp merges the errors of several addresses unless they read the same
        return "refused address"


class AddressGuard(msgspec.Struct, frozen=True):
    """Opens sockets, except to addresses in blocked networks."""

    refused: tuple[Network, ...]

    def refuses(self, address: str) -> bool:
        """Returns True if an address or its embedded IPv4 address is blocked, or if a text is no address."""
        try:
            ip_address = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return True
        return any(
            is_within(address_text, self.refused) for address_text in (str(ip_address), *_embedded_ipv4(ip_address))
        )

    def open_socket(self, info: aiohttp.AddrInfoType) -> socket.socket:
        """Opens a socket for aiohttp's connector, unless the address is blocked.

        Raises OSError for a blocked address.
        """
        family, socket_type, protocol, _, address = info
        if self.refuses(str(address[0])):
            raise _SocketRefused
        return socket.socket(family=family, type=socket_type, proto=protocol)


def _embedded_ipv4(ip_address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> Iterable[str]:
    if isinstance(ip_address, ipaddress.IPv4Address):
        return ()
    embedded_address = (
        ip_address.ipv4_mapped
        or ip_address.sixtofour
        or (ip_address.teredo[1] if ip_address.teredo is not None else None)
    )
    if embedded_address is None and ip_address in _NAT64_NETWORK:
        embedded_address = ipaddress.IPv4Address(int(ip_address) & 0xFFFFFFFF)
    return (str(embedded_address),) if embedded_address is not None else ()


class Response(msgspec.Struct, frozen=True):
    """Holds a whole HTTP response. ``url`` is the URL after redirects."""

    url: URL
    status: int
    headers: Mapping[str, str]
    body: bytes


def parse_url(text: str, base: URL | None = None, *, with_credentials: bool = False) -> URL:
    """Parses an http(s) URL, relative to ``base`` if there is one. Raises AddressRefused, also for unexpected
    credentials."""
    try:
        url = URL(text) if base is None else base.join(URL(text))
    except ValueError:
        raise AddressRefused("That is no URL.", data={"url": text[:128]}) from None
    has_credentials = url.user is not None or url.password is not None
    if url.scheme not in ("http", "https") or not url.host or (has_credentials and not with_credentials):
        raise AddressRefused("Only http(s) URLs without credentials are used.", data={"scheme": url.scheme[:32]})
    return url


@dataclass(eq=False, kw_only=True)
class OutboundClient:
    """Sends requests through the address guard.

    Attributes:
        refused: networks to which nothing is connected.
        allowed_hosts: names, addresses or ``*.domain`` that are connected at any address.
        only_allowed: refuses every other host.
        ssl: False accepts any certificate; a context decides itself.
        user_agent: None sends aiohttp's own.
    """

    refused: Iterable[Network]
    timeout: aiohttp.ClientTimeout
    allowed_hosts: Sequence[str] = ()
    only_allowed: bool = False
    connections: int = 64
    ssl: bool | SSLContext = True
    user_agent: str | None = None
    keeps_alive: bool = True
    resolver: AbstractResolver | None = None

    def __post_init__(self) -> None:
        self._guard = AddressGuard(tuple(self.refused))
        self._allowed = tuple(pattern.lower() for pattern in self.allowed_hosts)
        self._headers = {"Accept-Encoding": "identity"}
        if self.user_agent is not None:
            self._headers["User-Agent"] = self.user_agent
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    def is_allowed(self, host: str) -> bool:
        """Returns True if a host is allowed by its name, whatever its address is."""
        host = host.lower().rstrip(".")
        return any(
            host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern for pattern in self._allowed
        )

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: URL,
        *,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        body: bytes | None = None,
        max_redirects: int = 0,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends a request and yields the unread response. Follows at most ``max_redirects`` redirects. 0 yields a
        redirect itself.

        ``Authorization`` is sent to the first origin only. Raises AddressRefused for a blocked address, and
        OutboundFailed if there is no response or it stalls, also while the body is read.
        """
        sent_headers = dict(headers or {})
        try:
            for _ in range(max_redirects + 1):
                session = self._session(url)
                async with session.request(
                    method, url, headers=sent_headers, json=json, data=body, allow_redirects=False
                ) as response:
                    if max_redirects == 0 or response.status not in REDIRECT_STATUSES:
                        yield response
                        return
                    target_url = _redirect_target(response)
                if target_url.origin() != url.origin():
                    sent_headers.pop("Authorization", None)
                url = target_url
            raise RedirectRefused(f"{url.host} redirects more than {max_redirects} times.")
        except aiohttp.ClientConnectorCertificateError as e:
            raise CertificateRefused(f"The certificate of {url.host} is not valid: {e.certificate_error}") from None
        except aiohttp.ClientConnectorError as e:
            if isinstance(e.os_error, _SocketRefused):
                raise self._address_error(url) from None
            raise OutboundFailed(f"{url.host} does not answer: {e.os_error.strerror or type(e).__name__}.") from None
        except aiohttp.InvalidURL:  # aiohttp refuses some spellings of addresses itself
            raise self._address_error(url) from None
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as e:
            raise OutboundFailed(f"{url.host} does not answer: {type(e).__name__}.") from None

    async def read(
        self,
        method: str,
        url: URL,
        *,
        limit: int,
        headers: Mapping[str, str] | None = None,
        max_redirects: int = 0,
        timeout_s: float = _MAX_ANSWER_S,
    ) -> Response:
        """Returns a whole response, whose body has at most ``limit`` bytes. Raises as :meth:`request` does."""
        try:
            async with (
                asyncio.timeout(timeout_s),
                self.request(method, url, headers=headers, max_redirects=max_redirects) as response,
            ):
                check_plain(response)
                body = bytearray()
                async for chunk in response.content.iter_chunked(READ_BYTES):
                    body += chunk
                    if len(body) > limit:
                        raise ResponseTooLarge(f"{response.url.host} answers more than {limit} bytes.")
                return Response(response.url, response.status, response.headers, bytes(body))
        except TimeoutError:
            raise OutboundFailed(f"{url.host} answers too slowly.") from None

    async def close(self) -> None:
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await session.close()

    def _session(self, url: URL) -> aiohttp.ClientSession:
        """Returns the HTTP session for a host. Allowed hosts have their own connections without the guard."""
        is_allowed = self.is_allowed(url.host or "")
        if self.only_allowed and not is_allowed:
            raise self._address_error(url)
        if is_allowed not in self._sessions:
            connector = aiohttp.TCPConnector(
                resolver=self.resolver or aiohttp.ThreadedResolver(),
                socket_factory=None if is_allowed else self._guard.open_socket,
                happy_eyeballs_delay=None,  # one address after the other, so that errors keep their type
                limit=self.connections,
                ssl=self.ssl,
                force_close=not self.keeps_alive,
            )
            self._sessions[is_allowed] = aiohttp.ClientSession(
                connector=connector,
                timeout=self.timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                headers=self._headers,
            )
        return self._sessions[is_allowed]

    def _address_error(self, url: URL) -> AddressRefused:
        host = (url.host or "")[:128]
        reason = "is none of the allowed hosts" if self.only_allowed else "is at an address that must not be reached"
        return AddressRefused(f"{host} {reason}.", data={"host": host})


def check_plain(response: aiohttp.ClientResponse) -> None:
    """Raises OutboundFailed if the body is compressed although the request did not permit compression."""
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise OutboundFailed(f"{response.url.host} compresses what was requested as it is.")


def _redirect_target(response: aiohttp.ClientResponse) -> URL:
    location = response.headers.get("Location", "")
    target = parse_url(location, response.url)
    if not location or (response.url.scheme == "https" and target.scheme == "http"):
        raise RedirectRefused(f"{response.url.host} redirects to a weaker address: {location[:100]!r}.")
    return target
