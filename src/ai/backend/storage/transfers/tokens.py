"""Issues and verifies the tokens of transfers, each for one operation on one object and for a limited time.

They are JWT with HS256 (peer facts 5).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import ClassVar, TypeVar
from uuid import UUID

import jwt
import msgspec

from ai.backend.common.errors import AuthenticationFailed

_ALGORITHM = "HS256"
_MAX_REMEMBERED = 4096


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the permission that a token grants; ``op`` names the operation."""

    op: ClassVar[str]


class DownloadClaims(Claims, frozen=True, kw_only=True):
    op: ClassVar[str] = "download"
    volume: str
    vfid: str
    relpath: str
    archive: bool = False
    requester: str = ""


class UploadClaims(Claims, frozen=True, kw_only=True):
    op: ClassVar[str] = "upload"
    volume: str
    vfid: str
    relpath: str
    size: int
    session: str


class ArchiveClaims(Claims, frozen=True, kw_only=True):
    op: ClassVar[str] = "archive"
    volume: str
    virtual_folder_id: str
    files: tuple[str, ...]
    filename: str | None = None
    requester: str = ""


class ArtifactClaims(Claims, frozen=True, kw_only=True):
    """Permits reading all files of one revision on one storage."""

    op: ClassVar[str] = "artifact"
    storage: str
    revision: UUID
    attempt: int


class ObjectClaims(Claims, frozen=True, kw_only=True):
    """Permits reading one object of a revision."""

    op: ClassVar[str] = "get-object"
    storage: str
    revision: UUID
    key: str


class PutObjectClaims(ObjectClaims, frozen=True, kw_only=True):
    """Permits storing one object of ``size`` bytes."""

    op: ClassVar[str] = "put-object"
    size: int


ClaimsT = TypeVar("ClaimsT", bound=Claims)


class Tokens:
    """Issues and verifies tokens. Verifying takes longer than a small transfer, so the latest valid ones are kept.

    ``secret``: the signing key, shared by the proxies of the same volumes. ``expire_s``: how long a token is valid.
    ``client_url``: where clients use the tokens; set when the client-facing API is served.
    """

    def __init__(self, secret: str, expire_s: float) -> None:
        self._secret = secret
        self._expire_s = expire_s
        self.client_url = ""
        self._valid: OrderedDict[str, tuple[Claims, int]] = OrderedDict()

    def issue(self, claims: Claims, *, expire_s: float | None = None) -> str:
        """Returns a signed token of these claims; ``expire_s`` replaces the usual time of validity."""
        expires_at = int(time.time() + (self._expire_s if expire_s is None else expire_s))
        payload = {**msgspec.to_builtins(claims), "op": claims.op, "exp": expires_at}
        token = jwt.encode(payload, self._secret, algorithm=_ALGORITHM)
        self._remember(token, claims, expires_at)
        return token

    def read(self, token: str, claims_type: type[ClaimsT]) -> ClaimsT:
        """Returns the claims of a token.

        Raises AuthenticationFailed: it is forged, expired, not valid yet, or for another operation or audience.
        """
        claims, expires_at = self._valid.get(token, (None, 0))
        if isinstance(claims, claims_type) and time.time() < expires_at:
            return claims
        try:
            payload = jwt.decode(token, self._secret, algorithms=[_ALGORITHM], options={"require": ["exp", "op"]})
            if payload["op"] != claims_type.op:
                raise AuthenticationFailed("The token is for another operation.")
            verified_claims = msgspec.convert(payload, claims_type)
        except jwt.ExpiredSignatureError:
            raise AuthenticationFailed("The token has expired: ask for another one.") from None
        except (jwt.InvalidTokenError, msgspec.ValidationError, UnicodeEncodeError):
            raise AuthenticationFailed("The token is not valid.") from None
        self._remember(token, verified_claims, payload["exp"])
        return verified_claims

    def _remember(self, token: str, claims: Claims, expires_at: int) -> None:
        self._valid[token] = claims, expires_at
        while len(self._valid) > _MAX_REMEMBERED:
            self._valid.popitem(last=False)
