"""Authentication of the manager-facing API by a shared secret."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web

from ai.backend.common.errors import Forbidden
from ai.backend.infra.http.signature import SigningKey

SECRET_HEADER = "X-BackendAI-Storage-Auth-Token"


class SecretAuthenticator:
    """Accepts requests whose header holds the secret; compares in constant time."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._key = SigningKey(secret_key="", is_active=True, rate_limit=None, identity="manager")

    async def authenticate(
        self, request: web.Request, *, method: str, read_body: Callable[[], Awaitable[bytes]]
    ) -> tuple[str, SigningKey]:
        """Returns the identity ``manager``. Raises Forbidden."""
        token = request.headers.get(SECRET_HEADER, "")
        # aiohttp decodes bytes that are no UTF-8 to surrogates
        if not hmac.compare_digest(token.encode(errors="surrogateescape"), self._secret):
            raise Forbidden(f"The header {SECRET_HEADER} is missing or wrong.")
        return "manager", self._key
