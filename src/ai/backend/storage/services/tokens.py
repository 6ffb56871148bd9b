"""Tokens of transfers: JWT with HS256, each for one operation on one thing, for some time."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import jwt
import msgspec
from jwt.utils import base64url_decode

from ai.backend.common.errors import AuthenticationFailed
from ai.backend.storage.model.claims import Claims

C = TypeVar("C", bound=Claims)
_ALGORITHM = "HS256"
_KEPT = 256


class _Header(msgspec.Struct, frozen=True):
    alg: str


_Payload = dict[str, Any]


class Tokens:
    """Args: secret: of this proxy; expire_s: how long a token is valid; clock: seconds since 1970."""

    def __init__(self, secret: str, expire_s: float, clock: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._expire_s = expire_s
        self._clock = clock
        self._verified = lru_cache(_KEPT)(self._verify)

    def issue(self, claims: Claims, *, expire_s: float | None = None) -> str:
        """Args: expire_s: instead of the usual time."""
        until = int(self._clock() + (self._expire_s if expire_s is None else expire_s))
        payload = {**msgspec.to_builtins(claims), "op": claims.op, "exp": until}
        return jwt.encode(payload, self._secret, algorithm=_ALGORITHM)

    def read(self, token: str, kind: type[C]) -> C:
        """Raises AuthenticationFailed: forged, expired, or of another operation."""
        try:
            payload = self._verified(token)
            if int(payload["exp"]) < self._clock():
                raise AuthenticationFailed("The token has expired: ask for another one.")
            if payload["op"] != kind.op:
                raise AuthenticationFailed("The token is for another operation.")
            return msgspec.convert(payload, kind)
        except (KeyError, TypeError, ValueError, msgspec.MsgspecError):
            raise AuthenticationFailed("The token is not valid.") from None

    def _verify(self, token: str) -> Mapping[str, Any]:
        """The claims under a right signature, of this one algorithm (RFC 7515, 5.2).

        jwt.decode looks at the key anew each time, whether it is one of another kind, which takes longer than all the
        rest of a small upload in this thread. What was verified is kept: an upload shows one token with each chunk.
        """
        signed, _, signature = token.encode("ascii").rpartition(b".")
        header, _, payload = signed.partition(b".")
        expected = hmac.digest(self._secret.encode(), signed, "sha256")
        if not hmac.compare_digest(base64url_decode(signature), expected):
            raise ValueError("signature")
        if msgspec.json.decode(base64url_decode(header), type=_Header).alg != _ALGORITHM:
            raise ValueError("algorithm")
        return msgspec.json.decode(base64url_decode(payload), type=_Payload)
