"""Ends the sessions of users who were deleted."""

from __future__ import annotations

import logging

from ai.backend.common.errors import BackendError
from ai.backend.common.states import LIVE_SESSION_STATUSES, KernelEventReason, SessionStatus
from ai.backend.core.lifecycle.events import SessionDestroyRequested
from ai.backend.infra.clock import Clock
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.sessions.model import SessionQuery
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.writer import SessionWriter

log = logging.getLogger(__name__)
_ENDABLE_STATUSES = tuple(status for status in LIVE_SESSION_STATUSES if status is not SessionStatus.TERMINATING)
_DESTROY_REQUEST = SessionDestroyRequested(
    reason=KernelEventReason.FORCE_TERMINATED, forced=True, stimulus_id="deleted users loop"
)


class DeletedUsersLoop(PeriodicLoop):
    """Ends sessions of deleted users periodically, also if the manager stopped right after the deletion."""

    period_s = 30.0

    def __init__(self, sessions: SessionStore, identities: IdentityStore, writer: SessionWriter, clock: Clock) -> None:
        super().__init__()
        self._sessions = sessions
        self._identities = identities
        self._writer = writer
        self._clock = clock

    async def once(self) -> None:
        owners = await self._sessions.count_live()
        for access_key in await self._identities.keys_of_deleted_users(owners.keys()):
            query = SessionQuery(limit=10_000, access_key=access_key, statuses=_ENDABLE_STATUSES)
            for session in (await self._sessions.search(query)).items:
                log.info("session %s ends: its owner was deleted", session.id)
                try:
                    await self._writer.apply(session.id, _DESTROY_REQUEST, self._clock, point="commit-destroy")
                except BackendError as e:
                    log.warning("session %s could not be ended: %s", session.id, e)
