"""Sends requests to a container registry, which may be down, slow or hostile.

The manager scans registries by it, and kube-acc fetches images for devices.

Replies are bounded. Redirects never lead to a weaker scheme or to addresses that only this machine can reach, and never
carry the credentials of another origin. A password is sent to the registry itself, and to the token server that it
names only if that is the same host or is reached by TLS.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol, Self

import aiohttp
import msgspec
from yarl import URL

from ai.backend.common.errors import AddressRefused, InvalidInput, NotFound, RegistryRefused, RegistryUnavailable
from ai.backend.infra.http.addresses import is_within
from ai.backend.infra.http.outbound import (
    LINK_LOCAL,
    LOOPBACK,
    CertificateRefused,
    OutboundClient,
    OutboundFailed,
    RedirectRefused,
    Response,
    ResponseTooLarge,
    check_plain,
    parse_url,
)
from ai.backend.infra.retry import Backoff

CONCURRENCY = 8
JSON_LIMIT = 8 << 20
_MAX_TOKEN_BYTES = 1 << 16
_MAX_REDIRECTS = 4
_MAX_TRIES = 3
_FIRST_PAUSE_S, _MAX_PAUSE_S, _PAUSE_JITTER = 0.5, 10.0, 0.5
_TOKEN_LIFE_S, _TOKEN_MARGIN_S = 60.0, 10.0
_REQUEST_LIMIT_S = 60.0
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=30.0)
_CHALLENGE_PAIR = re.compile(r'([A-Za-z_]+)\s*=\s*(?:"([^"]*)"|([^\s,]+))')


class Reply(msgspec.Struct, frozen=True):
    """Holds a registry's whole reply with status 200."""

    url: URL
    headers: Mapping[str, str]
    body: bytes

    def json(self, kind: type[Any]) -> Any:
        """Decodes the body. Raises RegistryUnavailable if it is malformed."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            raise RegistryUnavailable(f"{self.url.host} answers what it should not: {str(e)[:200]}") from None


class RegistryAccess(Protocol):
    """Describes a registry and the account there. An empty ``username`` sends anonymous requests."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def username(self) -> str: ...
    @property
    def password(self) -> str: ...
    @property
    def ssl_verify(self) -> bool: ...


