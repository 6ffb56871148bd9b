"""Signs users on by tokens that another site of the organisation signs (RFC 7519, RFC 8725).

The site gives its user a token for this installation alone, good for minutes and once. PyJWT verifies it; the manager
takes each ``jti`` once.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import jwt
from pydantic import Field, field_validator

from ai.backend.hook.mapping import MappingSettings, site_user
from ai.backend.plugin.hooks import AbstractHook, HookDenied, TokenSignOn, TokenUser

log = logging.getLogger(__name__)
LEEWAY_S = 30
_REQUIRED_CLAIMS = ["exp", "iat", "iss", "aud", "jti"]
_REFUSAL = "The token of the other site is not valid here, or too old: go back there and try again."
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""The signatures that are made with a private key of the other site. With a shared secret, whoever reads it here could
sign anybody in.
"""


class TokenSettings(MappingSettings):
    """Settings of the other site and of its tokens."""

    issuer: str = Field(..., min_length=1, description="The claim `iss` of its tokens.")
    audience: str = Field(..., min_length=1, description="The claim `aud`, which names this installation alone.")
    public_key_file: Path = Field(..., description="The public key of the other site, in PEM.")
    algorithms: list[Algorithm] = Field(["RS256", "ES256"], min_length=1, description="Signatures that are accepted.")
    max_life_s: int = Field(300, ge=1, le=3_600, description="The longest time from `iat` to `exp`, in seconds.")
    email_claim: str = Field("email", min_length=1, description="The claim that names the account here.")
    username_claim: str = Field("preferred_username", min_length=1, description="The name of new users.")
    groups_claim: str = Field("groups", min_length=1, description="The claim with the names of the user's groups.")

    @field_validator("public_key_file")
    @classmethod
    def _is_public_key(cls, path: Path) -> Path:
        try:
            text = path.read_text()
        except OSError as e:
            raise ValueError(f"{path} cannot be read: {e.strerror}") from None
        if "PRIVATE KEY" in text or "PUBLIC KEY" not in text:
            raise ValueError(f"{path} is no public key in PEM")
        return path


class TokenSignOnHook(AbstractHook):
    """Signs users on by tokens of one other site."""

    settings_model = TokenSettings

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._options: TokenSettings = settings
        self._public_key = settings.public_key_file.read_text()

    async def sign_on_token(self, request: TokenSignOn) -> TokenUser | None:
        """Returns the user whom a token names, or None if it is no token of the issuer. Raises HookDenied."""
        options = self._options
        try:
            unverified = jwt.decode(request.token, options={"verify_signature": False})
        except (jwt.PyJWTError, UnicodeError, ValueError, RecursionError):
            return None
        if unverified.get("iss") != options.issuer:
            return None
        try:
            claims: dict[str, Any] = jwt.decode(
                request.token,
                self._public_key,
                algorithms=list(options.algorithms),
                audience=options.audience,
                issuer=options.issuer,
                leeway=LEEWAY_S,
                options={"require": _REQUIRED_CLAIMS, "strict_aud": True},
            )
        except (jwt.PyJWTError, UnicodeError, TypeError, ValueError) as e:
            log.info("a token of %s was refused: %s", options.issuer, e)
            raise HookDenied(_REFUSAL) from None
        return self._token_user(claims)

    def _token_user(self, claims: dict[str, Any]) -> TokenUser:
        options = self._options
        email, token_id = claims.get(options.email_claim), claims["jti"]
        if not 0 < int(claims["exp"]) - int(claims["iat"]) <= options.max_life_s:
            log.info("a token of %s was refused: it lives too long", options.issuer)
            raise HookDenied(_REFUSAL)
        if not isinstance(email, str) or not email or not isinstance(token_id, str) or not token_id:
            raise HookDenied("The other site does not tell your e-mail address.")
        groups = claims.get(options.groups_claim)
        user = site_user(
            options,
            email=email,
            username=str(claims.get(options.username_claim) or ""),
            full_name=str(claims.get("name") or ""),
            groups=[name for name in groups if isinstance(name, str)] if isinstance(groups, list) else [],
        )
        expires_at = datetime.fromtimestamp(int(claims["exp"]) + LEEWAY_S, UTC)
        return TokenUser(user=user, token_id=token_id, expires_at=expires_at)
