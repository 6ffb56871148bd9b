"""Signs users in and out, and finds the login session of a cookie."""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, Protocol

import msgspec
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ai.backend.common.errors import RateLimitExceeded
from ai.backend.infra.clock import Clock
from ai.backend.infra.http.addresses import client_of
from ai.backend.web.login.model import Login, LoginSecret, StoredLogin, login_id_of
from ai.backend.web.login.recent import RecentLogins
from ai.backend.web.login.store import LoginStore

log = logging.getLogger(__name__)
_TOKEN_BYTES = 32
_MAX_TOKEN_LENGTH = 64
_MAX_CLIENT_LENGTH = 256
_USE_RECORDS_PER_IDLE_TIME = 10


class PasswordCheck(Protocol):
    """Checks passwords by a manager: ``POST /auth/authorize`` (spec 03-08)."""

    async def authorize(self, fields: Mapping[str, str], *, address: str) -> tuple[int, dict[str, Any]]:
        """Returns the status and the JSON body of the manager's reply. Raises Unavailable."""

    async def finish_redirect(self, fields: Mapping[str, Any], *, address: str) -> tuple[int, dict[str, Any]]:
        """Asks the manager which user came back from a sign-in service, and returns like :meth:`authorize`."""

    async def authorize_token(self, fields: Mapping[str, Any], *, address: str) -> tuple[int, dict[str, Any]]:
        """Asks the manager which user another site's token names, and returns like :meth:`authorize`."""

    async def update_password(self, fields: Mapping[str, str], *, address: str) -> tuple[int, dict[str, Any]]:
        """Changes a password, given the present password. Returns like :meth:`authorize`. Raises Unavailable."""


class LoginLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the lifetime and idle time of login sessions, and the numbers of failed sign-ins that are accepted.

    Attributes:
        max_age_s: the life of a login session in seconds.
        block_s: seconds for which a name or an address is refused after its last failure.
        name_failures, address_failures: how many failures are accepted.
        idle_s: the seconds without a use after which a login session ends; 0 for no such end.
    """

    max_age_s: int
    block_s: int
    name_failures: int
    address_failures: int
    idle_s: int = 0


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the outcome of a sign-in: a session with its cookie's token, or the problem document of the manager."""

    token: str | None
    secret: LoginSecret | None
    problem: Mapping[str, Any]


