"""Tracks when users used their sessions, in memory, and writes the times soon after."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from datetime import datetime

from ai.backend.common.ids import SessionId
from ai.backend.common.structs import replace
from ai.backend.infra.bus import Signal
from ai.backend.infra.clock import Clock
from ai.backend.manager.idle.store import Activity, ActivityStore
from ai.backend.manager.sessions.model import Session

log = logging.getLogger(__name__)
WRITE_INTERVAL_S = 5.0
"""Seconds between two writes; the first access after a pause is written at once, later ones together."""
_FORGET_AFTER_S = 3600.0


class ActivityTracker:
    """Records when the user of each session was last active.

    Each request to a session, and each piece of data of its terminals and tunnels, counts as activity of the user.
    """

    def __init__(self, store: ActivityStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._seen: dict[SessionId, datetime] = {}
        self._dirty: set[SessionId] = set()
        self._signal = Signal()

    def touch(self, session_id: SessionId) -> None:
        """Records that the user of a session is active now."""
        self._seen[session_id] = self._clock.now()
        if session_id not in self._dirty:
            self._dirty.add(session_id)
            self._signal.set()

    def forget(self, session: Session) -> None:
        """Drops the activity of a session that has ended."""
        self._seen.pop(session.id, None)
        self._dirty.discard(session.id)

    async def load(self, session_ids: Collection[SessionId]) -> Mapping[SessionId, Activity]:
        """Returns the last activity of each session, as the store or this process has it, whichever is later."""
        activities = dict(await self._store.activities(session_ids))
        for session_id in session_ids:
            accessed_at = self._seen.get(session_id)
            activity = activities.get(session_id) or Activity(session_id=session_id)
            if accessed_at is not None and (activity.last_access is None or activity.last_access < accessed_at):
                activities[session_id] = replace(activity, last_access=accessed_at)
        return activities

    async def flush(self) -> None:
        """Writes the recorded accesses, which stay recorded if the store fails."""
        dirty_ids, self._dirty = self._dirty, set()
        if dirty_ids:
            try:
                await self._store.note_access(
                    {session_id: self._seen[session_id] for session_id in dirty_ids if session_id in self._seen}
                )
            except BaseException:
                self._dirty |= dirty_ids
                raise
        oldest_kept_s = self._clock.now().timestamp() - _FORGET_AFTER_S
        for session_id in [
            seen_id
            for seen_id, seen_at in self._seen.items()
            if seen_at.timestamp() < oldest_kept_s and seen_id not in self._dirty
        ]:
            del self._seen[session_id]

    async def run(self) -> None:
        """Writes accesses soon after they are recorded, until cancelled."""
        while True:
            await self._signal.wait(None)
            try:
                await self.flush()
            except Exception:  # the loop must outlive any failure of the store
                log.exception("could not write when sessions were used")
                self._signal.set()
            await asyncio.sleep(WRITE_INTERVAL_S)
