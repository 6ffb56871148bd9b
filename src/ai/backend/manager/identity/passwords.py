"""Signs users in by password, and changes passwords (client wire contract 2.9 and 2.10)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from ai.backend.common.errors import AuthenticationFailed, Forbidden, InvalidInput, RateLimitExceeded
from ai.backend.common.states import UserStatus
from ai.backend.infra.clock import Clock
from ai.backend.infra.http.addresses import may_come_from
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import scope_of
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.hooks import Hooks
from ai.backend.manager.identity.model import NewKeypair, User
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.plugin.hooks import Account, SignOn

MIN_PASSWORD_LENGTH = 8
MAX_PASSWORD_LENGTH = 1_024
MAX_FAILURES = 10
"""Wrong passwords for one e-mail address before it is refused for :data:`LOCKOUT_S` seconds."""
LOCKOUT_S = 300.0
MAX_WAITING_REQUESTS = 64
"""Requests that may wait for a hash. Hashes have threads of their own, as unauthenticated clients cause them."""
_MAX_TRACKED_EMAILS = 10_000
_HASHER = PasswordHasher()
R = TypeVar("R")


def hash_password(password: str) -> str:
    """Hashes a password by argon2id with the library's parameters. Slow: call it in a thread."""
    return _HASHER.hash(password)


def verify_password(stored: str, password: str) -> bool:
    """Returns whether ``stored`` is the hash of the password. Slow: call it in a thread."""
    try:
        return _HASHER.verify(stored, password)
    except (VerificationError, InvalidHashError):
        return False