class LoginService:
    """Signs users in and out.

    A cookie holds a random token. The store has its hash, and the keys of the user sealed by a key derived from the
    token, so that neither the store nor its backups let anybody act for a user.
    """

    def __init__(self, store: LoginStore, manager: PasswordCheck, limits: LoginLimits, clock: Clock) -> None:
        self._store = store
        self._manager = manager
        self._limits = limits
        self._clock = clock
        self._recent = RecentLogins(clock)

    async def sign_in(self, fields: Mapping[str, str], *, address: str, client: str = "") -> SignIn:
        """Asks the manager for the keys of a user and stores a new login session.

        Each try counts as a failure before the manager is asked, so that tries at the same moment count too; a success,
        a right password that is not enough, or a manager that is away takes that back.

        Raises:
            RateLimitExceeded: too many failures of this name or this address.
            Unavailable: no manager answers, or the store is away.
        """
        username = fields["username"].strip().lower()
        status, document = await self._ask_within_limits(self._manager.authorize, fields, address=address)
        secret = _secret_of(username, document) if status == 200 else None
        if secret is None:
            return SignIn(token=None, secret=None, problem=document)
        await self._store.clear_failures(f"name:{username}")
        return SignIn(token=await self._begin_login(secret, address, client), secret=secret, problem={})

    async def change_password(self, fields: Mapping[str, str], *, address: str) -> tuple[int, dict[str, Any]]:
        """Changes a password that must be changed before a sign-in.

        The limits of sign-ins apply, because whoever guesses passwords is counted here as there. Returns status and
        answer of the manager. Raises as :meth:`sign_in`.
        """
        return await self._ask_within_limits(self._manager.update_password, fields, address=address)

    async def prove(
        self,
        login: Login,
        fields: Mapping[str, str],
        *,
        address: str,
        ask_manager: Callable[..., Awaitable[tuple[int, dict[str, Any]]]],
    ) -> tuple[int, dict[str, Any]]:
        """Asks the manager to check the password or code of a signed-in user again, and returns status and reply.

        An operation needs the result. The limits of sign-ins hold here too. Raises as :meth:`sign_in`.
        """

        async def prove(_fields: Mapping[str, str], *, address: str) -> tuple[int, dict[str, Any]]:
            return await ask_manager(fields, address=address)

        return await self._ask_within_limits(prove, {"username": login.secret.username}, address=address)

    async def _ask_within_limits(
        self,
        ask_manager: Callable[..., Awaitable[tuple[int, dict[str, Any]]]],
        fields: Mapping[str, str],
        *,
        address: str,
    ) -> tuple[int, dict[str, Any]]:
        name_key, address_key = f"name:{fields['username'].strip().lower()}", _address_key(address)
        await self._count_attempt(address_key, self._limits.address_failures)
        await self._count_attempt(name_key, self._limits.name_failures)
        is_failure = False
        try:
            status, document = await ask_manager(fields, address=address)
            is_failure = 400 < status < 500 and not _is_password_right(document)
        finally:
            if not is_failure:
                await self._add_failures(address_key, -1)
                await self._add_failures(name_key, -1)
        return status, document

    async def sign_in_token(self, fields: Mapping[str, Any], *, address: str, client: str) -> SignIn:
        """Signs in the user whom a token of another site names, and stores the new login session.

        Raises as :meth:`finish_redirect`.
        """
        return await self._sign_in_elsewhere(self._manager.authorize_token, fields, address=address, client=client)

    async def finish_redirect(self, fields: Mapping[str, Any], *, address: str, client: str) -> SignIn:
        """Stores a new login session of a user who comes back from a sign-in service.

        Raises:
            RateLimitExceeded: too many failures of this address. Unavailable: no manager answers, or the store is away.
        """
        return await self._sign_in_elsewhere(self._manager.finish_redirect, fields, address=address, client=client)

    async def _sign_in_elsewhere(
        self,
        ask_manager: Callable[..., Awaitable[tuple[int, dict[str, Any]]]],
        fields: Mapping[str, Any],
        *,
        address: str,
        client: str,
    ) -> SignIn:
        address_key = _address_key(address)
        await self._count_attempt(address_key, self._limits.address_failures)
        secret, is_failure = None, False
        try:
            status, document = await ask_manager(fields, address=address)
            secret = _secret_of("", document) if status == 200 else None
            is_failure = secret is None and status < 500
        finally:
            if not is_failure:
                await self._add_failures(address_key, -1)
        if secret is None:
            return SignIn(token=None, secret=None, problem=document)
        return SignIn(token=await self._begin_login(secret, address, client), secret=secret, problem={})

    async def find(self, token: str | None, *, is_use: bool = True) -> Login | None:
        """Returns the login session to which a cookie's token belongs; None if the session has ended or never existed.

        Raises Unavailable.

        ``is_use``: whether somebody uses the session by this request, which puts its end by inactivity off. A session
        that another web server ends is accepted for :data:`~ai.backend.web.login.recent.RECENT_S` more seconds.
        """
        if not token or len(token) > _MAX_TOKEN_LENGTH:
            return None
        login_id = login_id_of(token)
        recent_login = self._recent.get(login_id)
        if recent_login is not None and not self._is_idle(recent_login.stored):
            if is_use:
                await self._record_use(recent_login.stored)
            return Login(login_id=login_id, secret=recent_login.secret, expires_at=recent_login.stored.expires_at)
        cache_generation = self._recent.generation
        stored_login = await self._find_live(login_id)
        if stored_login is None:
            return None
        if is_use:
            await self._record_use(stored_login)
        try:
            secret_json = _cipher_of(token).decrypt(stored_login.sealed)
            secret = msgspec.json.decode(secret_json, type=LoginSecret)
        except (InvalidToken, msgspec.MsgspecError):
            log.warning("a stored login session cannot be read")
            return None
        self._recent.put(stored_login, secret, generation=cache_generation)
        return Login(login_id=stored_login.login_id, secret=secret, expires_at=stored_login.expires_at)

    async def active_ids(self, login_ids: Collection[str]) -> set[str]:
        """Returns those of the given ids whose login sessions have not ended. Raises Unavailable."""
        return {login_id for login_id in login_ids if await self._find_live(login_id) is not None}

    async def extend(self, login: Login) -> Login:
        """Starts the lifetime of a login session anew. Raises Unavailable."""
        expires_at = self._clock.now() + timedelta(seconds=self._limits.max_age_s)
        await self._store.extend(login.login_id, expires_at)
        self._recent.clear()
        return Login(login_id=login.login_id, secret=login.secret, expires_at=expires_at)

    async def sign_out(self, login: Login, *, everywhere: bool = False) -> None:
        """Ends one login session, or all login sessions of its user. Raises Unavailable."""
        if everywhere:
            await self._store.delete_of_user(login.secret.username)
        await self._store.delete(login.login_id)
        self._recent.clear()

    async def sessions(self, login: Login) -> list[StoredLogin]:
        """Returns the login sessions of a user, newest first. Raises Unavailable."""
        return await self.sessions_of(login.secret.username)

    async def sessions_of(self, username: str) -> list[StoredLogin]:
        """Returns the login sessions of a user by e-mail address, newest first. Raises Unavailable."""
        stored_logins = await self._store.of_user(username.lower(), now=self._clock.now())
        return [login for login in stored_logins if not self._is_idle(login)]

    async def end(self, username: str, public_id: str) -> bool:
        """Ends one login session of a user. Returns False if there is no such session. Raises Unavailable."""
        for stored_login in await self.sessions_of(username):
            if stored_login.public_id == public_id:
                await self._store.delete(stored_login.login_id)
                self._recent.clear()
                return True
        return False

    async def end_others(self, login: Login) -> None:
        """Ends the other login sessions of a user, after the password has changed. Raises Unavailable."""
        await self._store.delete_of_user(login.secret.username, except_id=login.login_id)
        self._recent.clear()

    async def _begin_login(self, secret: LoginSecret, address: str, client: str) -> str:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        now = self._clock.now()
        stored_login = StoredLogin(
            login_id=login_id_of(token),
            username=secret.username,
            sealed=_cipher_of(token).encrypt(msgspec.json.encode(secret)),
            expires_at=now + timedelta(seconds=self._limits.max_age_s),
            created_at=now,
            address=address[:64],
            client=client[:_MAX_CLIENT_LENGTH],
        )
        await self._store.remove_expired(now=now)
        await self._store.put(stored_login)
        return token

    async def _find_live(self, login_id: str) -> StoredLogin | None:
        stored_login = await self._store.get(login_id, now=self._clock.now())
        if stored_login is not None and self._is_idle(stored_login):
            await self._store.delete(login_id)
            self._recent.clear()
            return None
        return stored_login

    def _is_idle(self, stored_login: StoredLogin) -> bool:
        if not self._limits.idle_s:
            return False
        return self._clock.now() - (stored_login.used_at or stored_login.created_at) >= timedelta(
            seconds=self._limits.idle_s
        )

    async def _record_use(self, stored_login: StoredLogin) -> None:
        """Stores the time of a session's use, at most ten times within the idle time that ends the session."""
        now = self._clock.now()
        if self._limits.idle_s and now - (stored_login.used_at or stored_login.created_at) >= timedelta(
            seconds=self._limits.idle_s / _USE_RECORDS_PER_IDLE_TIME
        ):
            await self._store.touch(stored_login.login_id, now)
            self._recent.clear()

    async def _count_attempt(self, key: str, limit: int) -> None:
        if await self._add_failures(key, 1) > limit:
            raise RateLimitExceeded(
                "Too many failed sign-ins; try again later.", data={"retry_after": max(1, self._limits.block_s)}
            )

    async def _add_failures(self, key: str, count: int) -> int:
        now = self._clock.now()
        expires_at = now + timedelta(seconds=self._limits.block_s)
        return await self._store.add_failures(key[:300], count, now=now, expires_at=expires_at)


def _address_key(address: str) -> str:
    return f"address:{client_of(address)}"


def _secret_of(username: str, document: Mapping[str, Any]) -> LoginSecret | None:
    """Returns the keypair and role of a user from a manager's reply to a sign-in.

    Returns None if the manager first requires something else, such as a one-time password.
    """
    data = document.get("data")
    if not isinstance(data, Mapping) or data.get("response_type", "success") != "success":
        return None
    # A directory may know the user by another name than the manager does.
    email = data.get("email")
    secret_username = email.lower() if isinstance(email, str) and email else username
    try:
        return msgspec.convert({**data, "username": secret_username}, LoginSecret)
    except msgspec.ValidationError:
        return None


def _is_password_right(document: Mapping[str, Any]) -> bool:
    """Returns True if a manager refuses a sign-in only because of the one-time password or the password's age."""
    data = document.get("data")
    return isinstance(data, Mapping) and (
        data.get("otp") in ("missing", "unregistered") or data.get("password") in ("must be changed", "expired")
    )


def _cipher_of(token: str) -> Fernet:
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"backendai web login session").derive(token.encode())
    return Fernet(base64.urlsafe_b64encode(key))
