"""Stores the activities of sessions in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from ai.backend.common.ids import SessionId
from ai.backend.common.structs import replace
from ai.backend.manager.idle.store import Activity
from ai.backend.manager.leadership.memory import check_fence
from ai.backend.manager.sessions.memory import Memory


class MemoryActivityStore:
    """Implements :class:`ai.backend.manager.idle.store.ActivityStore`."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory
        self._activities: dict[SessionId, Activity] = {}

    async def activities(self, session_ids: Collection[SessionId]) -> Mapping[SessionId, Activity]:
        return {
            session_id: self._activities[session_id] for session_id in session_ids if session_id in self._activities
        }

    async def note_access(self, accesses: Mapping[SessionId, datetime]) -> None:
        check_fence()
        for session_id, accessed_at in accesses.items():
            activity = self._stored_activity(session_id)
            if activity is not None and (activity.last_access is None or activity.last_access < accessed_at):
                self._activities[session_id] = replace(activity, last_access=accessed_at)

    async def put_usage(self, usage: Mapping[SessionId, Mapping[str, Any]]) -> None:
        check_fence()
        for session_id, usage_window in usage.items():
            activity = self._stored_activity(session_id)
            if activity is not None:
                self._activities[session_id] = replace(activity, usage=dict(usage_window))

    def _stored_activity(self, session_id: SessionId) -> Activity | None:
        if self._memory is not None and session_id not in self._memory.sessions:
            return None
        return self._activities.get(session_id, Activity(session_id=session_id))
