"""Tokens of transfers: JWT with HS256, each for one operation on one object, for a limited time."""

from __future__ import annotations

import time
from typing import TypeVar

import jwt
import msgspec

from ai.backend.common.errors import AuthenticationFailed
from ai.backend.storage.transfers.model import Claims

C = TypeVar("C", bound=Claims)
_ALGORITHM = "HS256"


class Tokens:
    """Issues and verifies tokens.

    Args:
        secret: the key that signs them, shared by the proxies of the same volumes.
        expire_s: how long a token is valid.
    """

    def __init__(self, secret: str, expire_s: float) -> None:
        self._secret = secret
        self._expire_s = expire_s

    def issue(self, claims: Claims, *, expire_s: float | None = None) -> str:
        """Return a signed token of these claims; ``expire_s`` replaces the usual time of validity."""
        expires_at = int(time.time() + (self._expire_s if expire_s is None else expire_s))
        payload = {**msgspec.to_builtins(claims), "op": claims.op, "exp": expires_at}
        return jwt.encode(payload, self._secret, algorithm=_ALGORITHM)

    def read(self, token: str, kind: type[C]) -> C:
        """Return the claims of a token.

        Raises:
            AuthenticationFailed: it is forged, expired, not valid yet, or for another operation or audience.
        """
        try:
            payload = jwt.decode(token, self._secret, algorithms=[_ALGORITHM], options={"require": ["exp", "op"]})
            if payload["op"] != kind.op:
                raise AuthenticationFailed("The token is for another operation.")
            return msgspec.convert(payload, kind)
        except jwt.ExpiredSignatureError:
            raise AuthenticationFailed("The token has expired: ask for another one.") from None
        except (jwt.InvalidTokenError, msgspec.ValidationError, UnicodeEncodeError):
            raise AuthenticationFailed("The token is not valid.") from None
