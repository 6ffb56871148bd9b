"""Makes and checks recent proofs of identity, for operations for which a site demands them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ai.backend.common.errors import AuthenticationFailed, InvalidInput
from ai.backend.common.structs import replace
from ai.backend.infra.clock import Clock
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.hooks import Hooks
from ai.backend.manager.identity.model import User
from ai.backend.manager.identity.password_tokens import PasswordTokens, is_password_of, user_id_of
from ai.backend.manager.identity.passwords import PasswordService, wrong_password_error
from ai.backend.manager.identity.settings import ProofSettings
from ai.backend.manager.identity.site_users import SiteUsers
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.identity.totp import TotpService
from ai.backend.manager.secrets.sealer import Sealer
from ai.backend.plugin.hooks import SignOn

PROOF_HEADER = "X-BackendAI-Proof"
_AUDIENCE = "backendai-proof:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Holds a token for :data:`PROOF_HEADER`, valid until ``expires_at`` for the keypair that requested it."""

    token: str = field(repr=False)
    expires_at: datetime


@dataclass(eq=False, slots=True)
class ProofService:
    """Makes and checks proofs, which are valid for one keypair, for some minutes, and until the password changes."""

    _store: IdentityStore
    _passwords: PasswordService
    _totp: TotpService
    _site_users: SiteUsers
    _hooks: Hooks
    _sealer: Sealer
    _clock: Clock
    _settings: ProofSettings
    _demanded: frozenset[Operation] = field(init=False)

    def __post_init__(self) -> None:
        self._demanded = self._settings.demanded_operations

    async def prove(self, caller: Caller, *, password: str, otp: str, address: str) -> Proof:
        """Returns a proof after checking the caller's password, or a one-time password or recovery code if the caller
        has them.

        Raises:
            InvalidInput: neither was given. AuthenticationFailed: it is wrong.
            RateLimitExceeded: too many wrong ones lately. Forbidden, Unavailable: a hook plugin refuses or fails.
        """
        user = await self._store.user(uuid=caller.user_id)
        if user is None or not user.is_active:
            raise wrong_password_error()
        if password:
            await self._check_password(user, password, address)
        elif not otp:
            raise InvalidInput("Give your password or a one-time password.", data={"password": "missing"})
        elif not user.totp_activated:
            raise AuthenticationFailed("You have no one-time passwords; give your password.", data={"otp": "wrong"})
        else:
            await self._totp.check(user, otp)
        expires_at = self._clock.now() + timedelta(minutes=self._settings.minutes)
        token = self._proof_tokens(caller).make(user, await self._store.password_hash(user.email))
        return Proof(token=token, expires_at=expires_at)

    async def check_proof(self, caller: Caller, token: str | None) -> Caller:
        """Returns the caller; without a valid proof in ``token``, the result forbids the operations that need a proof.

        These operations are then in ``unproved`` of the returned caller.
        """
        if not self._demanded or (token and await self._is_valid(caller, token)):
            return caller
        return replace(caller, unproved=self._demanded)

    async def _is_valid(self, caller: Caller, token: str) -> bool:
        try:
            claims = self._proof_tokens(caller).claims_of(token)
        except AuthenticationFailed:
            return False
        password_hash = await self._store.password_hash(caller.email)
        return user_id_of(claims) == caller.user_id and is_password_of(claims, password_hash)

    async def _check_password(self, user: User, password: str, address: str) -> None:
        self._passwords.count_attempt(user.email)  # before the first await, so that parallel attempts count
        site_user = await self._hooks.sign_on(SignOn(name=user.email, secret=password, address=address))
        if site_user is None:
            await self._passwords.verify_user(user.email, password)
            return
        if (await self._site_users.resolve(site_user)).uuid != user.uuid:
            raise wrong_password_error()
        self._passwords.forget_attempts(user.email)

    def _proof_tokens(self, caller: Caller) -> PasswordTokens:
        token_life = timedelta(minutes=self._settings.minutes)
        token_audience = f"{_AUDIENCE}{caller.access_key}"
        return PasswordTokens(
            self._sealer, self._clock, b"proof", token_audience, token_life, "prove again that it is you"
        )
