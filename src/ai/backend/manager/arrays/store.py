"""Declares the store of arrays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol
from uuid import UUID

from ai.backend.common.ids import SessionId
from ai.backend.manager.arrays.model import ArrayQuery, SessionArray, Throttle
from ai.backend.manager.query.model import Page
from ai.backend.manager.sessions.changes import EventDraft
from ai.backend.manager.sessions.model import OwnerLimits, Session


class ArrayStore(Protocol):
    """Reads arrays from the sessions that are their elements. Every method is one transaction."""

    async def insert(
        self,
        sessions: Sequence[tuple[Session, EventDraft]],
        *,
        limits: OwnerLimits,
        replaced_ids: Collection[SessionId] = (),
    ) -> None:
        """Writes new elements of one owner with their events, all or none. Ended elements in ``replaced_ids`` leave
        their array. Raises SessionAlreadyExists for the name of a live session, and LimitExceeded.
        """

    async def arrays(self, query: ArrayQuery) -> Page[SessionArray]: ...

    async def elements(self, array_id: UUID) -> list[Session]:
        """Returns the elements of an array by their index."""
        ...

    async def throttled_arrays(self) -> list[Throttle]:
        """Returns the arrays that have held elements which may be scheduled now."""
        ...

    async def held_elements(self, array_id: UUID, limit: int) -> list[Session]:
        """Returns the first held elements of an array."""
        ...
