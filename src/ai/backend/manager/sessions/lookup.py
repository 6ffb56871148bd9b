"""Selects the session that a user names, by the user's rights."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from ai.backend.common.errors import Forbidden, SessionNotFound, TooManySessionsMatched
from ai.backend.common.ids import SessionId
from ai.backend.common.states import LIVE_SESSION_STATUSES
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, scope_of
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.writer import SessionWriter

MATCHES = 10


def _as_id(ref: str) -> SessionId | None:
    try:
        return SessionId(UUID(ref)) if len(ref) == 36 else None
    except ValueError:
        return None


def sees(caller: Caller, session: Session) -> bool:
    """Returns True if the caller may see the session."""
    return _permits(caller, Operation.SEE_SESSIONS, session)


def controls(caller: Caller, session: Session) -> bool:
    """Returns True if the caller may change the session."""
    return _permits(caller, Operation.CHANGE_SESSIONS, session)


def _permits(caller: Caller, operation: Operation, session: Session) -> bool:
    is_own = session.user_id == caller.user_id
    return is_permitted(caller, operation, domain_name=session.domain_name, is_own=is_own)


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
        """Returns a live session; a final one only by its full id, or the newest of that name if no live one has it.
        ``ref`` is a name, id or prefix. ``to_change`` requires that the caller controls the session; with
        ``may_be_recent`` a cached copy is sufficient. Raises SessionNotFound, TooManySessionsMatched and Forbidden."""
        owner = await self._identity.resolve_owner(caller, owner_access_key)
        scope = caller if owner_access_key is None else owner
        session = await self._find(scope, owner, ref, may_be_recent=may_be_recent)
        if session is None or not sees(scope, session) or not sees(caller, session):
            raise SessionNotFound(f"There is no such session: {ref[:64]!r}.")
        if to_change and not controls(caller, session):
            raise Forbidden("You may look at this session only.")
        if (
            to_change
            and scope_of(caller, Operation.CHANGE_SESSIONS) is Scope.DOMAIN
            and session.user_id != caller.user_id
        ):
            # Programs in the session have the rights of its owner, whose folders are mounted.
            await self._identity.resolve_owner(caller, session.access_key)
        return session

    async def _find(self, scope: Caller, owner: Caller, ref: str, *, may_be_recent: bool) -> Session | None:
        session_id = _as_id(ref)
        if session_id is not None:
            recent = self._writer.recent(session_id) if may_be_recent else None
            session = recent or await self._store.get(session_id)
            if session is not None and recent is None:
                self._writer.cache([session])
            return session
        matches = await self._store.find_live(owner.access_key, ref, limit=MATCHES)
        if not matches and scope_of(scope, Operation.SEE_SESSIONS) is not Scope.OWN:
            matches = [s for s in await self._store.find_live(None, ref, limit=MATCHES) if sees(scope, s)]
        if len(matches) > 1:
            raise TooManySessionsMatched(
                data={"matches": [{"id": str(s.id), "name": s.name, "status": s.status.value} for s in matches]}
            )
        return matches[0] if matches else await self._store.newest_named(owner.access_key, ref)

    async def several(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> list[Session]:
        """Returns the owner's live sessions that match; only the exact match if there is one."""
        owner = await self._identity.resolve_owner(caller, owner_access_key)
        return await self._store.find_live(owner.access_key, ref, limit=MATCHES)
