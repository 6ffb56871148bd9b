"""Registers, checks and removes time-based one-time passwords of users (RFC 6238), with recovery codes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pyotp

from ai.backend.common.errors import AuthenticationFailed, Conflict, NotFound, RateLimitExceeded
from ai.backend.common.ids import UserId
from ai.backend.infra.clock import Clock
from ai.backend.manager.identity.model import TotpDevice, User
from ai.backend.manager.identity.settings import TotpSettings
from ai.backend.manager.identity.store import AccountStore

PERIOD_S = 30
DIGITS = 6
RECOVERY_CODE_COUNT = 10
MAX_FAILURES = 5
"""The number of wrong codes of a user after which all codes are refused for :data:`BLOCK_TIME`. That allows 480 guesses
a day of 1,000,000 codes, of which three are valid.
"""
BLOCK_TIME = timedelta(minutes=15)
OTP_MISSING_MESSAGE = "OTP not provided"
"""The text by which published clients know that they must ask for a one-time password (client wire contract 2.10)."""
_DRIFT_STEPS = 1
"""The number of time steps by which a clock may be fast or slow (RFC 6238, 5.2)."""
_CODE_BYTES = 10
_KEY_BYTES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDevice:
    """Holds the key of a new one-time password device, which the user must confirm with a one-time password.

    ``uri`` is what authenticator apps read as a QR code.
    """

    key: str = field(repr=False)
    uri: str = field(repr=False)


@dataclass(eq=False, slots=True)
class TotpService:
    """Registers, verifies and removes one-time passwords.

    ``random_bytes`` makes keys and recovery codes. A recovery code has 80 random bits, so its plain SHA-256 is stored.
    """

    _store: AccountStore
    _clock: Clock
    _settings: TotpSettings
    _random_bytes: Callable[[int], bytes] = secrets.token_bytes

    async def status(self, user_id: UserId) -> TotpDevice | None:
        """Returns the device of a user, or None if the user has no device."""
        return await self._store.totp(user_id)

    async def begin(self, user: User) -> NewDevice:
        """Creates a device, which has no effect before it is confirmed, and replaces an unconfirmed device. Raises
        Conflict if the user has one already.
        """
        key = base64.b32encode(self._random_bytes(_KEY_BYTES)).decode()
        device = TotpDevice(key=key, is_active=False, created_at=self._clock.now())
        if not await self._store.put_totp(user.uuid, device):
            raise Conflict("You have one-time passwords already; remove them first.", data={"totp": "active"})
        uri = pyotp.TOTP(key).provisioning_uri(name=user.email, issuer_name=self._settings.issuer)
        return NewDevice(key=key, uri=uri)

    async def confirm(self, user: User, otp: str) -> Sequence[str]:
        """Activates the device with its first one-time password, and returns recovery codes, which are shown only once.

        Raises:
            NotFound: there is nothing to confirm. AuthenticationFailed: a wrong one. RateLimitExceeded: too many.
        """
        device = await self._store.totp(user.uuid)
        if device is None or device.is_active:
            raise NotFound("There are no one-time passwords to confirm: begin anew.")
        await self._count_try(user)
        step = self._matching_step(device.key, otp)
        codes = self._new_codes()
        digests = [_digest(user.uuid, code) for code in codes]
        if step is None or not await self._store.activate_totp(user.uuid, step=step, digests=digests):
            raise _wrong_otp_error()
        return codes

    async def check(self, user: User, otp: str) -> None:
        """Raises AuthenticationFailed if a user with one-time passwords gives no valid, unused one as ``otp``.

        A recovery code is accepted as well; each password or code is accepted only once.

        Raises:
            AuthenticationFailed: it is missing (``data.otp`` is ``missing``), wrong, or was used before.
            RateLimitExceeded: too many wrong ones lately.
        """
        if not user.totp_activated:
            return
        device = await self._store.totp(user.uuid)
        if device is None or not device.is_active:
            return
        if not otp:
            raise AuthenticationFailed(OTP_MISSING_MESSAGE, data={"otp": "missing"})
        await self._count_try(user)
        step = self._matching_step(device.key, otp)
        if step is not None and await self._store.spend_step(user.uuid, step):
            return
        if step is not None or not await self._store.spend_recovery_code(user.uuid, _digest(user.uuid, otp)):
            raise _wrong_otp_error()

    async def remove(self, user: User, otp: str) -> None:
        """Removes the device of a user who gives a one-time password or a recovery code. Raises NotFound, and as
        :meth:`check`.
        """
        await self._require_active(user)
        await self.check(user, otp)
        await self._store.delete_totp(user.uuid)

    async def reset(self, user_id: UserId) -> None:
        """Removes the device of a user who has lost it, for an administrator; without a device nothing happens."""
        await self._store.delete_totp(user_id)

    async def new_recovery_codes(self, user: User, otp: str) -> Sequence[str]:
        """Replaces the recovery codes and returns the new ones. Raises NotFound, and as :meth:`check`."""
        await self._require_active(user)
        await self.check(user, otp)
        codes = self._new_codes()
        await self._store.replace_recovery_codes(user.uuid, [_digest(user.uuid, code) for code in codes])
        return codes

    async def _require_active(self, user: User) -> None:
        device = await self._store.totp(user.uuid)
        if device is None or not device.is_active:
            raise NotFound("You have no one-time passwords.")

    async def _count_try(self, user: User) -> None:
        if not await self._store.count_totp_try(
            user.uuid, now=self._clock.now(), limit=MAX_FAILURES, window=BLOCK_TIME
        ):
            wait_s = int(BLOCK_TIME.total_seconds())
            raise RateLimitExceeded(
                f"Too many wrong one-time passwords; try again in {wait_s // 60} minutes.", data={"retry_after": wait_s}
            )

    def _matching_step(self, key: str, otp: str) -> int | None:
        """Returns the newest time step of which ``otp`` is the one-time password, or None."""
        otp_digits = "".join(otp.split())
        totp, now_step = (
            pyotp.TOTP(key, digits=DIGITS, interval=PERIOD_S),
            int(self._clock.now().timestamp()) // PERIOD_S,
        )
        accepted_steps = range(now_step + _DRIFT_STEPS, now_step - _DRIFT_STEPS - 1, -1)
        matching_steps = [
            step
            for step in accepted_steps
            if hmac.compare_digest(totp.generate_otp(step).encode(), otp_digits.encode())
        ]
        return matching_steps[0] if matching_steps else None

    def _new_codes(self) -> list[str]:
        raw_codes = (base64.b32encode(self._random_bytes(_CODE_BYTES)).decode() for _ in range(RECOVERY_CODE_COUNT))
        return ["-".join(raw_code[start : start + 4] for start in range(0, len(raw_code), 4)) for raw_code in raw_codes]


def _digest(user_id: UserId, code: str) -> str:
    plain_code = "".join(char for char in code.upper() if char.isalnum())
    return hashlib.sha256(f"{user_id}:{plain_code}".encode(errors="replace")).hexdigest()


def _wrong_otp_error() -> AuthenticationFailed:
    return AuthenticationFailed("Invalid TOTP code provided", data={"otp": "wrong"})
