"""Signs users in by password, by a hook plugin, or by a service to which the browser is redirected."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import uuid4

import msgspec
from cryptography.fernet import Fernet, InvalidToken

from ai.backend.common.errors import AuthenticationFailed, BackendError
from ai.backend.infra.clock import Clock
from ai.backend.manager.hooks import Hooks
from ai.backend.manager.idempotency.store import AnswerStore
from ai.backend.manager.identity.model import NewKeypair, SignInRecord, User
from ai.backend.manager.identity.passwords import PasswordService, check_address, wrong_password_error
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.site_users import SiteUsers
from ai.backend.manager.identity.store import AccountStore, IdentityStore
from ai.backend.manager.identity.totp import TotpService
from ai.backend.manager.identity.totp_registration import TotpRegistration
from ai.backend.manager.query.model import Page
from ai.backend.manager.secrets.sealer import Sealer
from ai.backend.plugin.hooks import Account, SignOn, TokenSignOn

TICKET_S = 600
"""Seconds within which a redirected browser must come back."""
MAX_TOKEN_LIFE = timedelta(hours=1)
"""The longest time for which a token of another site may still be valid."""
_MAX_BUFFERED_RECORDS = 10_000
_SIGN_IN_BY_TOKEN = "sign-in by token"
"""The text that replaces the access key of stored calls, for sign-ins by token; it is no access key."""


class _Ticket(msgspec.Struct, frozen=True, kw_only=True):
    provider: str
    return_url: str
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RedirectTicket:
    """Holds the URL at which a browser signs in, and the sealed ``ticket`` that the browser must bring back."""

    url: str
    ticket: str = field(repr=False)


@dataclass(eq=False, slots=True)
class SpentTokens:
    """Records the tokens of other sites that have been used to sign in, for the time ``life``.

    The records are kept in the store of answers to calls with a client token.
    """

    _calls: AnswerStore
    _clock: Clock
    life: timedelta

    async def spend(self, digest: str) -> bool:
        """Records the use of a token. Returns True at the first use, and False if the token was used before.

        Of two simultaneous uses, one gets False.
        """
        now = self._clock.now()
        earlier_call = await self._calls.begin(
            _SIGN_IN_BY_TOKEN, digest, digest, call_id=uuid4(), now=now, since=now - self.life
        )
        return earlier_call is None


@dataclass(eq=False, slots=True)
class SignInService:
    """Signs users in and records each attempt; :meth:`flush` writes the records."""

    _store: IdentityStore
    _accounts: AccountStore
    _identity: IdentityService
    _passwords: PasswordService
    _totp: TotpService
    _registration: TotpRegistration
    _site_users: SiteUsers
    _hooks: Hooks
    _sealer: Sealer
    _clock: Clock
    _spent_tokens: SpentTokens
    _records: list[SignInRecord] = field(default_factory=list)

    async def sign_in(
        self, email: str, password: str, *, address: str, domain_name: str | None = None, otp: str = ""
    ) -> tuple[User, NewKeypair]:
        """Signs a user in from the client at ``address``, and returns the user's main keypair. A hook plugin may know
        the user by another secret than the password.

        Raises:
            AuthenticationFailed: no active user has this e-mail and password; the password must be changed first
                (``data.password``); a one-time password is missing (``data.otp`` is ``missing``) or wrong, or the user
                must register one first (``data.otp`` is ``unregistered``).
            Forbidden: the user may not sign in from this address, or a hook plugin refuses.
            RateLimitExceeded: too many wrong passwords lately. Unavailable: a hook plugin fails.
        """
        self._passwords.count_attempt(email)  # before the first await, so that parallel attempts stay within the limit
        site_user = await self._hooks.sign_on(SignOn(name=email, secret=password, address=address))
        if site_user is not None:
            user = await self._site_users.resolve(site_user)
            self._passwords.forget_attempts(email)
            return await self._admit(user, address=address, domain_name=domain_name, otp=otp, method="hook")
        try:
            user = await self._passwords.verify_user(email, password)
        except AuthenticationFailed as refusal:
            existing_user = await self._store.user(email=email)
            if existing_user is not None:
                self._record(existing_user, address, "password", refusal.code)
            raise
        return await self._admit(user, address=address, domain_name=domain_name, otp=otp, method="password")

    async def history(self, user: User, *, limit: int, offset: int) -> Page[SignInRecord]:
        """Returns the recorded sign-ins of a user, newest first."""
        await self.flush()
        return await self._accounts.sign_ins(user.uuid, limit=limit, offset=offset)

    async def flush(self) -> None:
        """Writes the sign-ins that were recorded since the last call. They are not written at once, so that the time of
        an answer does not tell whether a user exists.
        """
        records, self._records = self._records, []
        if records:
            await self._accounts.add_sign_ins(records)

    # ---- services that browsers are led to ----

    def providers(self) -> Sequence[str]:
        """Returns the names of the services where browsers may sign in."""
        return self._hooks.redirecting_plugins()

    async def begin_redirect(self, provider: str, return_url: str) -> RedirectTicket:
        """Returns the address at which a browser signs in with ``provider``, and a sealed ticket to bring back. Raises
        NotFound, Forbidden if ``return_url`` is not a configured one, Unavailable.
        """
        redirect_start = await self._hooks.begin_redirect(provider, return_url)
        ticket_json = msgspec.json.encode(
            _Ticket(provider=provider, return_url=return_url, secret=redirect_start.secret)
        )
        key_id = self._sealer.newest_id()
        return RedirectTicket(
            url=redirect_start.url, ticket=f"{key_id}.{self._fernet(key_id).encrypt(ticket_json).decode()}"
        )

    async def finish_redirect(
        self, provider: str, ticket: str, parameters: Mapping[str, str], *, address: str, domain_name: str | None
    ) -> tuple[User, NewKeypair]:
        """Signs in the user who comes back from a provider with the ticket of :meth:`begin_redirect`. The service, not
        this server, asks for a second factor.

        Raises:
            AuthenticationFailed: the ticket is old or forged, or the service knows nobody here.
            Forbidden: the service or a policy refuses. Unavailable: the service is away.
        """
        opened_ticket = self._open_ticket(ticket)
        if not hmac.compare_digest(opened_ticket.provider.encode(), provider.encode(errors="replace")):
            raise _refused_ticket_error()
        site_user = await self._hooks.finish_redirect(
            provider, opened_ticket.secret, opened_ticket.return_url, parameters
        )
        user = await self._site_users.resolve(site_user)
        return await self._admit(user, address=address, domain_name=domain_name, otp=None, method=provider)

    def _open_ticket(self, ticket: str) -> _Ticket:
        key_id, _, sealed_text = ticket.partition(".")
        now = int(self._clock.now().timestamp())
        try:
            ticket_json = self._fernet(key_id).decrypt_at_time(sealed_text.encode(), ttl=TICKET_S, current_time=now)
            return msgspec.json.decode(ticket_json, type=_Ticket)
        except (InvalidToken, UnicodeError, msgspec.MsgspecError):
            raise _refused_ticket_error() from None

    def _fernet(self, key_id: str) -> Fernet:
        return Fernet(base64.urlsafe_b64encode(self._sealer.derive(b"redirected sign-in", key_id[:16])))

    # ---- tokens of other sites ----

    async def sign_in_token(
        self, token: str, *, address: str, domain_name: str | None = None
    ) -> tuple[User, NewKeypair]:
        """Signs in the user who is named by a token of another site. Each token is taken once; the other site asks for
        a second factor.

        Raises:
            AuthenticationFailed: no plugin takes the token, it was used or has expired, or nobody here is named by it.
            Forbidden: a plugin or a policy refuses. Unavailable: a plugin fails.
        """
        method_and_user = await self._hooks.sign_on_token(TokenSignOn(token=token, address=address))
        if method_and_user is None:
            raise _refused_token_error()
        method, token_user = method_and_user
        now = self._clock.now()
        if not token_user.token_id or not now < token_user.expires_at <= now + min(
            MAX_TOKEN_LIFE, self._spent_tokens.life
        ):
            raise _refused_token_error()
        digest = hashlib.sha256(f"{method}\0{token_user.token_id}".encode(errors="replace")).hexdigest()
        if not await self._spent_tokens.spend(digest):
            raise _refused_token_error()
        user = await self._site_users.resolve(token_user.user)
        return await self._admit(user, address=address, domain_name=domain_name, otp=None, method=method)

    # ---- what all ways have in common ----

    async def _admit(
        self, user: User, *, address: str, domain_name: str | None, otp: str | None, method: str
    ) -> tuple[User, NewKeypair]:
        """Checks if an authenticated user may sign in, records the result, and returns the main keypair. ``otp`` is
        None if no one-time password is asked for.
        """
        try:
            keypair = await self._check_sign_in(user, address=address, domain_name=domain_name, otp=otp, method=method)
        except BackendError as refusal:
            self._record(user, address, method, refusal.code)
            raise
        self._record(user, address, method, "ok")
        return user, keypair

    async def _check_sign_in(
        self, user: User, *, address: str, domain_name: str | None, otp: str | None, method: str
    ) -> NewKeypair:
        if domain_name not in (None, user.domain_name):
            raise wrong_password_error()
        check_address(user, address)
        account = Account(email=user.email, username=user.username, domain_name=user.domain_name, role=user.role.value)
        await self._hooks.check_sign_on(account, address)
        if method == "password":
            self._check_age(user)  # before a one-time password is spent, which the change of the password takes
        if otp is not None:
            await self._totp.check(user, otp)
            await self._registration.check(user)
        credentials = await self._identity.credentials(user.main_access_key or "")
        if credentials is None or not credentials.is_active:
            raise wrong_password_error()
        return NewKeypair(access_key=credentials.caller.access_key, secret_key=credentials.secret_key)

    def _check_age(self, user: User) -> None:
        if user.need_password_change:
            raise AuthenticationFailed("The password must be changed first.", data={"password": "must be changed"})
        expired_at = self._passwords.expired_at(user)
        if expired_at is not None:
            # The published console knows this beginning (client wire contract 5, step 4).
            message = f"Password expired on {expired_at.date().isoformat()}"
            raise AuthenticationFailed(message, data={"password": "expired"})

    def _record(self, user: User, address: str, method: str, outcome: str) -> None:
        record = SignInRecord(user_id=user.uuid, at=self._clock.now(), address=address, method=method, outcome=outcome)
        if len(self._records) < _MAX_BUFFERED_RECORDS:
            self._records.append(record)


def _refused_token_error() -> AuthenticationFailed:
    """Returns the error for a refused token, which is the same for unknown, forged, used and expired tokens."""
    return AuthenticationFailed("That token signs nobody in: it was used, has expired, or is of no site that is known.")


def _refused_ticket_error() -> AuthenticationFailed:
    return AuthenticationFailed("This sign-in took too long, or began in another browser: begin anew.")
