"""When the users of sessions were last heard of. Noted in memory, written soon after."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from datetime import datetime

from ai.backend.common.ids import SessionId
from ai.backend.infra.bus import Signal
from ai.backend.infra.clock import Clock
from ai.backend.manager.idle.model import Activity
from ai.backend.manager.idle.store import ActivityStore
from ai.backend.manager.sessions.model import Session

log = logging.getLogger(__name__)
WRITE_S = 5.0
"""What is stored is at most so much older than what is true, unless the store cannot be written: the first sign after a
pause is written at once, those that follow it together."""
_FORGET_S = 3600.0


class ActivityTracker:
    """Every request to a session, and every piece of data of its terminals and tunnels, is a sign of its user."""

    def __init__(self, store: ActivityStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._seen: dict[SessionId, datetime] = {}
        self._dirty: set[SessionId] = set()
        self._signal = Signal()

    def touch(self, session_id: SessionId) -> None:
        """Note a sign of life."""
        self._seen[session_id] = self._clock.now()
        if session_id not in self._dirty:
            self._dirty.add(session_id)
            self._signal.set()

    def forget(self, session: Session) -> None:
        """It has ended, and nobody asks any more."""
        self._seen.pop(session.id, None)
        self._dirty.discard(session.id)

    async def load(self, session_ids: Collection[SessionId]) -> Mapping[SessionId, Activity]:
        """Return the activities of sessions: the newest of this process and the store."""
        stored = dict(await self._store.activities(session_ids))
        for session_id in session_ids:
            seen = self._seen.get(session_id)
            if seen is None:
                continue
            activity = stored.get(session_id)
            last_access = activity.last_access if activity is not None else None
            if last_access is None or last_access < seen:
                usage = activity.usage if activity is not None else {}
                stored[session_id] = Activity(session_id=session_id, last_access=seen, usage=usage)
        return stored

    async def flush(self) -> None:
        """Write pending accesses; they stay pending on failure."""
        dirty, self._dirty = self._dirty, set()
        if dirty:
            try:
                await self._store.note_access({i: self._seen[i] for i in dirty if i in self._seen})
            except BaseException:
                self._dirty |= dirty
                raise
        limit = self._clock.now().timestamp() - _FORGET_S
        for session_id in [i for i, at in self._seen.items() if at.timestamp() < limit and i not in self._dirty]:
            del self._seen[session_id]

    async def run(self) -> None:
        """Write whenever there is something, until cancelled."""
        while True:
            await self._signal.wait(None)
            try:
                await self.flush()
            except Exception:  # the loop must outlive any failure of the store
                log.exception("could not write when sessions were used")
                self._signal.set()
            await asyncio.sleep(WRITE_S)
