"""Verifies and changes passwords (client wire contract 2.9 and 2.10)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import cache, partial
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from ai.backend.common.errors import AuthenticationFailed, Forbidden, InvalidInput, RateLimitExceeded
from ai.backend.common.ids import UserId
from ai.backend.common.states import UserStatus
from ai.backend.infra.clock import Clock
from ai.backend.infra.http.addresses import may_come_from
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import scope_of
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.identity.model import User
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.settings import PasswordPolicy
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.identity.totp import TotpService

MAX_PASSWORD_LENGTH = 1_024
MAX_FAILURES = 10
"""The number of wrong passwords for an e-mail address after which the address is refused for
:data:`LOCKOUT_S` seconds.
"""
LOCKOUT_S = 300.0
MAX_WAITING_REQUESTS = 64
"""The maximum number of requests that may wait for the computation of a hash. Hashes have threads of their own, as
unauthenticated clients cause them.
"""
_MIN_COMMON_LENGTH = 8
_MAX_TRACKED_EMAILS = 10_000
_HASHER = PasswordHasher()
R = TypeVar("R")


def hash_password(password: str) -> str:
    """Returns the argon2id hash of a password, with the default parameters of the library. Slow: call it
    in a thread.
    """
    return _HASHER.hash(password)


def verify_password(stored_hash: str, password: str) -> bool:
    """Returns True if ``stored_hash`` is the hash of the password. Slow: call it in a thread."""
    try:
        return _HASHER.verify(stored_hash, password)
    except (VerificationError, InvalidHashError):
        return False


class PasswordService:
    """Checks and changes the passwords of users. ``hash_`` and ``verify`` are slow functions, which run in threads."""

    def __init__(
        self,
        store: IdentityStore,
        identity: IdentityService,
        clock: Clock,
        hash_: Callable[[str], str],
        verify: Callable[[str, str], bool],
        policy: PasswordPolicy,
        totp: TotpService,
    ) -> None:
        self._store = store
        self._identity = identity
        self._clock = clock
        self._hash = hash_
        self._verify = verify
        self._policy = policy
        self._totp = totp
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._dummy: str | None = None
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="passwords")
        self._waiting = 0

    async def authenticate(self, email: str, password: str) -> User:
        """Returns the active user with this e-mail address and password, and counts wrong passwords.

        Raises:
            AuthenticationFailed: there is none. RateLimitExceeded: too many wrong passwords lately.
        """
        self.count_attempt(email)  # before the first await, so that parallel attempts stay within the limit
        return await self.verify_user(email, password)

    async def change_own(self, caller: Caller, old_password: str, new_password: str) -> None:
        """Changes the caller's password. Raises AuthenticationFailed for a wrong one, InvalidInput for a short one."""
        user = await self.authenticate(caller.email, old_password)
        await self._change_password(user, old_password, new_password)

    async def change_required(
        self, email: str, old_password: str, new_password: str, *, address: str, otp: str = ""
    ) -> None:
        """Changes the password of a user who is not signed in and must change the password before signing in.

        Raises:
            AuthenticationFailed: a wrong password, or the one-time password is missing or wrong.
            Forbidden: the user need not change it, or may not sign in from this address.
            InvalidInput: the new password is against the policy.
        """
        user = await self.authenticate(email, old_password)
        check_address(user, address)
        if not user.need_password_change and self.expired_at(user) is None:
            raise Forbidden("You need not change your password here; sign in.")
        check_password(new_password, self._policy)  # a one-time password is not spent in vain
        await self._totp.check(user, otp)
        await self._change_password(user, old_password, new_password)

    def expired_at(self, user: User) -> datetime | None:
        """Returns the time at which the password of a user expired, or None if it is still valid."""
        if not self._policy.max_age_days:
            return None
        expiry = (user.password_changed_at or user.created_at) + timedelta(days=self._policy.max_age_days)
        return expiry if expiry <= self._clock.now() else None

    async def check_and_hash(self, password: str, *, user_id: UserId | None = None) -> str:
        """Checks a new password by the policy and returns its hash. Raises InvalidInput if it is against the policy,
        such as an old one of the user, and RateLimitExceeded if too many requests wait.
        """
        check_password(password, self._policy)
        if user_id is not None and self._policy.history:
            for old_hash in await self._store.old_passwords(user_id, self._policy.history):
                if await self._in_thread(partial(self._verify, old_hash, password)):
                    raise InvalidInput("You have had that password already.", data={"new_password": "an old one"})
        return await self._in_thread(partial(self._hash, password))

    async def sign_out(self, caller: Caller, email: str, password: str) -> None:
        """Makes the caller and the caller's keypairs inactive; the sessions continue. Raises Forbidden for another
        user's e-mail and for superadmins, AuthenticationFailed for a wrong password.
        """
        if email != caller.email:
            raise Forbidden("You can sign out yourself only.", data={"email": "not your own"})
        if scope_of(caller, Operation.SIGN_OUT) is Scope.NONE:
            raise Forbidden("A superadmin is removed by another one.", data={"email": "a superadmin"})
        user = await self.authenticate(caller.email, password)
        await self._store.change_user(
            user.uuid,
            keypairs={"is_active": False},
            status=UserStatus.INACTIVE,
            status_info="user-requested",
            modified_at=self._clock.now(),
        )
        self._identity.invalidate(caller.access_key)

    async def _change_password(self, user: User, old_password: str, new_password: str) -> None:
        if new_password == old_password:
            raise InvalidInput("That is the old password.", data={"new_password": "the same"})
        new_hash = await self.check_and_hash(new_password, user_id=user.uuid)
        now = self._clock.now()
        await self._store.change_user(
            user.uuid, password_hash=new_hash, need_password_change=False, password_changed_at=now, modified_at=now
        )

    async def verify_user(self, email: str, password: str) -> User:
        """Returns the active user who has this address and password, without counting a wrong password. Raises
        AuthenticationFailed.
        """
        user = await self._store.user(email=email)
        stored_hash = await self._store.password_hash(email)  # read for unknown users too, for equal work
        if user is None or not user.is_active:
            stored_hash = None
        if self._dummy is None:
            self._dummy = await self._in_thread(lambda: self._hash("nobody's password"))
        compared_hash = stored_hash or self._dummy  # an unknown address takes as long as a wrong password
        is_right_password = await self._in_thread(lambda: self._verify(compared_hash, password[:MAX_PASSWORD_LENGTH]))
        if user is None or stored_hash is None or not is_right_password:
            raise wrong_password_error()
        self.forget_attempts(email)
        return user

    async def require_password(self, email: str, stored_hash: str, password: str) -> None:
        """Raises AuthenticationFailed if ``stored_hash`` is not the hash of the password.

        Raises RateLimitExceeded after too many wrong passwords.
        """
        self.count_attempt(email)
        if not await self._in_thread(partial(self._verify, stored_hash, password[:MAX_PASSWORD_LENGTH])):
            raise wrong_password_error()
        self.forget_attempts(email)

    def forget_attempts(self, email: str) -> None:
        """Resets the count of wrong passwords of an address after a right password."""
        self._failures.pop(email, None)

    def count_attempt(self, email: str) -> None:
        """Counts an attempt to give the password of an e-mail address as failed.

        The count starts again after :meth:`forget_attempts`, or :data:`LOCKOUT_S` seconds after the last counted
        attempt. Raises RateLimitExceeded after too many wrong passwords.
        """
        now = self._clock.monotonic()
        failure_count, last_failure_s = self._failures.pop(email, (0, 0.0))
        remaining_s = last_failure_s + LOCKOUT_S - now
        if remaining_s > 0 and failure_count >= MAX_FAILURES:
            self._failures[email] = (failure_count, last_failure_s)
            wait_s = int(remaining_s) + 1
            message = f"Too many wrong passwords; try again in {wait_s} s."
            raise RateLimitExceeded(message, data={"retry_after": wait_s})
        self._failures[email] = (failure_count + 1 if remaining_s > 0 else 1, now)
        if len(self._failures) > _MAX_TRACKED_EMAILS:
            self._failures.popitem(last=False)

    async def _in_thread(self, hash_call: Callable[[], R]) -> R:
        """Runs ``hash_call`` in a thread, since hashing blocks, and returns the result. Raises RateLimitExceeded if too
        many requests wait.
        """
        if self._waiting >= MAX_WAITING_REQUESTS:
            raise RateLimitExceeded("Too many sign in at once; try again in a moment.")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, hash_call)
        finally:
            self._waiting -= 1


