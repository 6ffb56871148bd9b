"""Finds the keys for the signature check of requests."""

from __future__ import annotations

from ai.backend.infra.http.signature import SigningKey
from ai.backend.manager.identity.service import IdentityService


class KeypairStore:
    """Returns keypairs as signing keys, at most one second old."""

    def __init__(self, identity: IdentityService) -> None:
        self._identity = identity

    async def find_key(self, access_key: str) -> SigningKey | None:
        credentials = await self._identity.credentials(access_key)
        if credentials is None:
            return None
        return SigningKey(
            secret_key=credentials.secret_key,
            is_active=credentials.is_active,
            rate_limit=credentials.caller.rate_limit or None,
            identity=credentials.caller,
            networks=credentials.caller.allowed_client_ip,
        )
