"""Signs and verifies the tokens of the worker: set-up codes, permits, tokens of inference endpoints (JWT, HS256)."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any
from uuid import UUID

import jwt
import msgspec

from ai.backend.common.wire.appproxy import (
    INFERENCE_KEY,
    PERMIT_KEY,
    SETUP_AUDIENCE,
    SETUP_CODE_S,
    SETUP_KEY,
    Circuit,
    InferenceLimits,
    purpose_key,
)
from ai.backend.core.proxy.cookies import PERMIT_S

_ALGORITHM = "HS256"
_PERMIT_AUDIENCE = "appproxy-permit"
_LEEWAY_S = 5
_MAX_TOKEN_LENGTH = 4096
_MAX_VERIFIED = 4096
_MAX_USED_CODES = 100_000


class BadToken(Exception):
    """Raised for a token that is malformed, forged, expired, used before, or for another purpose."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the verified contents of an endpoint token.

    ``token`` is a hash of its id, ``audience`` the ids of its endpoints.
    """

    token: str
    user: UUID | None
    audience: frozenset[str]
    limits: InferenceLimits | None
    expires_at: float


class Tokens:
    """Holds the keys of all purposes, and verifies tokens with them. ``now`` is unix time in every method.

    Set-up codes that were issued before ``started_at`` are refused, since it is not known if they were used.
    """

    def __init__(self, *, shared_secret: str, permit_secret: str, started_at: float) -> None:
        self._setup_key = purpose_key(shared_secret, SETUP_KEY)
        self._inference_key = purpose_key(shared_secret, INFERENCE_KEY)
        self._permit_key = purpose_key(permit_secret, PERMIT_KEY)
        self._started_at = started_at
        self._used_codes: dict[str, float] = {}
        self._verified: dict[tuple[str, str], tuple[str, float]] = {}
        self._grants: dict[str, Grant] = {}

    def take_setup_code(self, code: str, circuit: Circuit, now: float) -> str:
        """Verifies a set-up code, makes the code unusable, and returns the path of its redirect. Raises BadToken."""
        claims = _decode(code, self._setup_key, SETUP_AUDIENCE)
        expiry, code_id = _expiry(claims, now), claims.get("jti")
        if not isinstance(code_id, str) or not 8 <= len(code_id) <= 128 or code_id in self._used_codes:
            raise BadToken("the code was used")
        if expiry > now + SETUP_CODE_S + _LEEWAY_S or expiry < self._started_at + SETUP_CODE_S - _LEEWAY_S:
            raise BadToken("the code was not issued in the last minute")
        if claims.get("circuit") != str(circuit.id):
            raise BadToken("the code is for another circuit")
        if not circuit.open_to_public and claims.get("sub") != str(circuit.user_id):
            raise BadToken("the code is for another user")
        self._used_codes = {
            used_code: expires_at for used_code, expires_at in self._used_codes.items() if expires_at > now
        }
        if len(self._used_codes) >= _MAX_USED_CODES:
            raise BadToken("too many codes are used at once")
        self._used_codes[code_id] = expiry + _LEEWAY_S
        redirect = claims.get("redirect", "/")
        return redirect if isinstance(redirect, str) else "/"

    def issue_permit(self, circuit: UUID, user: UUID, now: float) -> str:
        """Returns a new permit token of a user for one circuit."""
        claims = {
            "aud": _PERMIT_AUDIENCE,
            "circuit": str(circuit),
            "sub": str(user),
            "exp": int(now + PERMIT_S),
            "jti": secrets.token_urlsafe(16),
        }
        return jwt.encode(claims, self._permit_key, algorithm=_ALGORITHM)

    def permit_expiry(self, permit: str, circuit: UUID, user: UUID | None, now: float) -> float:
        """Verifies a user's permit for a circuit, and returns its expiry as unix time. Raises BadToken."""
        if user is None:
            raise BadToken("the circuit has no user")
        return self._verify(permit, f"{circuit} {user}", now, self._permit_key, _PERMIT_AUDIENCE, _permit_subject)

    def grant(self, token: str, now: float) -> Grant:
        """Verifies an endpoint token, and returns the grant that it contains.

        Raises BadToken. A signature is verified once.
        """
        grant = self._grants.get(token)
        if grant is None:
            grant = _grant_of(token, _decode(token, self._inference_key, None), now)
            if len(self._grants) >= _MAX_VERIFIED:
                self._grants.clear()
            self._grants[token] = grant
        if grant.expires_at + _LEEWAY_S < now:
            raise BadToken("the token is expired")
        return grant

    def check_inference_token(self, token: str, endpoint: UUID, now: float) -> Grant:
        """Verifies a token for one endpoint, and returns the grant that it contains.

        Raises BadToken unless it is of this endpoint.
        """
        grant = self.grant(token, now)
        if str(endpoint) not in grant.audience:
            raise BadToken("the token is for another endpoint")
        return grant

    def _verify(self, token: str, subject: str, now: float, key: bytes, audience: str, subject_of: Any) -> float:
        """Verifies a signature once and caches the result, because each request of a browser carries the permit."""
        subject_and_expiry = self._verified.get((audience, token))
        if subject_and_expiry is None:
            claims = _decode(token, key, audience)
            subject_and_expiry = (subject_of(claims), _expiry(claims, now))
            if len(self._verified) >= _MAX_VERIFIED:
                self._verified.clear()
            self._verified[audience, token] = subject_and_expiry
        if subject_and_expiry[0] != subject or subject_and_expiry[1] + _LEEWAY_S < now:
            raise BadToken("the token is expired, or for something else")
        return subject_and_expiry[1]


