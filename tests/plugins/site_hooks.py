"""Hooks of a site: sign-on by tokens of its identity provider, and a policy on images."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import jwt

from ai.backend.plugin.hooks import AbstractHook, Account, HookDenied, SessionRequest, SignOn
from ai.backend.plugin.settings import PluginSettings


class TokenSettings(PluginSettings):
    key: str
    algorithm: str = "HS256"
    issuer: str
    audience: str = "backend.ai"


class TokenSignOn(AbstractHook):
    """Signs users on whose secret is a token of the identity provider with their verified e-mail address."""

    settings_model = TokenSettings

    async def sign_on(self, request: SignOn) -> str | None:
        assert isinstance(self.settings, TokenSettings)
        try:
            claims: dict[str, Any] = jwt.decode(
                request.secret,
                self.settings.key,
                algorithms=[self.settings.algorithm],
                issuer=self.settings.issuer,
                audience=self.settings.audience,
                options={"require": ["exp", "email"]},
            )
        except jwt.ExpiredSignatureError:
            raise HookDenied("The token has expired: sign in to the site again.") from None
        except (jwt.InvalidTokenError, UnicodeError):
            return None
        return str(claims["email"]) if claims.get("email_verified") and claims["email"] == request.name else None


class PolicySettings(PluginSettings):
    images: tuple[str, ...] = ("*",)
    networks: tuple[str, ...] = ("*",)


class SitePolicy(AbstractHook):
    """Allows images by patterns, and sign-on by patterns of addresses."""

    settings_model = PolicySettings

    async def check_sign_on(self, account: Account, address: str) -> None:
        assert isinstance(self.settings, PolicySettings)
        if not any(fnmatchcase(address, pattern) for pattern in self.settings.networks):
            raise HookDenied(f"Nobody signs in from {address[:64]}.")

    async def check_session(self, request: SessionRequest) -> None:
        assert isinstance(self.settings, PolicySettings)
        if not any(fnmatchcase(request.image, pattern) for pattern in self.settings.images):
            raise HookDenied(f"The image {request.image[:64]} is not approved.")
