"""Authenticates a peer by a shared secret in a header."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web

from ai.backend.common.errors import Forbidden
from ai.backend.infra.http.signature import SigningKey


class SecretAuthenticator:
    """Accepts requests whose ``header`` holds the secret. The comparison takes constant time."""

    def __init__(self, secret: str, header: str) -> None:
        self._secret = secret.encode()
        self._header = header
        self._key = SigningKey(secret_key="", is_active=True, rate_limit=None, identity="manager")

    async def authenticate(
        self, request: web.Request, *, method: str, read_body: Callable[[], Awaitable[bytes]]
    ) -> tuple[str, SigningKey]:
        """Returns the identity ``manager``. Raises Forbidden."""
        token = request.headers.get(self._header, "")
        # aiohttp decodes bytes that are no UTF-8 to surrogates
        if not hmac.compare_digest(token.encode(errors="surrogateescape"), self._secret):
            raise Forbidden(f"The header {self._header} is missing or wrong.")
        return "manager", self._key
