"""Authenticates requests by their signatures.

Source: spec 03-07 ("API 요청 서명"), client wire contract 1.1 and 1.2. A signature is checked against the raw request
target, under every form that a client may have written the authority in, and with or without the digest of the body. An
unknown access key costs the same work as a wrong signature and gets the same answer.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from aiohttp import web

from ai.backend.common.errors import AuthenticationFailed, InvalidInput
from ai.backend.common.signing import (
    Credential,
    SignedParts,
    check_skew,
    derive_key,
    media_type,
    parse_authorization,
    parse_date,
    sign_with_key,
)
from ai.backend.infra.http.paths import parse_version

KEY_TTL_S = 0.5
"""The seconds for which a key is cached; with the look-up a revocation takes effect within a second."""
_REFRESH_S = 0.2
_MAX_CACHED = 8_192
_REFUSAL = "The signature does not match, or there is no such access key."


@dataclass(slots=True, kw_only=True)
class SigningKey:
    """The secret half of an access key.

    Attributes:
        rate_limit: requests per window; None is unlimited.
        identity: the daemon's own view of whose key it is.
        networks: whence it may sign; empty is from anywhere.
    """

    secret_key: str = field(repr=False)
    is_active: bool
    rate_limit: int | None
    identity: Any
    networks: tuple[str, ...] = ()


class KeyStore(Protocol):
    """Looks up keys for an authenticator."""

    async def find_key(self, access_key: str) -> SigningKey | None: ...


def authorities(host: str) -> tuple[str, ...]:
    """Returns the forms in which a client may have written the authority that it sends as ``host``.

    >>> authorities("h")
    ('h', 'h:80', 'h:443')
    >>> authorities("H:80")
    ('h:80', 'h')
    """
    host = host.strip().lower()
    bare, colon, port = host.rpartition(":")
    if colon and port.isdigit():
        return (host, bare) if port in ("80", "443") else (host,)
    return (host, f"{host}:80", f"{host}:443")


class Authenticator:
    """Verifies signatures.

    Args:
        keys: where keys are found.
        key_ttl_s: how long an answer of ``keys`` is believed; zero asks every time.
        trusted_proxies: addresses of peers whose ``X-Forwarded-Host`` counts.
        clock: tells the present in UTC.
    """

    def __init__(
        self,
        keys: KeyStore,
        *,
        key_ttl_s: float = KEY_TTL_S,
        trusted_proxies: frozenset[str] = frozenset(),
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._keys = keys
        self._ttl_s = key_ttl_s
        self._proxies = trusted_proxies
        self._clock = clock
        self._cache: dict[str, tuple[float, SigningKey | None]] = {}
        self._derived: dict[tuple[str, str, str, str], bytes] = {}
        self._nobody = SigningKey(secret_key=secrets.token_hex(20), is_active=False, rate_limit=None, identity=None)

    async def authenticate(
        self, request: web.Request, *, method: str, read_body: Callable[[], Awaitable[bytes]]
    ) -> tuple[str, SigningKey]:
        """Returns the access key that signed a request, and its record.

        Args:
            method: as it is after an override; the method on the wire is admitted as well.
            read_body: called only if the client signed the digest of its body.

        Raises:
            AuthenticationFailed: no, malformed, stale or wrong credentials, or an inactive key.
            InvalidInput: the version header is missing or malformed.
        """
        headers = request.headers
        header = headers.get("Authorization")
        if header is None:
            raise AuthenticationFailed("The Authorization header is missing.")
        credential = parse_authorization(header)
        dates = self._dates(request)
        version = headers.get("X-BackendAI-Version")
        if version is None or parse_version(version) is None:
            raise InvalidInput(
                "Tell the API version as X-BackendAI-Version: v7.20230615",
                data={"X-BackendAI-Version": "required" if version is None else "malformed"},
            )
        known = await self._find(credential.access_key)
        key = known or self._nobody
        matched = self._matches(request, credential, key, method, dates, version, b"")
        if not matched and request.body_exists:
            matched = self._matches(request, credential, key, method, dates, version, await read_body())
        if not matched or known is None:
            raise AuthenticationFailed(_REFUSAL)
        if not key.is_active:
            raise AuthenticationFailed("This keypair is not active.")
        return credential.access_key, key

    def forget(self, access_key: str) -> None:
        """Drops the key from the cache."""
        self._cache.pop(access_key, None)

    def _dates(self, request: web.Request) -> list[tuple[str, str]]:
        """Returns each date of the request with its UTC day. Raises if one is outside of the skew window."""
        now = self._clock()
        found: list[tuple[str, str]] = []
        for name in ("Date", "X-BackendAI-Date"):
            text = request.headers.get(name)
            if text is not None:
                date = parse_date(text)
                check_skew(date, now=now)
                found.append((text, date.date().isoformat().replace("-", "")))
        if not found:
            raise AuthenticationFailed("The Date header is missing.")
        return found

    async def _find(self, access_key: str) -> SigningKey | None:
        if not self._ttl_s:
            return await self._keys.find_key(access_key)
        now = time.monotonic()
        entry = self._cache.get(access_key)
        if entry is not None:
            if now < entry[0]:
                return entry[1]
            # Whoever comes while this request looks it up goes on with what is known.
            self._cache[access_key] = (now + _REFRESH_S, entry[1])
        found = await self._keys.find_key(access_key)
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        self._cache[access_key] = (now + self._ttl_s, found)
        return found

    def _hosts(self, request: web.Request) -> Iterator[str]:
        """Returns the possible hosts. The first forwarded host is the one that the client connected to. A client that
        forges that header gains nothing, since it must have signed the host."""
        forwarded = request.headers.get("X-Forwarded-Host")
        if forwarded is not None and request.remote in self._proxies:
            yield from authorities(forwarded.partition(",")[0])
        yield from authorities(request.headers.get("Host", ""))

    def _matches(
        self,
        request: web.Request,
        credential: Credential,
        key: SigningKey,
        method: str,
        dates: list[tuple[str, str]],
        version: str,
        body: bytes,
    ) -> bool:
        content_type = media_type(request.headers.get("Content-Type"))
        wanted = credential.signature.encode(errors="replace")
        hash_name, target = credential.hash_name, request.raw_path
        methods = (method,) if method == request.method else (request.method, method)
        for candidate in methods:
            for date, day in dates:
                for host in self._hosts(request):
                    parts = SignedParts(
                        method=candidate,
                        raw_target=target,
                        date=date,
                        host=host,
                        content_type=content_type,
                        version=version,
                    )
                    derived = self._derive(key.secret_key, day, host, hash_name)
                    signature = sign_with_key(parts, derived, hash_name=hash_name, body=body)
                    if hmac.compare_digest(signature.encode(), wanted):
                        return True
        return False

    def _derive(self, secret: str, day: str, host: str, hash_name: str) -> bytes:
        slot = (secret, day, host, hash_name)
        derived = self._derived.get(slot)
        if derived is None:
            if len(self._derived) >= _MAX_CACHED:
                self._derived.clear()
            derived = self._derived[slot] = derive_key(secret, day, host, hash_name)
        return derived
