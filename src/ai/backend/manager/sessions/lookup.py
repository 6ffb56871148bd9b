"""Selects the session that a user names, by the user's rights."""

from __future__ import annotations

from uuid import UUID

from ai.backend.common.errors import Forbidden, SessionNotFound, TooManySessionsMatched
from ai.backend.common.ids import SessionId
from ai.backend.common.states import LIVE_SESSION_STATUSES
from ai.backend.common.structs import replace
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, scope_of
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.writer import SessionWriter

MAX_MATCHES = 10


def _as_session_id(ref: str) -> SessionId | None:
    try:
        return SessionId(UUID(ref)) if len(ref) == 36 else None
    except ValueError:
        return None


def sees(caller: Caller, session: Session) -> bool:
    """Returns True if the caller may see the session."""
    return _is_permitted(caller, Operation.SEE_SESSIONS, session)


def controls(caller: Caller, session: Session) -> bool:
    """Returns True if the caller may change the session."""
    return _is_permitted(caller, Operation.CHANGE_SESSIONS, session)


def _is_permitted(caller: Caller, operation: Operation, session: Session) -> bool:
    is_own = session.user_id == caller.user_id
    return is_permitted(caller, operation, domain_name=session.domain_name, is_own=is_own)


def with_live_statistics(session: Session, metrics: LiveMetrics) -> Session:
    """Returns the session with the latest statistics and the queries that have not been written yet."""
    query_count = metrics.queries_of(session.id)
    stats = [metrics.kernel_statistics(kernel.id) for kernel in session.kernels]
    if not query_count and not any(stats):
        return session
    kernels = tuple(replace(kernel, live_stat=stat) for kernel, stat in zip(session.kernels, stats, strict=True))
    return replace(session, kernels=kernels, num_queries=session.num_queries + query_count)


class LiveSlotUse:
    """Finds a live session that requests a slot. Implements :class:`ai.backend.manager.agents.store.SlotUse`."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    async def slot_user(self, slot: str) -> str | None:
        sessions = await self._store.by_status(LIVE_SESSION_STATUSES)
        return next((f"session {session.id}" for session in sessions if session.requested_slots[slot]), None)


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
        """Returns the live session that a user names. An ended session is returned only by its full id, or as the
        newest of its name. ``ref`` is a name, id or prefix. ``to_change`` requires that the caller controls the
        session; with ``may_be_recent`` a cached copy is sufficient. Raises SessionNotFound, TooManySessionsMatched and
        Forbidden.
        """
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

    async def _find(self, viewer: Caller, owner: Caller, ref: str, *, may_be_recent: bool) -> Session | None:
        session_id = _as_session_id(ref)
        if session_id is not None:
            cached_session = self._writer.recent_session(session_id) if may_be_recent else None
            session = cached_session or await self._store.get(session_id)
            if session is not None and cached_session is None:
                self._writer.cache([session])
            return session
        matching_sessions = await self._store.find_live(owner.access_key, ref, limit=MAX_MATCHES)
        if not matching_sessions and scope_of(viewer, Operation.SEE_SESSIONS) is not Scope.OWN:
            matching_sessions = [
                session
                for session in await self._store.find_live(None, ref, limit=MAX_MATCHES)
                if sees(viewer, session)
            ]
        if len(matching_sessions) > 1:
            raise TooManySessionsMatched(
                data={
                    "matches": [
                        {"id": str(match.id), "name": match.name, "status": match.status.value}
                        for match in matching_sessions
                    ]
                }
            )
        return matching_sessions[0] if matching_sessions else await self._store.newest_named(owner.access_key, ref)

    async def several(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> list[Session]:
        """Returns the owner's live session with the name or id ``ref``, or else the sessions beginning with it.

        A session begins with ``ref`` if its name or id does.
        """
        owner = await self._identity.resolve_owner(caller, owner_access_key)
        return await self._store.find_live(owner.access_key, ref, limit=MAX_MATCHES)
