"""Releases held elements of arrays to the scheduler, as many as each array allows at a time."""

from __future__ import annotations

from ai.backend.common.errors import StaleVersion
from ai.backend.common.structs import replace
from ai.backend.infra.bus import Bus
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.arrays.store import ArrayStore
from ai.backend.manager.sessions.changes import Change
from ai.backend.manager.sessions.writer import SessionWriter
from ai.backend.manager.topics import SCHEDULE


class ArrayLoop(PeriodicLoop):
    """Releases held elements of arrays to the scheduler, until as many elements are live as the array's limit allows.

    Held elements do not count as live here.
    """

    period_s = 5.0

    def __init__(self, store: ArrayStore, writer: SessionWriter, bus: Bus) -> None:
        super().__init__()
        self._store = store
        self._writer = writer
        self._bus = bus

    async def once(self) -> None:
        for throttle in await self._store.throttled_arrays():
            held_sessions = await self._store.held_elements(throttle.array_id, throttle.free)
            changes = [Change(old=session, new=replace(session, starts_at=None)) for session in held_sessions]
            try:
                await self._writer.commit(changes, point="commit-release")
            except StaleVersion:
                self.wake()  # one of them was ended meanwhile
                continue
            self._bus.publish(SCHEDULE)
