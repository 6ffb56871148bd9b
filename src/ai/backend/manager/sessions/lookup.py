"""Finds the session that a user names."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from ai.backend.common.errors import Forbidden, SessionNotFound, TooManySessionsMatched
from ai.backend.common.ids import SessionId
from ai.backend.common.states import LIVE_SESSION_STATUSES, UserRole
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.sessions.access import controls, sees
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.writer import SessionWriter

MATCHES = 10


def _as_id(ref: str) -> SessionId | None:
    try:
        return SessionId(UUID(ref)) if len(ref) == 36 else None
    except ValueError:
        return None


def with_live_statistics(session: Session, metrics: LiveMetrics) -> Session:
    """Returns the session with the latest statistics and the queries that have not been written yet."""
    queries = metrics.queries_of(session.id)
    stats = [metrics.of_kernel(k.id) for k in session.kernels]
    if not queries and not any(stats):
        return session
    kernels = tuple(replace(k, live_stat=stat) for k, stat in zip(session.kernels, stats, strict=True))
    return replace(session, kernels=kernels, num_queries=session.num_queries + queries)


class LiveSlotUse:
    """Implements :class:`ai.backend.manager.agents.store.SlotUse`."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    async def slot_user(self, slot: str) -> str | None:
        sessions = await self._store.by_status(LIVE_SESSION_STATUSES)
        return next((f"session {s.id}" for s in sessions if s.requested_slots[slot]), None)


class SessionFinder:
    """Finds sessions by name, id, or a prefix of either, among those that the caller sees."""

    def __init__(self, store: SessionStore, writer: SessionWriter, identity: IdentityService) -> None:
        self._store = store
        self._writer = writer
        self._identity = identity

    async def one(
        self,
        caller: Caller,
        ref: str,
        *,
        owner_access_key: str | None = None,
        to_change: bool = False,
        may_be_recent: bool = False,
    ) -> Session:
        """Return a live session; a final one only by its full id, or the newest of that name if no live one has it.

        Args:
            caller: the user of the request.
            ref: name, id or prefix.
            owner_access_key: the owner of the session.
            to_change: also require that the caller controls it.
            may_be_recent: a cached copy is sufficient.

        Raises:
            SessionNotFound, TooManySessionsMatched, Forbidden.
        """
        owner = await self._identity.resolve_owner(caller, owner_access_key)
        scope = caller if owner_access_key is None else owner
        session = await self._find(scope, owner, ref, may_be_recent=may_be_recent)
        if session is None or not sees(scope, session) or not sees(caller, session):
            raise SessionNotFound(f"There is no such session: {ref[:64]!r}.")
        if to_change and not controls(caller, session):
            raise Forbidden("You may look at this session only.")
        if to_change and caller.role is UserRole.ADMIN and session.user_id != caller.user_id:
            # Programs in the session have the rights of its owner, whose folders are mounted.
            await self._identity.resolve_owner(caller, session.access_key)
        return session

    async def _find(self, scope: Caller, owner: Caller, ref: str, *, may_be_recent: bool) -> Session | None:
        session_id = _as_id(ref)
        if session_id is not None:
            recent = self._writer.recent(session_id) if may_be_recent else None
            session = recent or await self._store.get(session_id)
            if session is not None and recent is None:
                self._writer.note([session])
            return session
        matches = await self._store.find_live(owner.access_key, ref, limit=MATCHES)
        if not matches and (scope.is_any_admin or scope.sees_all):
            matches = [s for s in await self._store.find_live(None, ref, limit=MATCHES) if sees(scope, s)]
        if len(matches) > 1:
            raise TooManySessionsMatched(
                data={"matches": [{"id": str(s.id), "name": s.name, "status": s.status.value} for s in matches]}
            )
        return matches[0] if matches else await self._store.newest_named(owner.access_key, ref)

    async def several(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> list[Session]:
        """Return the owner's live sessions that match; only the exact match if there is one."""
        owner = await self._identity.resolve_owner(caller, owner_access_key)
        return await self._store.find_live(owner.access_key, ref, limit=MATCHES)
