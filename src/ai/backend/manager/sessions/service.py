"""The use cases of sessions: creation, reading, renaming, restart, destruction."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from ai.backend.common.errors import (
    Conflict,
    DeadlineExceeded,
    SessionAlreadyExists,
    StaleVersion,
)
from ai.backend.common.ids import AccessKey, AgentId, SessionId
from ai.backend.common.names import check_session_name
from ai.backend.common.states import LIVE_SESSION_STATUSES, KernelEventReason, SessionStatus, UserRole
from ai.backend.core.lifecycle.events import SessionDestroyRequested, SessionRestartRequested
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import Clock
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.query.model import Page
from ai.backend.manager.sessions.access import sees
from ai.backend.manager.sessions.changes import Change
from ai.backend.manager.sessions.creation.factory import SessionFactory
from ai.backend.manager.sessions.lookup import SessionFinder, with_live_statistics
from ai.backend.manager.sessions.model import (
    CreateReply,
    CreateSession,
    DependencyNode,
    DestroyReply,
    Kernel,
    Session,
    SessionMatch,
    SessionQuery,
    SlotAudit,
)
from ai.backend.manager.sessions.settings import SessionSettings
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.transitions import advance, enqueued_event
from ai.backend.manager.sessions.writer import SessionWriter

_MAX_DEPTH = 16


def _has_started(session: Session) -> bool:
    return session.started_at is not None or session.status.is_final


def _has_ended(session: Session) -> bool:
    return session.status.is_final


class SessionService:
    """Use cases on sessions. ``ref`` is a name, an id or an unambiguous prefix of an id.

    Another user's session is SessionNotFound unless the caller's role sees it (superadmin and monitor: all; admin: own
    domain). Every method takes ``owner_access_key`` as IdentityService.resolve_owner does.
    """

    def __init__(
        self,
        *,
        store: SessionStore,
        writer: SessionWriter,
        factory: SessionFactory,
        finder: SessionFinder,
        identity: IdentityService,
        stats: LiveMetrics,
        bus: Bus,
        clock: Clock,
        settings: SessionSettings,
    ) -> None:
        self._store = store
        self._writer = writer
        self._factory = factory
        self._finder = finder
        self._identity = identity
        self._stats = stats
        self._bus = bus
        self._clock = clock
        self._settings = settings

    # ---- creation ----

    async def create(self, caller: Caller, request: CreateSession, *, call_id: UUID | None = None) -> CreateReply:
        """Enqueue a session and, unless ``enqueue_only``, wait until it has started, failed or the wait ran out.

        ``call_id`` becomes the id of the session. Two calls with the same ``call_id`` or the same name give one
        session; the later one gets ``created=False``, for a name only if ``reuse_if_exists`` and the image is the same.

        Raises:
            InvalidInput, InvalidName, InvalidQuantity: ``data`` maps the wire field to what is wrong.
            ImageNotFound: ``data.available`` lists the images.
            UnsupportedResource: no agent ever reported a requested slot.
            InsufficientResource: no agent of the resource group, even if empty, could hold it.
            SessionAlreadyExists, LimitExceeded, Forbidden, NotFound (group, domain, resource group).
        """
        owner = await self._identity.resolve_owner(caller, request.owner_access_key)
        session_id = SessionId(call_id) if call_id is not None else None
        existing = await self._existing(owner, request, session_id)
        if existing is None:
            session, limits = await self._factory.build(caller, owner, request, session_id)
            events = [enqueued_event(session)]
            try:
                await self._writer.insert(session, events, limits=limits)
            except SessionAlreadyExists:
                existing = await self._existing(owner, request, session_id)
                if existing is None:
                    raise
            else:
                return await self._started(session, request, created=True)
        return await self._started(existing, request, created=False)

    async def _existing(self, owner: Caller, request: CreateSession, session_id: SessionId | None) -> Session | None:
        """Return the existing session that the request names.

        Raises:
            SessionAlreadyExists: the existing session must not be reused.
        """
        if session_id is not None:
            created = await self._store.get(session_id)
            if created is not None:
                return created
        if request.name is None:
            return None
        named = [s for s in await self._store.find_live(owner.access_key, request.name) if s.name == request.name]
        if not named:
            return None
        if not request.reuse_if_exists or not await self._factory.is_image_of(named[0], request.image):
            raise SessionAlreadyExists(data={"existingSessionId": str(named[0].id)})
        return named[0]

    async def _started(self, session: Session, request: CreateSession, *, created: bool) -> CreateReply:
        if request.enqueue_only or _has_started(session):
            return CreateReply(session=session, status=session.status.value, created=created)
        timeout_s = request.max_wait_s or None
        reached = await self._writer.wait_until(session.id, _has_started, timeout_s=timeout_s)
        if reached is None:
            return CreateReply(session=await self._writer.load(session.id), status="TIMEOUT", created=created)
        return CreateReply(session=reached, status=reached.status.value, created=created)

    # ---- reading ----

    async def get(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> Session:
        """Return a live session; a final one only by its full id, or the newest of that name if no live one has it.

        Raises:
            SessionNotFound, TooManySessionsMatched.
        """
        session = await self._finder.one(caller, ref, owner_access_key=owner_access_key)
        return with_live_statistics(session, self._stats)

    async def get_by_id(self, caller: Caller, session_id: SessionId) -> Session:
        """Return a session of any status with live statistics (GraphQL ``compute_session``)."""
        return await self.get(caller, str(session_id))

    async def search(self, caller: Caller, query: SessionQuery) -> Page[Session]:
        """Return sessions with live statistics: users see their own, admins their domain, superadmins all.

        A plain user who names another access key gets Forbidden.
        """
        if caller.role is UserRole.ADMIN:
            query = replace(query, domain_name=caller.domain_name)
        elif not caller.sees_all:
            if query.access_key is not None:
                await self._identity.resolve_owner(caller, query.access_key)
            query = replace(query, access_key=query.access_key or caller.access_key)
        page = await self._store.search(query)
        return Page(items=[with_live_statistics(s, self._stats) for s in page.items], total_count=page.total_count)

    async def match(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> list[SessionMatch]:
        """Return at most 10 live sessions whose name or id starts with ``ref``, or only the exact match."""
        sessions = await self._finder.several(caller, ref, owner_access_key=owner_access_key)
        return [SessionMatch(id=s.id, name=s.name, status=s.status) for s in sessions]

    async def kernels_of_agent(self, caller: Caller, agent_id: str, *, statuses: tuple[str, ...] = ()) -> list[Kernel]:
        """Return the kernels of live sessions on an agent; an empty list for users who do not see all."""
        if not is_permitted(caller, Operation.SEE_AGENTS):
            return []
        sessions = await self._store.on_agent(AgentId(agent_id))
        kernels = [k for s in sessions for k in with_live_statistics(s, self._stats).kernels]
        return [k for k in kernels if k.agent == agent_id and (not statuses or k.status in statuses)]

    async def get_many(self, caller: Caller, ids: tuple[SessionId, ...]) -> Mapping[SessionId, Session]:
        """Return the sessions of ``ids`` that the caller may see (GraphQL ``dependencies``)."""
        return {s.id: s for s in await self._store.get_many(ids) if sees(caller, s)}

    async def concurrency_used(self, access_keys: tuple[AccessKey, ...]) -> Mapping[AccessKey, int]:
        """Return the number of live sessions of each access key."""
        return await self._store.count_live(access_keys)

    async def count_active(self) -> int:
        """Return the number of live sessions of the cluster (``/manager/status``)."""
        return sum((await self._store.count_live()).values())

    async def recount(self, caller: Caller) -> SlotAudit:
        """Compares the recorded slots of agents with those that their kernels hold. Raises Forbidden.

        Nothing is corrected: slots are recorded in the transactions that occupy and release them.
        """
        require(caller, Operation.RECOUNT_SLOTS)
        return await self._store.audit()

    async def status_history(
        self, caller: Caller, ref: str, *, owner_access_key: str | None = None
    ) -> Mapping[str, str | None]:
        """Return lower-case status -> ISO time of the last entry; ``preparing`` and ``terminated`` are always there."""
        session = await self._finder.one(caller, ref, owner_access_key=owner_access_key)
        history = {name.lower(): at for name, at in session.status_history.items()}
        return {"preparing": None, "terminated": None, **history}

    async def dependency_graph(
        self, caller: Caller, ref: str, *, owner_access_key: str | None = None
    ) -> DependencyNode:
        """Return the session and its dependencies, to a depth of 16."""
        session = await self._finder.one(caller, ref, owner_access_key=owner_access_key)
        return await self._node(caller, session, _MAX_DEPTH)

    async def _node(self, caller: Caller, session: Session, depth: int) -> DependencyNode:
        below = await self.get_many(caller, session.dependencies) if session.dependencies and depth else {}
        nodes = [await self._node(caller, below[d], depth - 1) for d in session.dependencies if d in below]
        return DependencyNode(session=session, depends_on=tuple(nodes))

    # ---- changing ----

    async def rename(self, caller: Caller, ref: str, new_name: str, *, owner_access_key: str | None = None) -> Session:
        """Raises SessionAlreadyExists if a live session of the same owner has the name."""
        check_session_name(new_name)
        session = await self._finder.one(caller, ref, owner_access_key=owner_access_key, to_change=True)
        if session.status.is_final:
            raise Conflict("The session has ended.", data={"status": session.status.value})

        def make(now: Session) -> Change | None:
            return Change(old=now, new=replace(now, name=new_name)) if now.name != new_name else None

        return await self._writer.transition(session.id, make, point="commit-rename")

    async def restart(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> Session:
        """Restart all kernels in place and wait until they run again.

        Raises:
            Conflict: the session is not RUNNING, or ended instead of coming back.
            DeadlineExceeded: it takes too long; the restart continues.
        """
        session = await self._finder.one(caller, ref, owner_access_key=owner_access_key, to_change=True)
        request = SessionRestartRequested(stimulus_id=caller.stimulus_id)
        restarting = await self._writer.transition(
            session.id, lambda s: advance(s, request, now=self._clock.now()), point="commit-restart"
        )
        restarted = await self._writer.wait_until(
            restarting.id,
            lambda s: s.version > restarting.version and s.status is not SessionStatus.RESTARTING,
            timeout_s=self._settings.restart_timeout_s,
        )
        if restarted is None:
            raise DeadlineExceeded("The session is still restarting.")
        if restarted.status is not SessionStatus.RUNNING:
            raise Conflict("The session ended while it was restarting.", data={"status": restarted.status.value})
        return restarted

    async def destroy(
        self,
        caller: Caller,
        ref: str,
        *,
        owner_access_key: str | None = None,
        forced: bool = False,
        recursive: bool = False,
    ) -> DestroyReply:
        """End a session and wait a few seconds: PENDING becomes CANCELLED at once, any other status TERMINATING.

        ``recursive`` also ends every live session that depends on it. Repeating it is harmless.
        """
        session = await self._finder.one(caller, ref, owner_access_key=owner_access_key, to_change=True)
        sessions = [*(await self._dependents(session) if recursive else ()), session]
        reason = KernelEventReason.FORCE_TERMINATED if forced else KernelEventReason.USER_REQUESTED
        request = SessionDestroyRequested(reason=reason, forced=forced, stimulus_id=caller.stimulus_id)
        last = session
        for target in sessions:
            if not target.status.is_final:
                last = await self._writer.transition(
                    target.id, lambda s: advance(s, request, now=self._clock.now()), point="commit-destroy"
                )
        ended = last
        if not last.status.is_final:
            ended = await self._writer.wait_until(last.id, _has_ended, timeout_s=self._settings.destroy_wait_s) or last
        return DestroyReply(
            session=ended, stats=self._final_stats(ended), destroyed=tuple(target.id for target in sessions)
        )

    async def destroy_all(self, caller: Caller) -> int:
        """End every live session by force and return their number. Raises Forbidden unless a superadmin calls."""
        require(caller, Operation.END_ALL_SESSIONS)
        reason = KernelEventReason.FORCE_TERMINATED
        request = SessionDestroyRequested(reason=reason, forced=True, stimulus_id=caller.stimulus_id)
        live = await self._store.by_status(LIVE_SESSION_STATUSES)
        for session in live:
            with contextlib.suppress(StaleVersion):  # the session is ending, or the caller retries
                await self._writer.transition(
                    session.id, lambda s: advance(s, request, now=self._clock.now()), point="commit-destroy"
                )
        return len(live)

    def _final_stats(self, session: Session) -> Mapping[str, Any]:
        metrics = session.main.last_stat or self._stats.of_kernel(session.main.id)
        return {**metrics, "status": session.status.value, "version": 2} if metrics else {}

    async def _dependents(self, session: Session) -> list[Session]:
        """Return live sessions that depend on this one, directly or indirectly, the furthest first."""
        dependents: dict[SessionId, Session] = {}
        frontier = [session]
        while frontier:
            below = [d for s in frontier for d in await self._store.dependents(s.id)]
            frontier = [d for d in below if d.id not in dependents and d.user_id == session.user_id]
            dependents.update((d.id, d) for d in frontier)
        return list(reversed(dependents.values()))