class PasswordService:
    """Checks and changes passwords. ``hash_`` and ``verify`` are slow functions, which run in threads."""

    def __init__(
        self,
        store: IdentityStore,
        identity: IdentityService,
        clock: Clock,
        hash_: Callable[[str], str],
        verify: Callable[[str, str], bool],
        hooks: Hooks,
    ) -> None:
        self._store = store
        self._identity = identity
        self._clock = clock
        self._hash = hash_
        self._verify = verify
        self._hooks = hooks
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._dummy: str | None = None
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="passwords")
        self._waiting = 0

    async def sign_in(
        self, email: str, password: str, *, address: str, domain_name: str | None = None
    ) -> tuple[User, NewKeypair]:
        """Signs a user in from the client at ``address`` and returns the user's main keypair. A hook plugin may know
        the user by another secret than the password.

        Raises:
            AuthenticationFailed: no active user has this e-mail and password, or the password must be changed first.
            Forbidden: the user may not sign in from this address, or a hook plugin refuses.
            RateLimitExceeded: too many wrong passwords lately. Unavailable: a hook plugin fails.
        """
        self._count_attempt(email)  # before the first await, so that parallel attempts stay within the limit
        known_email = await self._hooks.sign_on(SignOn(name=email, secret=password, address=address))
        if known_email is None:
            user = await self._verified_user(email, password)
        else:
            user = await self._hook_user(known_email)
            self._failures.pop(email, None)
        if domain_name not in (None, user.domain_name):
            raise _wrong_password()
        _check_address(user, address)
        account = Account(email=user.email, username=user.username, domain_name=user.domain_name, role=user.role.value)
        await self._hooks.check_sign_on(account, address)
        if user.need_password_change and known_email is None:
            raise AuthenticationFailed("The password must be changed first.", data={"password": "must be changed"})
        credentials = await self._identity.credentials(user.main_access_key or "")
        if credentials is None or not credentials.is_active:
            raise _wrong_password()
        return user, NewKeypair(access_key=credentials.caller.access_key, secret_key=credentials.secret_key)

    async def change_own(self, caller: Caller, old: str, new: str) -> None:
        """Changes the caller's password. Raises AuthenticationFailed for a wrong one, InvalidInput for a short one."""
        user = await self._authenticate(caller.email, old)
        await self._change_password(user, old, new)

    async def change_required(self, email: str, old: str, new: str, *, address: str) -> None:
        """Changes a password that must be changed before signing in. Raises Forbidden for other users."""
        user = await self._authenticate(email, old)
        _check_address(user, address)
        if not user.need_password_change:
            raise Forbidden("You need not change your password here; sign in.")
        await self._change_password(user, old, new)

    async def sign_out(self, caller: Caller, email: str, password: str) -> None:
        """Makes the caller and all their keypairs inactive; sessions go on. Raises Forbidden for another user's e-mail
        and for superadmins, AuthenticationFailed for a wrong password."""
        if email != caller.email:
            raise Forbidden("You can sign out yourself only.", data={"email": "not your own"})
        if scope_of(caller, Operation.SIGN_OUT) is Scope.NONE:
            raise Forbidden("A superadmin is removed by another one.", data={"email": "a superadmin"})
        user = await self._authenticate(caller.email, password)
        await self._store.change_user(
            user.uuid,
            keypairs={"is_active": False},
            status=UserStatus.INACTIVE,
            status_info="user-requested",
            modified_at=self._clock.now(),
        )
        self._identity.invalidate(caller.access_key)

    async def _change_password(self, user: User, old: str, new: str) -> None:
        check_password(new)
        if new == old:
            raise InvalidInput("That is the old password.", data={"new_password": "the same"})
        hashed = await self._in_thread(lambda: self._hash(new))
        now = self._clock.now()
        await self._store.change_user(user.uuid, password_hash=hashed, need_password_change=False, modified_at=now)

    async def _authenticate(self, email: str, password: str) -> User:
        """Returns the active user with this address and password. Raises AuthenticationFailed, RateLimitExceeded."""
        self._count_attempt(email)  # before the first await, so that parallel attempts stay within the limit
        return await self._verified_user(email, password)

    async def _hook_user(self, email: str) -> User:
        user = await self._store.user(email=email)
        if user is None or not user.is_active:
            raise _wrong_password()
        return user

    async def _verified_user(self, email: str, password: str) -> User:
        user = await self._store.user(email=email)
        stored = await self._store.password_hash(email) if user is not None and user.is_active else None
        if self._dummy is None:
            self._dummy = await self._in_thread(lambda: self._hash("nobody's password"))
        expected = stored or self._dummy  # an unknown address takes as long as a wrong password
        is_right = await self._in_thread(lambda: self._verify(expected, password[:MAX_PASSWORD_LENGTH]))
        if user is None or stored is None or not is_right:
            raise _wrong_password()
        self._failures.pop(email, None)
        return user

    def _count_attempt(self, email: str) -> None:
        """Counts an attempt. Raises RateLimitExceeded after too many wrong passwords."""
        now = self._clock.monotonic()
        count, last = self._failures.pop(email, (0, 0.0))
        remaining_s = last + LOCKOUT_S - now
        if remaining_s > 0 and count >= MAX_FAILURES:
            self._failures[email] = (count, last)
            wait_s = int(remaining_s) + 1
            message = f"Too many wrong passwords; try again in {wait_s} s."
            raise RateLimitExceeded(message, data={"retry_after": wait_s})
        self._failures[email] = (count + 1 if remaining_s > 0 else 1, now)
        if len(self._failures) > _MAX_TRACKED_EMAILS:
            self._failures.popitem(last=False)

    async def _in_thread(self, work: Callable[[], R]) -> R:
        """Runs ``work`` in a thread. Raises RateLimitExceeded if too many requests wait."""
        if self._waiting >= MAX_WAITING_REQUESTS:
            raise RateLimitExceeded("Too many sign in at once; try again in a moment.")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._waiting -= 1


def check_password(password: str) -> str:
    """Returns the password. Raises InvalidInput if it is too short or too long."""
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise InvalidInput(f"A password has {MIN_PASSWORD_LENGTH} characters or more.", data={"password": "its length"})
    return password


def _check_address(user: User, address: str) -> None:
    if not may_come_from(address, user.allowed_client_ip):
        raise Forbidden("You may not sign in from where you are.")


def _wrong_password() -> AuthenticationFailed:
    return AuthenticationFailed("The address or the password is wrong.")
