"""Makes and checks tokens for users who are not signed in, which are valid while the password stays the same."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any
from uuid import UUID

import jwt
import msgspec

from ai.backend.common.errors import AuthenticationFailed
from ai.backend.common.ids import UserId
from ai.backend.infra.clock import Clock
from ai.backend.manager.identity.model import User
from ai.backend.manager.secrets.sealer import Sealer

_ALGORITHM = "HS256"


class PasswordTokens(msgspec.Struct, frozen=True, eq=False):
    """Makes and checks tokens for one ``purpose``, which are signed by a key derived for it. ``hint`` is the end of the
    text of a refusal.
    """

    sealer: Sealer
    clock: Clock
    purpose: bytes
    audience: str
    life: timedelta
    hint: str

    def make(self, user: User, password_hash: str | None) -> str:
        key_id = self.sealer.newest_id()
        claims = {
            "sub": str(user.uuid),
            "aud": self.audience,
            "exp": self.clock.now() + self.life,
            "password": _password_digest(password_hash),
        }
        key = self.sealer.derive(self.purpose, key_id)
        return jwt.encode(claims, key, algorithm=_ALGORITHM, headers={"kid": key_id})

    def claims_of(self, token: str) -> dict[str, Any]:
        """Returns the claims of a token, and checks that the token is valid. Raises AuthenticationFailed."""
        try:
            key = self.sealer.derive(self.purpose, str(jwt.get_unverified_header(token).get("kid", ""))[:16])
            # The time is compared below, by the clock of the manager.
            options: Any = {"require": ["sub", "exp", "aud", "password"], "verify_exp": False}
            claims: dict[str, Any] = jwt.decode(
                token, key, algorithms=[_ALGORITHM], audience=self.audience, options=options
            )
        except (jwt.InvalidTokenError, UnicodeError):
            raise self.token_error() from None
        if claims["exp"] <= self.clock.now().timestamp():
            raise self.token_error()
        return claims

    def token_error(self) -> AuthenticationFailed:
        """Returns the error for a token that is wrong, used or expired."""
        return AuthenticationFailed(f"The token is wrong, was used, or has expired: {self.hint}.")


def user_id_of(claims: dict[str, Any]) -> UserId:
    """Returns the id of the user for whom a token was made."""
    return UserId(UUID(claims["sub"]))


def is_password_of(claims: dict[str, Any], password_hash: str | None) -> bool:
    """Returns True if the user's password has not changed since the token was made."""
    return bool(claims["password"] == _password_digest(password_hash))


def _password_digest(password_hash: str | None) -> str:
    return hashlib.sha256((password_hash or "").encode()).hexdigest()