@cache
def common_passwords() -> frozenset[str]:
    """Returns some 11,600 passwords of 8 characters or more that occur most often in leaks, in small letters."""
    # The package has 16 MB in memory, so that it is imported only where somebody sets a password.
    from zxcvbn.frequency_lists import FREQUENCY_LISTS

    return frozenset(password for password in FREQUENCY_LISTS["passwords"] if len(password) >= _MIN_COMMON_LENGTH)


def check_password(password: str, policy: PasswordPolicy) -> str:
    """Returns the password if the policy accepts it. Raises InvalidInput if it is too short, too long, common, or has
    too few kinds of characters.
    """
    if not policy.min_length <= len(password) <= MAX_PASSWORD_LENGTH:
        raise InvalidInput(f"A password has {policy.min_length} characters or more.", data={"password": "its length"})
    character_tests = (str.islower, str.isupper, str.isdigit)
    kind_count = sum(any(map(is_of_kind, password)) for is_of_kind in character_tests) + any(
        not char.isalnum() for char in password
    )
    if kind_count < policy.min_kinds:
        message = f"A password has {policy.min_kinds} of: small letters, capital letters, digits, other characters."
        raise InvalidInput(message, data={"password": "its kinds of characters"})
    if policy.refuse_common and password.lower() in common_passwords():
        raise InvalidInput("That password is among the most common ones; choose another.", data={"password": "common"})
    return password


def check_address(user: User, address: str) -> None:
    """Raises Forbidden if a user may not sign in from the network address of the client."""
    if not may_come_from(address, user.allowed_client_ip):
        raise Forbidden("You may not sign in from where you are.")


def wrong_password_error() -> AuthenticationFailed:
    """Returns the error for a wrong password, which is the same for an unknown or inactive user."""
    return AuthenticationFailed("The address or the password is wrong.")