class _Retryable(Exception):
    def __init__(self, message: str, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.pause_s = pause_s


def base_of(registry: RegistryAccess) -> URL:
    """Returns the configured URL of a registry. Raises InvalidInput if it is not usable."""
    try:
        url = parse_url(registry.url)
    except AddressRefused:
        url = None
    if url is None or url.query_string:
        raise InvalidInput(f"The registry {registry.name} has no usable URL: http(s)://HOST[:PORT].")
    return url


class RegistryHttp:
    """Sends requests to one container registry. Use it as an async context manager.

    The configured host may be at any address, unless ``client`` is given, which judges addresses by itself and is left
    open.
    """

    def __init__(self, registry: RegistryAccess, *, client: OutboundClient | None = None) -> None:
        self.base = base_of(registry)
        self._registry = registry
        self._tokens: dict[str, tuple[float, str]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._is_owner = client is None
        self._client = client or OutboundClient(
            refused=LINK_LOCAL if _is_loopback(self.base) else (*LINK_LOCAL, *LOOPBACK),
            timeout=_TIMEOUT,
            allowed_hosts=(self.base.host or "",),
            connections=CONCURRENCY,
            ssl=registry.ssl_verify,
            user_agent="backendai-manager",
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._is_owner:
            await self._client.close()

    async def get(self, path: str | URL, *, accept: str = "application/json", scope: str = "", limit: int = JSON_LIMIT,
                  basic: bool = False) -> Reply:  # fmt: skip
        """Returns a whole reply. ``scope`` is the scope of the token. ``basic`` sends the password without a challenge.

        Raises NotFound; RegistryRefused: of the credentials, or any other refusal; RegistryUnavailable: no reply after
        several tries, or too large a one.
        """
        url = self.base.join(path if isinstance(path, URL) else URL(path, encoded=True))
        last_problem, backoff = "", Backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S, jitter=_PAUSE_JITTER)
        for attempt in range(_MAX_TRIES):
            try:
                return await self._get(url, accept, scope, limit, basic=basic)
            except _Retryable as failure:
                last_problem = str(failure)
                if attempt + 1 < _MAX_TRIES:
                    delay_s = backoff.next_s()
                    await asyncio.sleep(min(failure.pause_s or delay_s, _MAX_PAUSE_S))
        raise RegistryUnavailable(f"{self._registry.name} does not answer: {last_problem}")

    async def _get(self, url: URL, accept: str, scope: str, limit: int, *, basic: bool) -> Reply:
        headers = {"Accept": accept}
        if authorization := self._cached_authorization(scope, basic=basic):
            headers["Authorization"] = authorization
        reply = await self._send(url, headers, limit)
        is_own_origin = reply.url.origin() == self.base.origin()
        if reply.status == 401 and "Authorization" not in headers and is_own_origin:
            headers["Authorization"] = await self._answer_challenge(reply, scope)
            reply = await self._send(url, headers, limit)
        return self._check_reply(reply.url, reply)

    @asynccontextmanager
    async def stream(
        self, path: str, *, scope: str = "", headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yields an unread response of status 200, or of status 206 or 416 if a range was requested.

        Raises as :meth:`get`, after one try.
        """
        url = self.base.join(URL(path, encoded=True))
        sent_headers = dict(headers or {})
        for is_second_try in (False, True):
            if authorization := self._cached_authorization(scope, basic=False):
                sent_headers["Authorization"] = authorization
            try:
                request = self._client.request("GET", url, headers=sent_headers, max_redirects=_MAX_REDIRECTS)
                async with request as response:
                    reply = Response(response.url, response.status, response.headers, b"")
                    is_own_origin = response.url.origin() == self.base.origin()
                    if reply.status != 401 or is_second_try or not is_own_origin or "Authorization" in sent_headers:
                        if reply.status not in (206, 416) or "Range" not in sent_headers:
                            self._check_reply(reply.url, reply)
                        check_plain(response)
                        yield response
                        return
            except (CertificateRefused, RedirectRefused) as e:
                raise RegistryRefused(str(e)) from None
            except (OutboundFailed, _Retryable) as e:
                raise RegistryUnavailable(f"{self._registry.name} does not answer: {e}") from None
            sent_headers["Authorization"] = await self._answer_challenge(reply, scope)

    def _check_reply(self, url: URL, reply: Response) -> Reply:
        registry_name = self._registry.name
        if reply.status == 200:
            return Reply(url, reply.headers, reply.body)
        if reply.status == 404:
            raise NotFound(f"{registry_name} has no {url.path[:200]}.")
        if reply.status in (401, 403):
            refused_text = "the credentials" if self._registry.username else "anonymous requests"
            raise RegistryRefused(
                f"{registry_name} does not take {refused_text} ({reply.status} for {url.path[:200]})."
            )
        if reply.status == 429 or reply.status >= 500:
            retry_after = reply.headers.get("Retry-After", "")
            raise _Retryable(
                f"status {reply.status}", float(retry_after) if retry_after.isdigit() and len(retry_after) < 6 else 0.0
            )
        raise RegistryRefused(f"{registry_name} answers {url.path[:200]} with status {reply.status}.")

    async def _send(self, url: URL, headers: Mapping[str, str], limit: int) -> Response:
        try:
            return await self._client.read(
                "GET", url, headers=headers, limit=limit, max_redirects=_MAX_REDIRECTS, timeout_s=_REQUEST_LIMIT_S
            )
        except (CertificateRefused, RedirectRefused) as e:
            raise RegistryRefused(str(e)) from None
        except ResponseTooLarge as e:
            raise RegistryUnavailable(str(e)) from None
        except OutboundFailed as e:
            raise _Retryable(str(e)) from None

    def _basic_authorization(self) -> str:
        user_and_password = f"{self._registry.username}:{self._registry.password}"
        return f"Basic {base64.b64encode(user_and_password.encode()).decode()}"

    def _cached_authorization(self, scope: str, *, basic: bool) -> str | None:
        expires_at, token = self._tokens.get(scope, (0.0, ""))
        if token and time.monotonic() < expires_at:
            return token
        return self._basic_authorization() if basic and self._registry.username else None

    async def _answer_challenge(self, reply: Response, scope: str) -> str:
        """Returns the authorization header that a registry's challenge demands.

        Raises RegistryRefused if there is none.
        """
        scheme, _, parameters = reply.headers.get("WWW-Authenticate", "").partition(" ")
        challenge = {
            key.lower(): quoted_value or plain_value
            for key, quoted_value, plain_value in _CHALLENGE_PAIR.findall(parameters)
        }
        if scheme.lower() == "basic" and self._registry.username:
            self._tokens[scope] = (float("inf"), self._basic_authorization())
            return self._tokens[scope][1]
        if scheme.lower() != "bearer" or not challenge.get("realm"):
            refusal = "takes no anonymous requests" if not self._registry.username else "does not say how to log in"
            raise RegistryRefused(f"{self._registry.name} {refusal}.")
        scope = scope or challenge.get("scope", "")
        async with self._locks.setdefault(scope, asyncio.Lock()):
            cached_authorization = self._cached_authorization(scope, basic=False)
            return cached_authorization or await self._fetch_token(
                challenge["realm"], challenge.get("service", ""), scope
            )

    async def _fetch_token(self, realm: str, service: str, scope: str) -> str:
        try:
            url = parse_url(realm)
        except AddressRefused:
            url = None
        if url is None or (self.base.scheme == "https" and url.scheme == "http"):
            raise RegistryRefused(f"{self._registry.name} names no usable token server: {realm[:100]!r}.")
        query_pairs = [("service", service)] if service else []
        query_pairs += [("scope", token_scope) for token_scope in scope.split(" ") if token_scope]
        headers = {"Accept": "application/json"}
        if self._registry.username:
            if url.scheme != "https" and url.host != self.base.host:
                raise RegistryRefused(f"The password of {self._registry.name} is not sent to {url.host} in the clear.")
            headers["Authorization"] = self._basic_authorization()
        reply = await self._send(url.update_query(query_pairs), headers, _MAX_TOKEN_BYTES)
        document = self._check_reply(url, reply).json(_TokenReply)
        token = document.token or document.access_token
        if not token or not token.isprintable():
            raise RegistryRefused(f"The token server of {self._registry.name} gives no token.")
        life_s = min(max(document.expires_in or _TOKEN_LIFE_S, 0.0), 3600.0) - _TOKEN_MARGIN_S
        self._tokens[scope] = (time.monotonic() + life_s, f"Bearer {token}")
        return self._tokens[scope][1]


class _TokenReply(msgspec.Struct):
    token: str = ""
    access_token: str = ""
    expires_in: float | None = None


def _is_loopback(url: URL) -> bool:
    if url.host == "localhost":
        return True
    try:
        return is_within(url.host or "", LOOPBACK)
    except ValueError:
        return False