def _permit_subject(claims: dict[str, Any]) -> str:
    return f"{claims.get('circuit')} {claims.get('sub')}"


def _grant_of(token: str, claims: dict[str, Any], now: float) -> Grant:
    """Returns the grant that the verified claims of an endpoint token contain. Raises BadToken for invalid claims.

    Limits of the token that cannot be parsed are invalid claims: the token is refused, and not accepted without limits.
    """
    if claims.get("typ") != "inference":
        raise BadToken("the token is for something else")
    audience, subject, token_id = claims["aud"], claims.get("sub"), claims.get("jti")
    try:
        audience_names = frozenset(msgspec.convert([audience] if isinstance(audience, str) else audience, list[str]))
        limits = msgspec.convert(claims.get("limits"), InferenceLimits | None)
        user = UUID(subject) if isinstance(subject, str) else None
    except (msgspec.ValidationError, ValueError) as e:
        raise BadToken(str(e)) from None
    token_identity = token_id if isinstance(token_id, str) and token_id else token
    return Grant(
        token=hashlib.sha256(token_identity.encode(errors="surrogatepass")).hexdigest()[:32],
        user=user,
        audience=audience_names,
        limits=limits,
        expires_at=_expiry(claims, now),
    )


def _decode(token: str, key: bytes, audience: str | None) -> dict[str, Any]:
    """Verifies the signature and the audience of a token, and returns its claims. Raises BadToken.

    With ``audience`` None, the caller compares the audience. The caller also compares the expiry.
    """
    if len(token) > _MAX_TOKEN_LENGTH:
        raise BadToken("the token is too long")
    try:
        # Expiry is compared by the caller, with its clock.
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[_ALGORITHM],
            audience=audience,
            options={
                "require": ["exp", "aud"],
                "verify_aud": audience is not None,
                "verify_exp": False,
                "verify_iat": False,
                "verify_nbf": False,
            },
        )
    except (jwt.PyJWTError, ValueError) as e:
        raise BadToken(str(e)) from None
    return claims


def _expiry(claims: dict[str, Any], now: float) -> float:
    expiry = claims["exp"]
    if isinstance(expiry, bool) or not isinstance(expiry, int | float) or expiry + _LEEWAY_S < now:
        raise BadToken("the token is expired")
    return float(expiry)
