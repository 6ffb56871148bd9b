"""Defines the activity of sessions, and declares its store. One contract suite (tests/contract/store) runs on every
store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Protocol

import msgspec

from ai.backend.common.ids import SessionId


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the times at which a session was used. ``last_access`` is the time of its user's last request, None if
    there was none; ``usage`` is a window of :mod:`ai.backend.core.idle.window` as JSON.
    """

    session_id: SessionId
    last_access: datetime | None = None
    usage: Mapping[str, Any] = msgspec.field(default_factory=dict)


class ActivityStore(Protocol):
    """Stores the activities of sessions. Every method is one transaction and ignores sessions that do not exist."""

    async def activities(self, session_ids: Collection[SessionId]) -> Mapping[SessionId, Activity]:
        """Returns the stored activities of these sessions; sessions without an activity are left out."""
        ...

    async def note_access(self, accesses: Mapping[SessionId, datetime]) -> None:
        """Stores the times of the last accesses to sessions, if they are later than the stored times."""

    async def put_usage(self, usage: Mapping[SessionId, Mapping[str, Any]]) -> None: ...
