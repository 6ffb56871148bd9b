"""Caches login sessions that a request has just used, so that the next request reads no store and decrypts nothing."""

from __future__ import annotations

import msgspec

from ai.backend.infra.clock import Clock
from ai.backend.web.login.model import LoginSecret, StoredLogin

RECENT_S = 1.0
"""Seconds for which a login session that another web server ended is still accepted here."""
_MAX_LOGINS = 10_000


class RecentLogin(msgspec.Struct, frozen=True):
    """Holds a login session as it was read from the store, with its decrypted secret and the time of reading.

    The cookie's token has decrypted the secret.
    """

    stored: StoredLogin
    secret: LoginSecret
    read_at_s: float


class RecentLogins:
    """Keeps login sessions for :data:`RECENT_S` seconds after they were read, at most 10,000 of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logins: dict[str, RecentLogin] = {}
        self.generation = 0
        """Grows with each change, so that a session which was read before a change is not kept after it."""

    def get(self, login_id: str) -> RecentLogin | None:
        """Returns a login session that was read less than :data:`RECENT_S` seconds ago."""
        recent_login = self._logins.get(login_id)
        if recent_login is None:
            return None
        if (
            self._clock.monotonic() - recent_login.read_at_s >= RECENT_S
            or recent_login.stored.expires_at <= self._clock.now()
        ):
            del self._logins[login_id]
            return None
        return recent_login

    def put(self, stored: StoredLogin, secret: LoginSecret, *, generation: int) -> None:
        """Caches a login session, unless the cache was cleared since the session was read in ``generation``."""
        if generation != self.generation:
            return
        if len(self._logins) >= _MAX_LOGINS:
            self._logins.clear()
        self._logins[stored.login_id] = RecentLogin(stored, secret, self._clock.monotonic())

    def clear(self) -> None:
        """Removes all cached login sessions, because some have ended or changed."""
        self.generation += 1
        self._logins.clear()
