"""What is kept about the use of sessions. One contract suite (tests/contract/store) runs on every implementation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Protocol

from ai.backend.common.ids import SessionId
from ai.backend.manager.idle.model import Activity


class ActivityStore(Protocol):
    """Every method is one transaction; sessions that are gone are passed over."""

    async def activities(self, session_ids: Collection[SessionId]) -> Mapping[SessionId, Activity]:
        """Of those of which anything is kept."""
        ...

    async def note_access(self, accesses: Mapping[SessionId, datetime]) -> None:
        """A time that is earlier than the one that is kept changes nothing."""

    async def put_usage(self, usage: Mapping[SessionId, Mapping[str, Any]]) -> None: ...
