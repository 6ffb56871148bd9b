"""Ends sessions that are idle or have reached their maximum lifetime."""

from __future__ import annotations

import logging
from functools import partial

from ai.backend.common.errors import BackendError
from ai.backend.common.ids import SessionId
from ai.backend.common.states import KernelEventReason
from ai.backend.core.idle.window import Window
from ai.backend.core.lifecycle.events import SessionDestroyRequested
from ai.backend.infra.clock import Clock
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.idle.service import EVALUATED_STATUSES, IdleService
from ai.backend.manager.sessions.changes import Change
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.transitions import advance
from ai.backend.manager.sessions.writer import SessionWriter

log = logging.getLogger(__name__)
_STORE_INTERVAL_S = 60.0
"""Seconds between two writes of the measured usage; usage that is lost with a manager counts as not measured."""


class IdleLoop(PeriodicLoop):
    """Evaluates every running session that has limits, and ends sessions that exceed their limits."""

    period_s = 10.0

    def __init__(self, sessions: SessionStore, idle: IdleService, writer: SessionWriter, clock: Clock) -> None:
        super().__init__()
        self._sessions = sessions
        self._idle = idle
        self._writer = writer
        self._clock = clock
        self._windows: dict[SessionId, Window] = {}
        self._stored_at = self._evaluated_at = clock.monotonic()

    async def once(self) -> None:
        if self._clock.monotonic() - self._evaluated_at > _STORE_INTERVAL_S:
            self._windows = {}  # another manager may have been the leader meanwhile and stored newer ones
        running_sessions = await self._sessions.by_status(EVALUATED_STATUSES) if await self._idle.has_limits() else []
        results = await self._idle.evaluate(running_sessions, self._windows, measure=True)
        self._windows = {result.session.id: result.usage for result in results if result.usage is not None}
        now = self._evaluated_at = self._clock.monotonic()
        if self._windows and now - self._stored_at >= _STORE_INTERVAL_S:
            await self._idle.put_usage(self._windows)
            self._stored_at = now
        for result in results:
            if result.verdict.reason is not None:
                await self._end(result.session, result.verdict.reason)

    async def _end(self, session: Session, reason: KernelEventReason) -> None:
        log.info("session %s is ended: %s", session.id, reason)
        try:
            await self._writer.transition(
                session.id, partial(self._end_change, session, reason), point="commit-destroy"
            )
        except BackendError as e:
            log.warning("session %s could not be ended: %s", session.id, e)

    def _end_change(
        self, evaluated_session: Session, reason: KernelEventReason, stored_session: Session
    ) -> Change | None:
        if (
            stored_session.status not in EVALUATED_STATUSES
            or stored_session.status_changed != evaluated_session.status_changed
        ):
            return None  # the session was restarted or ended meanwhile
        return advance(
            stored_session, SessionDestroyRequested(reason=reason, stimulus_id="idle checks"), now=self._clock.now()
        )
