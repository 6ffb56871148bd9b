"""Lets users register one-time passwords during a sign-in, if the settings require one-time passwords."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from ai.backend.common.errors import AuthenticationFailed
from ai.backend.infra.clock import Clock
from ai.backend.manager.access.caller import ADMIN_ROLES
from ai.backend.manager.identity.model import User
from ai.backend.manager.identity.password_tokens import PasswordTokens, is_password_of, user_id_of
from ai.backend.manager.identity.passwords import check_address
from ai.backend.manager.identity.settings import TotpSettings
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.identity.totp import NewDevice, TotpService
from ai.backend.manager.secrets.sealer import Sealer

TOKEN_LIFE = timedelta(minutes=10)


@dataclass(eq=False, slots=True)
class TotpRegistration:
    """Refuses the sign-in of users who must have one-time passwords but have none.

    The refusal has a token, by which the same person registers a device without a keypair. The token is good for
    :data:`TOKEN_LIFE`, for one user with one password, and only until that user has a device.
    """

    _store: IdentityStore
    _totp: TotpService
    _sealer: Sealer
    _clock: Clock
    _settings: TotpSettings
    tokens: PasswordTokens = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = PasswordTokens(
            self._sealer,
            self._clock,
            b"totp registration",
            "backendai-totp-registration",
            TOKEN_LIFE,
            "sign in again",
        )

    async def check(self, user: User) -> None:
        """Raises AuthenticationFailed with a token if an authenticated user must first register one-time passwords."""
        required_by_setting = {"nobody": False, "administrators": user.role in ADMIN_ROLES, "everybody": True}
        if required_by_setting[self._settings.required] and not user.totp_activated:
            token = self.tokens.make(user, await self._store.password_hash(user.email))
            data = {"otp": "unregistered", "two_factor_registration_token": token}
            raise AuthenticationFailed("You must register Two-Factor Authentication.", data=data)

    async def begin(self, token: str, *, address: str) -> NewDevice:
        """Creates a device for the user for whom a token was made. Raises AuthenticationFailed, Forbidden, Conflict."""
        return await self._totp.begin(await self._user_of(token, address))

    async def confirm(self, token: str, otp: str, *, address: str) -> Sequence[str]:
        """Activates the device with its first one-time password, and returns recovery codes. Raises as :meth:`begin`
        and ``TotpService.confirm``.
        """
        return await self._totp.confirm(await self._user_of(token, address), otp)

    async def _user_of(self, token: str, address: str) -> User:
        claims = self.tokens.claims_of(token)
        user = await self._store.user(uuid=user_id_of(claims))
        if user is None or not user.is_active or user.totp_activated:
            raise self.tokens.token_error()
        if not is_password_of(claims, await self._store.password_hash(user.email)):
            raise self.tokens.token_error()
        check_address(user, address)
        return user
