"""Ends the sessions that hold a device which an administrator drains."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ai.backend.common.errors import BackendError
from ai.backend.common.ids import SessionId
from ai.backend.common.states import KernelEventReason, SessionStatus, SessionType
from ai.backend.core.lifecycle.events import SessionDestroyRequested, SessionStartOverRequested
from ai.backend.infra.clock import Clock
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.writer import SessionWriter

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class DeviceDrainage:
    """Ends the sessions on devices that are drained. Implements
    :class:`ai.backend.manager.agents.store.Drainage`."""

    store: SessionStore
    writer: SessionWriter
    clock: Clock

    async def end(self, session_ids: Sequence[SessionId], *, start_over: bool, stimulus_id: str) -> None:
        for session in await self.store.get_many(list(session_ids)) if session_ids else []:
            is_running_batch = session.type is SessionType.BATCH and session.status is SessionStatus.RUNNING
            event = (
                SessionStartOverRequested(stimulus_id=stimulus_id)
                if start_over and is_running_batch
                else SessionDestroyRequested(reason=KernelEventReason.PREEMPTED, stimulus_id=stimulus_id)
            )
            try:
                await self.writer.apply(session.id, event, self.clock, point="commit-destroy")
            except BackendError as e:  # it has just ended, or ends
                log.info("the session %s does not end for a drained device: %s", session.id, e.message)
