"""Makes tokens of set-ups, set-up codes for workers, and tokens of inference endpoints."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import jwt
import msgspec

from ai.backend.common.wire.appproxy import (
    INFERENCE_KEY,
    SETUP_CODE_S,
    SETUP_KEY,
    InferenceLimits,
    InferenceToken,
    SetupCode,
    purpose_key,
)

_ALGORITHM = "HS256"
_TOKEN_BYTES = 32
_ID_BYTES = 16


def new_token() -> str:
    """Returns a new random token of a set-up. The token is only valid while its database row exists."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def hash_of(token: str) -> str:
    """Returns the hash of a token, which is stored instead of the token."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def key_id(key: bytes) -> str:
    """Returns the JWT key id (``kid``) of a key."""
    return hashlib.sha256(key).hexdigest()[:16]


class TokenIssuer:
    """Signs set-up codes and endpoint tokens, each with a key for its own purpose."""

    def __init__(self, secret: str) -> None:
        self._setup_key = purpose_key(secret, SETUP_KEY)
        self._inference_key = purpose_key(secret, INFERENCE_KEY)

    def setup_code(self, circuit_id: UUID, user_id: UUID | None, redirect: str) -> str:
        """Returns a code that signs one browser in to a circuit, once and within a minute."""
        claims = SetupCode(
            circuit=circuit_id,
            sub=str(user_id) if user_id is not None else None,
            redirect=redirect,
            jti=secrets.token_urlsafe(_ID_BYTES),
            exp=int(time.time()) + SETUP_CODE_S,
        )
        return _sign(claims, self._setup_key)

    def endpoint_token(
        self,
        endpoint_ids: Sequence[UUID],
        user_id: UUID,
        expires_at: datetime,
        limits: InferenceLimits | None = None,
    ) -> str:
        """Returns a token that permits calls of these endpoints until it expires, within its limits."""
        names = [str(endpoint_id) for endpoint_id in endpoint_ids]
        claims = InferenceToken(
            aud=names[0] if len(names) == 1 else names,
            limits=limits,
            sub=str(user_id),
            jti=secrets.token_urlsafe(_ID_BYTES),
            exp=int(expires_at.timestamp()),
        )
        return _sign(claims, self._inference_key)


def _sign(claims: msgspec.Struct, key: bytes) -> str:
    payload = {name: value for name, value in msgspec.to_builtins(claims).items() if value is not None}
    return jwt.encode(payload, key, algorithm=_ALGORITHM, headers={"kid": key_id(key)})
