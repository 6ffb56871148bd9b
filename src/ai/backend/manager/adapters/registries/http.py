"""Requests to a registry, which may be down, slow, lying, or in the hands of somebody else.

Answers are bounded, redirects followed by hand: never to a weaker scheme or to addresses that only this machine can
reach, and never with the credentials of another origin. A password goes to the registry itself, and to the token server
that it names only if that is the same host, or is reached by TLS.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import msgspec
from aiohttp.abc import ResolveResult
from yarl import URL

from ai.backend.common.errors import AddressRefused, InvalidInput, NotFound, RegistryRefused, RegistryUnavailable
from ai.backend.infra.http.addresses import is_within
from ai.backend.infra.retry import Backoff
from ai.backend.manager.adapters.callbacks import CheckingResolver
from ai.backend.manager.model.image import ContainerRegistry

CONCURRENCY = 8
MAX_JSON = 8 << 20
_MAX_TOKEN = 1 << 16
_MAX_REDIRECTS = 4
_TRIES = 3
_PAUSE_S, _MAX_PAUSE_S, _JITTER = 0.5, 10.0, 0.5
_TOKEN_LIFE_S, _TOKEN_MARGIN_S = 60.0, 10.0
_TIMEOUT = aiohttp.ClientTimeout(total=60.0, sock_connect=10.0, sock_read=30.0)
_PAIR = re.compile(r'([A-Za-z_]+)\s*=\s*(?:"([^"]*)"|([^\s,]+))')
_ONLY_OURS = tuple(ipaddress.ip_network(n) for n in ("169.254.0.0/16", "fe80::/10", "0.0.0.0/8", "::/128"))
_LOOPBACK = tuple(ipaddress.ip_network(n) for n in ("127.0.0.0/8", "::1/128"))


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer with status 200."""

    url: URL
    headers: Mapping[str, str]
    body: bytes

    def json(self, kind: type[Any]) -> Any:
        """Raises RegistryUnavailable: it is something else."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            raise RegistryUnavailable(f"{self.url.host} answers what it should not: {str(e)[:200]}") from None


class _Again(Exception):
    """Worth another try, after some time."""

    def __init__(self, message: str, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.pause_s = pause_s


def base_of(registry: ContainerRegistry) -> URL:
    """Raises InvalidInput: the configured URL is none of a registry."""
    url = _web_address(registry.url)
    if url is None or url.user or url.query_string:
        raise InvalidInput(f"The registry {registry.name} has no usable URL: http(s)://HOST[:PORT].")
    return url


class _Resolver(CheckingResolver):
    """The configured host may be anywhere; what it leads to may not."""

    def __init__(self, refused: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...], own: str) -> None:
        super().__init__(refused)
        self._own, self._free = own, CheckingResolver(())

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if host == self._own:
            return await self._free.resolve(host, port, family)
        return await super().resolve(host, port, family)

    async def close(self) -> None:
        await self._free.close()
        await super().close()


class RegistryHttp:
    """One registry during one scan. Use as a context manager."""

    def __init__(self, registry: ContainerRegistry) -> None:
        self.base = base_of(registry)
        self._registry = registry
        self._refused = _ONLY_OURS if _is_loopback(self.base) else (*_ONLY_OURS, *_LOOPBACK)
        self._tokens: dict[str, tuple[float, str]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            resolver=_Resolver(self._refused, self.base.host or ""), limit=CONCURRENCY, ssl=self._registry.ssl_verify
        )
        self._http = aiohttp.ClientSession(
            connector=connector,
            timeout=_TIMEOUT,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "backendai-manager"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None:
            await self._http.close()

    async def get(self, path: str | URL, *, accept: str = "application/json", scope: str = "", limit: int = MAX_JSON,
                  basic: bool = False) -> Reply:  # fmt: skip
        """A whole answer; ``scope`` is what a token is asked for, ``basic`` sends the password without being asked.

        Raises:
            NotFound: 404. RegistryRefused: credentials, or any other refusal.
            RegistryUnavailable: no answer after several tries, or too large a one.
        """
        url = self.base.join(path if isinstance(path, URL) else URL(path, encoded=True))
        problem, backoff = "", Backoff(_PAUSE_S, _MAX_PAUSE_S, jitter=_JITTER)
        for number in range(_TRIES):
            try:
                return await self._get(url, accept, scope, limit, basic=basic)
            except _Again as again:
                problem = str(again)
                if number + 1 < _TRIES:
                    delay_s = backoff.next_s()
                    await asyncio.sleep(min(again.pause_s or delay_s, _MAX_PAUSE_S))
        raise RegistryUnavailable(f"{self._registry.name} does not answer: {problem}")

    async def _get(self, url: URL, accept: str, scope: str, limit: int, *, basic: bool) -> Reply:
        headers = {"Accept": accept}
        if authorization := self._known(scope, basic=basic):
            headers["Authorization"] = authorization
        for _ in range(_MAX_REDIRECTS + 2):
            self._check(url)
            mine = headers if url.origin() == self.base.origin() else {"Accept": accept}
            reply = await self._ask(url, mine, limit)
            if reply.status == 401 and "Authorization" not in headers and mine is headers:
                headers["Authorization"] = await self._answer_challenge(reply, scope)
            elif reply.status in (301, 302, 303, 307, 308):
                url = self._redirected(url, reply.headers.get("Location", ""))
            else:
                return self._judge(url, reply)
        raise RegistryRefused(f"{self._registry.name} redirects without end.")

    def _judge(self, url: URL, reply: _Raw) -> Reply:
        name = self._registry.name
        if reply.status == 200:
            return Reply(url, reply.headers, reply.body)
        if reply.status == 404:
            raise NotFound(f"{name} has no {url.path[:200]}.")
        if reply.status in (401, 403):
            who = "the credentials" if self._registry.username else "anonymous requests"
            raise RegistryRefused(f"{name} does not take {who} ({reply.status} for {url.path[:200]}).")
        if reply.status == 429 or reply.status >= 500:
            after = reply.headers.get("Retry-After", "")
            raise _Again(f"status {reply.status}", float(after) if after.isdigit() and len(after) < 6 else 0.0)
        raise RegistryRefused(f"{name} answers {url.path[:200]} with status {reply.status}.")

    async def _ask(self, url: URL, headers: Mapping[str, str], limit: int) -> _Raw:
        assert self._http is not None
        try:
            async with self._http.get(url, headers=headers, allow_redirects=False) as answer:
                body = bytearray()
                async for piece in answer.content.iter_chunked(65_536):
                    body += piece
                    if len(body) > limit:
                        raise RegistryUnavailable(f"{self._registry.name} answers with more than {limit} bytes.")
                return _Raw(answer.status, answer.headers, bytes(body))
        except aiohttp.ClientConnectorCertificateError as e:
            raise RegistryRefused(f"The certificate of {url.host} is not valid: {e.certificate_error}") from None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as e:
            raise _Again(f"{type(e).__name__}: {e}"[:200] if str(e) else type(e).__name__) from None

    # ---- where to

    def _check(self, url: URL) -> None:
        """aiohttp asks no resolver for an address. Raises AddressRefused."""
        try:
            refused = is_within(url.host or "", self._refused)
        except ValueError:
            return
        if refused and url.host != self.base.host:
            raise AddressRefused(f"{self._registry.name} leads to {url.host}, which only this machine can reach.")

    def _redirected(self, url: URL, location: str) -> URL:
        target = _web_address(location, url)
        if not location or target is None or (url.scheme == "https" and target.scheme == "http"):
            raise RegistryRefused(f"{self._registry.name} redirects to where nobody should go: {location[:100]!r}.")
        return target

    # ---- who asks

    def _basic(self) -> str:
        login = f"{self._registry.username}:{self._registry.password}"
        return f"Basic {base64.b64encode(login.encode()).decode()}"

    def _known(self, scope: str, *, basic: bool) -> str | None:
        until, token = self._tokens.get(scope, (0.0, ""))
        if token and time.monotonic() < until:
            return token
        return self._basic() if basic and self._registry.username else None

    async def _answer_challenge(self, reply: _Raw, scope: str) -> str:
        """Raises RegistryRefused: there is no answer to it."""
        scheme, _, rest = reply.headers.get("WWW-Authenticate", "").partition(" ")
        facts = {key.lower(): quoted or plain for key, quoted, plain in _PAIR.findall(rest)}
        if scheme.lower() == "basic" and self._registry.username:
            self._tokens[scope] = (float("inf"), self._basic())
            return self._tokens[scope][1]
        if scheme.lower() != "bearer" or not facts.get("realm"):
            who = "takes no anonymous requests" if not self._registry.username else "does not say how to log in"
            raise RegistryRefused(f"{self._registry.name} {who}.")
        wanted = scope or facts.get("scope", "")
        async with self._locks.setdefault(wanted, asyncio.Lock()):
            if known := self._known(wanted, basic=False):
                return known
            return await self._fetch_token(facts["realm"], facts.get("service", ""), wanted)

    async def _fetch_token(self, realm: str, service: str, scope: str) -> str:
        url = _web_address(realm)
        if url is None or (self.base.scheme == "https" and url.scheme == "http"):
            raise RegistryRefused(f"{self._registry.name} names no usable token server: {realm[:100]!r}.")
        self._check(url)
        query = [("service", service)] if service else []
        query += [("scope", one) for one in scope.split(" ") if one]
        headers = {"Accept": "application/json"}
        if self._registry.username:
            if url.scheme != "https" and url.host != self.base.host:
                raise RegistryRefused(f"The password of {self._registry.name} is not sent to {url.host} in the clear.")
            headers["Authorization"] = self._basic()
        reply = await self._ask(url.update_query(query), headers, _MAX_TOKEN)
        told = self._judge(url, reply).json(_Token)
        token = told.token or told.access_token
        if not token or not token.isprintable():
            raise RegistryRefused(f"The token server of {self._registry.name} gives no token.")
        life_s = min(max(told.expires_in or _TOKEN_LIFE_S, 0.0), 3600.0) - _TOKEN_MARGIN_S
        self._tokens[scope] = (time.monotonic() + life_s, f"Bearer {token}")
        return self._tokens[scope][1]


@dataclass(frozen=True, slots=True)
class _Raw:
    status: int
    headers: Mapping[str, str]
    body: bytes


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""
    expires_in: float | None = None


def _web_address(text: str, base: URL | None = None) -> URL | None:
    """None for what is no http(s) URL."""
    try:
        url = base.join(URL(text)) if base is not None else URL(text)
        return url if url.scheme in ("http", "https") and url.host else None
    except ValueError:
        return None


def _is_loopback(url: URL) -> bool:
    if url.host == "localhost":
        return True
    try:
        return is_within(url.host or "", _LOOPBACK)
    except ValueError:
        return False
