"""Lets users register one-time passwords during a sign-in, where the settings demand them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import jwt

from ai.backend.common.errors import AuthenticationFailed
from ai.backend.common.ids import UserId
from ai.backend.infra.clock import Clock
from ai.backend.manager.access.caller import ADMIN_ROLES
from ai.backend.manager.identity.model import User
from ai.backend.manager.identity.passwords import check_address
from ai.backend.manager.identity.settings import TotpSettings
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.identity.totp import NewDevice, TotpService
from ai.backend.manager.secrets.sealer import Sealer

TOKEN_LIFE = timedelta(minutes=10)
_AUDIENCE = "backendai-totp-registration"
_ALGORITHM = "HS256"


@dataclass(eq=False, slots=True)
class TotpRegistration:
    """Refuses sign-ins of users who must have one-time passwords and have none.

    The refusal has a token, by which the same person registers a device without a keypair. The token is good for
    :data:`TOKEN_LIFE`, for one user with one password, and only until that user has a device.
    """

    _store: IdentityStore
    _totp: TotpService
    _sealer: Sealer
    _clock: Clock
    _settings: TotpSettings

    async def check(self, user: User) -> None:
        """Raises AuthenticationFailed with a token, after the password was right, for a user who has to register."""
        is_required = {"nobody": False, "administrators": user.role in ADMIN_ROLES, "everybody": True}
        if is_required[self._settings.required] and not user.totp_activated:
            token = self._token(user, await self._store.password_hash(user.email))
            data = {"otp": "unregistered", "two_factor_registration_token": token}
            raise AuthenticationFailed("You must register Two-Factor Authentication.", data=data)

    async def begin(self, token: str, *, address: str) -> NewDevice:
        """Makes a device for the user of a token. Raises AuthenticationFailed, Forbidden, Conflict."""
        return await self._totp.begin(await self._user_of(token, address))

    async def confirm(self, token: str, otp: str, *, address: str) -> Sequence[str]:
        """Activates the device and returns recovery codes. Raises as :meth:`begin` and ``TotpService.confirm``."""
        return await self._totp.confirm(await self._user_of(token, address), otp)

    def _token(self, user: User, password_hash: str | None) -> str:
        key_id = self._sealer.newest_id()
        claims = {
            "sub": str(user.uuid),
            "aud": _AUDIENCE,
            "exp": self._clock.now() + TOKEN_LIFE,
            "password": _mark(password_hash),
        }
        return jwt.encode(claims, self._key(key_id), algorithm=_ALGORITHM, headers={"kid": key_id})

    async def _user_of(self, token: str, address: str) -> User:
        claims = self._claims(token)
        user = await self._store.user(uuid=UserId(UUID(claims["sub"])))
        if user is None or not user.is_active or user.totp_activated:
            raise _bad_token()
        if claims["password"] != _mark(await self._store.password_hash(user.email)):
            raise _bad_token()
        check_address(user, address)
        return user

    def _claims(self, token: str) -> dict[str, Any]:
        try:
            key_id = str(jwt.get_unverified_header(token).get("kid", ""))[:16]
            # The time is compared below, by the clock of the manager.
            options: Any = {"require": ["sub", "exp", "aud", "password"], "verify_exp": False}
            claims: dict[str, Any] = jwt.decode(
                token, self._key(key_id), algorithms=[_ALGORITHM], audience=_AUDIENCE, options=options
            )
        except (jwt.InvalidTokenError, UnicodeError):
            raise _bad_token() from None
        if claims["exp"] <= self._clock.now().timestamp():
            raise _bad_token()
        return claims

    def _key(self, key_id: str) -> bytes:
        return self._sealer.derive(b"totp registration", key_id)


def _mark(password_hash: str | None) -> str:
    return hashlib.sha256((password_hash or "").encode()).hexdigest()


def _bad_token() -> AuthenticationFailed:
    return AuthenticationFailed("The token is wrong, was used, or has expired: sign in again.")
