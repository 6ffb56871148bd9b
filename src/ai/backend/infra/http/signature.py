"""Authenticates requests by their signatures (spec 03-07 "API 요청 서명", client wire contract 1.1 and 1.2).

A signature is checked against the raw request target, under every form of the authority, and with or without the digest
of the body. An unknown access key costs the same work as a wrong signature and gets the same reply.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from itertools import product
from typing import Any, Protocol

from aiohttp import web

from ai.backend.common import signing
from ai.backend.common.errors import AuthenticationFailed, InvalidInput
from ai.backend.common.signing import Credential, SignedParts
from ai.backend.infra.http.paths import parse_version

KEY_TTL_S = 0.5
"""The seconds for which a key is cached; with the look-up a revocation takes effect within a second."""
_REFRESH_S = 0.2
_MAX_CACHED_KEYS = 8_192
_REFUSAL_TEXT = "The signature does not match, or there is no such access key."


@dataclass(slots=True, kw_only=True)
class SigningKey:
    """Holds the secret half of an access key.

    ``rate_limit`` is in requests per window, None is unlimited. ``identity`` is the daemon's own record of the key's
    owner. It may be used from ``networks`` that are also ``own_networks``; an empty one is any.
    """

    secret_key: str = field(repr=False)
    is_active: bool
    rate_limit: int | None
    identity: Any
    networks: tuple[str, ...] = ()
    own_networks: tuple[str, ...] = ()


class KeyStore(Protocol):
    """Defines how an authenticator looks up the signing key of an access key."""

    async def find_key(self, access_key: str) -> SigningKey | None: ...


def authorities(host: str) -> tuple[str, ...]:
    """Returns the forms in which a client may have written the authority in its ``host`` header.

    >>> authorities("h")
    ('h', 'h:80', 'h:443')
    """
    host = host.strip().lower()
    bare_host, separator, port = host.rpartition(":")
    if separator and port.isdigit():
        return (host, bare_host) if port in ("80", "443") else (host,)
    return (host, f"{host}:80", f"{host}:443")


@dataclass(eq=False)
class Authenticator:
    """Verifies the signatures of requests.

    ``key_ttl_s`` is the time that a key is cached; zero reads it each time. ``trusted_proxies`` are addresses of peers
    whose ``X-Forwarded-Host`` counts.
    """

    keys: KeyStore
    _: KW_ONLY
    key_ttl_s: float = KEY_TTL_S
    trusted_proxies: frozenset[str] = frozenset()
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        self._cache: dict[str, tuple[float, SigningKey | None]] = {}
        self._derived: dict[tuple[str, str, str, str], bytes] = {}
        self._nobody = SigningKey(secret_key=secrets.token_hex(20), is_active=False, rate_limit=None, identity=None)

    async def authenticate(
        self, request: web.Request, *, method: str, read_body: Callable[[], Awaitable[bytes]]
    ) -> tuple[str, SigningKey]:
        """Returns the access key that signed a request, and the record of that key.

        ``method`` is the one after an override. It must be the signed one: whoever sees a signed POST could otherwise
        turn it into another request. ``read_body`` is called only if the client signed the digest of its body. Raises
        AuthenticationFailed, or InvalidInput for a malformed version header.
        """
        headers = request.headers
        authorization = headers.get("Authorization")
        if authorization is None:
            raise AuthenticationFailed("The Authorization header is missing.")
        credential = signing.parse_authorization(authorization)
        dates = self._signed_dates(request)
        version = headers.get("X-BackendAI-Version")
        if version is None or parse_version(version) is None:
            raise InvalidInput(
                "Tell the API version as X-BackendAI-Version: v7.20230615",
                data={"X-BackendAI-Version": "required" if version is None else "malformed"},
            )
        stored_key = await self._find_key(credential.access_key)
        key = stored_key or self._nobody
        is_matched = self._matches_signature(request, credential, key, method, dates, version, b"")
        if not is_matched and request.body_exists:
            is_matched = self._matches_signature(request, credential, key, method, dates, version, await read_body())
        if not is_matched or stored_key is None:
            raise AuthenticationFailed(_REFUSAL_TEXT)
        if not key.is_active:
            raise AuthenticationFailed("This keypair is not active.")
        return credential.access_key, key

    def forget(self, access_key: str) -> None:
        """Drops the key from the cache."""
        self._cache.pop(access_key, None)

    def _signed_dates(self, request: web.Request) -> list[tuple[str, str]]:
        """Returns each date of the request with its UTC day. Raises AuthenticationFailed if one is too far from the
        present."""
        now = self.clock()
        dates: list[tuple[str, str]] = []
        for header_name in ("Date", "X-BackendAI-Date"):
            date_text = request.headers.get(header_name)
            if date_text is not None:
                date = signing.parse_date(date_text)
                signing.check_skew(date, now=now)
                dates.append((date_text, signing.day_of(date)))
        if not dates:
            raise AuthenticationFailed("The Date header is missing.")
        return dates

    async def _find_key(self, access_key: str) -> SigningKey | None:
        if not self.key_ttl_s:
            return await self.keys.find_key(access_key)
        now = time.monotonic()
        cached_entry = self._cache.get(access_key)
        if cached_entry is not None:
            if now < cached_entry[0]:
                return cached_entry[1]
            # Simultaneous requests use the cached key while this one refreshes it.
            self._cache[access_key] = (now + _REFRESH_S, cached_entry[1])
        key = await self.keys.find_key(access_key)
        if len(self._cache) >= _MAX_CACHED_KEYS:
            self._cache.clear()
        self._cache[access_key] = (now + self.key_ttl_s, key)
        return key

    def _possible_hosts(self, request: web.Request) -> Iterator[str]:
        """Returns the host names for which the request may have been signed.

        A client gains nothing by a forged header, since it must have signed the host.
        """
        forwarded_host = request.headers.get("X-Forwarded-Host")
        if forwarded_host is not None and request.remote in self.trusted_proxies:
            yield from authorities(forwarded_host.partition(",")[0])
        yield from authorities(request.headers.get("Host", ""))

    def _matches_signature(
        self,
        request: web.Request,
        credential: Credential,
        key: SigningKey,
        method: str,
        dates: list[tuple[str, str]],
        version: str,
        body: bytes,
    ) -> bool:
        content_type = signing.media_type(request.headers.get("Content-Type"))
        expected_signature = credential.signature.encode(errors="replace")
        hash_name = credential.hash_name
        for (date, day), host in product(dates, tuple(self._possible_hosts(request))):
            signed_lines = SignedParts(
                method=method,
                raw_target=request.raw_path,
                date=date,
                host=host,
                content_type=content_type,
                version=version,
            )
            key_of_day = self._derive_key(key.secret_key, day, host, hash_name)
            signature = signing.sign_with_key(signed_lines, key_of_day, hash_name=hash_name, body=body)
            if hmac.compare_digest(signature.encode(), expected_signature):
                return True
        return False

    def _derive_key(self, secret: str, day: str, host: str, hash_name: str) -> bytes:
        cache_key = (secret, day, host, hash_name)
        derived_key = self._derived.get(cache_key)
        if derived_key is None:
            if len(self._derived) >= _MAX_CACHED_KEYS:
                self._derived.clear()
            derived_key = self._derived[cache_key] = signing.derive_key(secret, day, host, hash_name)
        return derived_key
