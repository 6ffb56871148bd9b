"""Defines the port to the storage of login sessions and failed sign-ins."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from ai.backend.web.login.model import StoredLogin


class LoginStore(Protocol):
    """Stores login sessions durably; all web servers with the same settings share them.

    Every method raises Unavailable if the store is away.
    """

    async def start(self) -> None:
        """Prepares the store."""

    async def stop(self) -> None:
        """Closes connections and files. May be called without ``start``."""

    async def put(self, login: StoredLogin) -> None:
        """Stores a new login session until it expires."""

    async def get(self, login_id: str, *, now: datetime) -> StoredLogin | None:
        """Returns a login session that has not expired."""

    async def of_user(self, username: str, *, now: datetime) -> list[StoredLogin]:
        """Returns the login sessions of a user that have not expired, newest first."""
        ...

    async def extend(self, login_id: str, expires_at: datetime) -> None:
        """Changes the expiry of a login session, if the session still exists."""

    async def touch(self, login_id: str, used_at: datetime) -> None:
        """Stores the time of a login session's use, if the session still exists."""

    async def delete(self, login_id: str) -> None:
        """Ends a login session, if it exists."""

    async def delete_of_user(self, username: str, *, except_id: str | None = None) -> None:
        """Ends all login sessions of a user, except the session ``except_id``."""

    async def delete_all(self) -> None:
        """Ends all login sessions."""

    async def add_failures(self, key: str, count: int, *, now: datetime, expires_at: datetime) -> int:
        """Adds failed sign-ins to a name or an address, and returns their number. They are forgotten at ``expires_at``.

        A negative ``count`` takes back what was no failure.
        """

    async def clear_failures(self, key: str) -> None:
        """Deletes the failed sign-ins of a name."""

    async def remove_expired(self, *, now: datetime) -> None:
        """Removes expired records, if the store does not remove them by itself."""
