"""Reads and changes the status of the installation and the announcement in the shared configuration
(peer facts 4.5).
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from ai.backend.common.errors import ServerFrozen
from ai.backend.infra.clock import Clock
from ai.backend.infra.config_store import ConfigStore
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation

STATUS_KEY, ANNOUNCEMENT_KEY = "manager/status", "manager/announcement"
RUNNING, FROZEN = "running", "frozen"
_STATUS_CACHE_S = 1.0
"""The largest age in seconds of the cached status when a session is created."""


class Announcement(msgspec.Struct, frozen=True):
    """A message in Markdown, shown to users if ``enabled``."""

    enabled: bool
    message: str


class LiveSessions(Protocol):
    """Counts and ends the live sessions of the installation."""

    async def count_active(self) -> int: ...
    async def destroy_all(self, caller: Caller) -> int:
        """Ends every live session by force, and returns the number of these sessions. Raises Forbidden."""
        ...


class ManagerState:
    """Reads and changes the status and the announcement of the installation; only superadmins may change them."""

    def __init__(self, store: ConfigStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._cached_status: tuple[float, str] | None = None

    async def status(self) -> str:
        """Returns the status of the installation, ``running`` or ``frozen``."""
        value = await self._store.get(STATUS_KEY)
        status = FROZEN if value == FROZEN else RUNNING
        self._cached_status = (self._clock.monotonic(), status)
        return status

    async def check_running(self) -> None:
        """Raises ServerFrozen if the installation is frozen; a change by another manager has effect within a second."""
        now = self._clock.monotonic()
        cached_status = self._cached_status
        status = (
            cached_status[1]
            if cached_status is not None and now - cached_status[0] < _STATUS_CACHE_S
            else await self.status()
        )
        if status == FROZEN:
            raise ServerFrozen("This installation takes no new sessions now.")

    async def set_status(self, caller: Caller, status: str) -> None:
        """Sets the status of the installation. Existing sessions go on, waiting ones as well."""
        require(caller, Operation.CHANGE_STATE)
        await self._store.put_many({STATUS_KEY: status})
        self._cached_status = (self._clock.monotonic(), status)

    async def announcement(self, fallback: str = "") -> Announcement:
        """Returns the announcement, or ``fallback`` if no administrator has set an announcement."""
        stored_values = await self._store.get_prefix(ANNOUNCEMENT_KEY)
        if f"{ANNOUNCEMENT_KEY}/enabled" not in stored_values:
            return Announcement(bool(fallback), fallback)
        is_enabled = stored_values[f"{ANNOUNCEMENT_KEY}/enabled"].lower() == "true"
        return Announcement(is_enabled, stored_values.get(f"{ANNOUNCEMENT_KEY}/message", ""))

    async def announce(self, caller: Caller, announcement: Announcement) -> None:
        """Replaces the announcement."""
        require(caller, Operation.CHANGE_STATE)
        enabled_text = "true" if announcement.enabled else "false"
        values = {"enabled": enabled_text, "message": announcement.message}
        await self._store.put_many({f"{ANNOUNCEMENT_KEY}/{name}": value for name, value in values.items()})
