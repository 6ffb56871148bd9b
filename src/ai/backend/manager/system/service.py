"""What the whole installation is told: whether it takes new sessions, and the announcement (peer facts 4.5).

Both live in the shared configuration, so that every manager says the same and a restart changes nothing:
``manager/status`` is ``running`` or ``frozen``, ``manager/announcement/enabled`` and ``message``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ai.backend.common.errors import ServerFrozen
from ai.backend.infra.clock import Clock
from ai.backend.infra.config_store import ConfigStore
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation

STATUS_KEY, ANNOUNCEMENT_KEY = "manager/status", "manager/announcement"
RUNNING, FROZEN = "running", "frozen"
_FRESH_S = 1.0
"""How old what is known of the status may be when a session is made."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """Markdown; ``enabled`` is whether anybody is to see it."""

    enabled: bool
    message: str


class ManagerState:
    """Everybody reads it, superadmins change it."""

    def __init__(self, store: ConfigStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: tuple[float, str] | None = None

    async def status(self) -> str:
        """``running`` or ``frozen``."""
        value = await self._store.get(STATUS_KEY)
        status = FROZEN if value == FROZEN else RUNNING
        self._known = (self._clock.monotonic(), status)
        return status

    async def check_running(self) -> None:
        """Raises ServerFrozen while no new sessions are taken; another manager's change counts within a second."""
        now = self._clock.monotonic()
        known = self._known
        status = known[1] if known is not None and now - known[0] < _FRESH_S else await self.status()
        if status == FROZEN:
            raise ServerFrozen("This installation takes no new sessions now.")

    async def set_status(self, caller: Caller, status: str) -> None:
        """Freeze or unfreeze. Sessions that are there, waiting ones as well, go on."""
        _check(caller)
        await self._store.put_many({STATUS_KEY: status})
        self._known = (self._clock.monotonic(), status)

    async def announcement(self, fallback: str = "") -> Announcement:
        """What administrators want everybody to read; ``fallback`` until one of them has said anything."""
        kept = await self._store.get_prefix(ANNOUNCEMENT_KEY)
        if f"{ANNOUNCEMENT_KEY}/enabled" not in kept:
            return Announcement(bool(fallback), fallback)
        is_enabled = kept[f"{ANNOUNCEMENT_KEY}/enabled"].lower() == "true"
        return Announcement(is_enabled, kept.get(f"{ANNOUNCEMENT_KEY}/message", ""))

    async def announce(self, caller: Caller, announcement: Announcement) -> None:
        """Replace it."""
        _check(caller)
        await self._store.put_many(
            {
                f"{ANNOUNCEMENT_KEY}/enabled": "true" if announcement.enabled else "false",
                f"{ANNOUNCEMENT_KEY}/message": announcement.message,
            }
        )


def _check(caller: Caller) -> None:
    require(caller, Operation.CHANGE_STATE)
