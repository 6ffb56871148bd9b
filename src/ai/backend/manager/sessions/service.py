"""Implements the use cases of sessions: creation, reading, renaming, restart and destruction."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from ai.backend.common.errors import Conflict, DeadlineExceeded, SessionAlreadyExists, StaleVersion
from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.names import check_session_name
from ai.backend.common.states import LIVE_SESSION_STATUSES, KernelEventReason, SessionStatus
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.events import SessionDestroyRequested, SessionRestartRequested
from ai.backend.infra.clock import Clock
from ai.backend.infra.telemetry.tracing import span
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, require, scope_of
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.hooks import Hooks
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.metrics.history import Series, Span
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.query.model import Page
from ai.backend.manager.sessions import model
from ai.backend.manager.sessions.changes import Change
from ai.backend.manager.sessions.creation.factory import SessionFactory
from ai.backend.manager.sessions.lookup import SessionFinder, sees, with_live_statistics
from ai.backend.manager.sessions.settings import SessionSettings
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.transitions import enqueued_event
from ai.backend.manager.sessions.writer import SessionWriter
from ai.backend.plugin.hooks import Account, SessionRequest

_MAX_DEPTH = 16


def _hook_request(owner: Caller, session: model.Session) -> SessionRequest:
    return SessionRequest(
        owner=Account(email=owner.email, username=owner.username, domain_name=owner.domain_name, role=owner.role.value),
        name=session.name,
        session_type=session.type.value,
        group_name=session.group_name,
        resource_group=session.scaling_group,
        image=session.image,
        cluster_size=session.cluster_size,
        slots=session.requested_slots,
        mounts=session.mounts,
        environ=session.environ,
    )


@dataclass(eq=False, repr=False, kw_only=True)
class SessionService:
    """Creates, reads, renames, restarts and destroys sessions on behalf of callers. ``ref`` is a name, an id or an
    unambiguous prefix of an id. Another user's session is SessionNotFound unless the caller's role sees it. Every
    method takes ``owner_access_key`` as IdentityService.resolve_owner does.
    """

    store: SessionStore
    writer: SessionWriter
    factory: SessionFactory
    finder: SessionFinder
    identity: IdentityService
    stats: LiveMetrics
    clock: Clock
    settings: SessionSettings
    hooks: Hooks

    # ---- creation ----

    async def create(
        self, caller: Caller, request: model.CreateSession, *, call_id: UUID | None = None
    ) -> model.CreateReply:
        """Enqueues a session and waits until it has started or failed, unless ``enqueue_only`` or the wait times out.

        ``call_id`` becomes the id of the session. Two calls with the same ``call_id`` or the same name give one
        session; the later one gets ``created=False``, for a name only if ``reuse_if_exists`` and the image is the same.

        Raises InvalidInput, InvalidName or InvalidQuantity (``data`` maps the wire field to the fault), ImageNotFound
        (``data.available`` lists the images), UnsupportedResource (no agent ever reported a requested slot),
        InsufficientResource (no agent of the resource group, even if empty, could hold it), SessionAlreadyExists,
        LimitExceeded, Forbidden and NotFound (group, domain, resource group); Forbidden and Unavailable as hook plugins
        answer.
        """
        owner = await self.identity.resolve_owner(caller, request.owner_access_key)
        session_id = SessionId(call_id) if call_id is not None else None
        existing_session = await self._existing_session(owner, request, session_id)
        if existing_session is not None:
            return await self._await_start(existing_session, request, created=False)
        try:
            with span("session create") as creation_span:
                session, limits = await self.factory.build(caller, owner, request, session_id)
                creation_span.set({"backendai.session_id": str(session.id)})
                await self.check_hooks(owner, session)
                await self.writer.insert(session, [enqueued_event(session)], limits=limits)
        except SessionAlreadyExists:
            existing_session = await self._existing_session(owner, request, session_id)
            if existing_session is None:
                raise
            return await self._await_start(existing_session, request, created=False)
        return await self._await_start(session, request, created=True)

    async def check_hooks(self, owner: Caller, session: model.Session) -> None:
        """Calls the hook plugins for a new session of an owner; raises the refusal of one."""
        await self.hooks.check_session(_hook_request(owner, session))

    async def _existing_session(
        self, owner: Caller, request: model.CreateSession, session_id: SessionId | None
    ) -> model.Session | None:
        """Returns the existing session that the request names. Raises SessionAlreadyExists if it must not be reused."""
        if session_id is not None:
            created_session = await self.store.get(session_id)
            if created_session is not None:
                return created_session
        if request.name is None:
            return None
        namesake = await self.store.live_named(owner.access_key, request.name)
        if namesake is not None and not (
            request.reuse_if_exists and await self.factory.is_image_of(namesake, request.image)
        ):
            raise SessionAlreadyExists(data={"existingSessionId": str(namesake.id)})
        return namesake

    async def _await_start(
        self, session: model.Session, request: model.CreateSession, *, created: bool
    ) -> model.CreateReply:
        if request.enqueue_only or session.has_started:
            return model.CreateReply(session=session, status=session.status.value, created=created)
        timeout_s = request.max_wait_s or None
        started_session = await self.writer.wait_until(
            session.id, lambda session: session.has_started, timeout_s=timeout_s
        )
        if started_session is None:
            return model.CreateReply(session=await self.writer.load(session.id), status="TIMEOUT", created=created)
        return model.CreateReply(session=started_session, status=started_session.status.value, created=created)

    # ---- reading ----

    async def get(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> model.Session:
        """Returns a live session; an ended session only by its full id, or as the newest of its name.
        Raises SessionNotFound and TooManySessionsMatched."""
        session = await self.finder.one(caller, ref, owner_access_key=owner_access_key)
        return with_live_statistics(session, self.stats)

    async def search(self, caller: Caller, query: model.SessionQuery) -> Page[model.Session]:
        """Returns sessions with live statistics, as far as the caller's role permits. Users see their own sessions,
        admins those of their domain, superadmins all. Raises Forbidden for a plain user who names another access key.
        """
        page = await self.store.search(await self._restrict_query(caller, query))
        return Page(
            items=[with_live_statistics(session, self.stats) for session in page.items], total_count=page.total_count
        )

    async def _restrict_query(self, caller: Caller, query: model.SessionQuery) -> model.SessionQuery:
        """Returns the query, restricted to the sessions that the caller may see. Raises Forbidden as :meth:`search`."""
        scope = scope_of(caller, Operation.SEE_SESSIONS)
        if scope is Scope.DOMAIN:
            return replace(query, domain_name=caller.domain_name)
        if scope is Scope.ALL:
            return query
        if query.access_key is not None:
            await self.identity.resolve_owner(caller, query.access_key)
        return replace(query, access_key=query.access_key or caller.access_key)

    async def metric_history(
        self, caller: Caller, ref: str, span: Span, *, owner_access_key: str | None = None
    ) -> Mapping[KernelId, Series]:
        """Returns the recent use of resources by each kernel of a session. Raises as :meth:`get`."""
        session = await self.finder.one(caller, ref, owner_access_key=owner_access_key)
        return {kernel.id: self.stats.history_of_kernel(kernel.id, span) for kernel in session.kernels}

    async def count_by_status(self, caller: Caller, query: model.SessionQuery) -> Mapping[str, int]:
        """Returns the number of sessions in each status, among the sessions of a query that :meth:`search` would
        return. The statuses that the query names are ignored.
        """
        return await self.store.count_by_status(await self._restrict_query(caller, query))

    async def session_of_kernel(self, caller: Caller, kernel_id: KernelId) -> model.Session | None:
        """Returns the session of a kernel with live statistics, or None if the caller may not see the session."""
        sessions = await self.store.of_kernels([kernel_id])
        return next((with_live_statistics(session, self.stats) for session in sessions if sees(caller, session)), None)

    async def match(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> list[model.SessionMatch]:
        """Returns the live session with the name or id ``ref``, or else at most 10 that begin with ``ref``.

        A session begins with ``ref`` if its name or id does.
        """
        sessions = await self.finder.several(caller, ref, owner_access_key=owner_access_key)
        return [model.SessionMatch(id=session.id, name=session.name, status=session.status) for session in sessions]

    async def kernels_of_agent(
        self, caller: Caller, agent_id: str, *, statuses: tuple[str, ...] = ()
    ) -> list[model.Kernel]:
        """Returns the kernels of live sessions on an agent, or an empty list if the caller may not see all sessions."""
        if not is_permitted(caller, Operation.SEE_AGENTS):
            return []
        sessions = await self.store.on_agent(AgentId(agent_id))
        kernels = [kernel for session in sessions for kernel in with_live_statistics(session, self.stats).kernels]
        return [
            kernel for kernel in kernels if kernel.agent == agent_id and (not statuses or kernel.status in statuses)
        ]

    async def get_many(self, caller: Caller, ids: tuple[SessionId, ...]) -> Mapping[SessionId, model.Session]:
        """Returns the sessions of ``ids`` that the caller may see (GraphQL ``dependencies``)."""
        return {session.id: session for session in await self.store.get_many(ids) if sees(caller, session)}

    async def count_active(self) -> int:
        """Returns the number of live sessions of the cluster (``/manager/status``)."""
        return sum((await self.store.count_live()).values())

    async def recount(self, caller: Caller) -> model.SlotAudit:
        """Compares the recorded slots of agents with those that their kernels hold. Raises Forbidden. Nothing is
        corrected: slots are recorded in the transactions that occupy and release them."""
        require(caller, Operation.RECOUNT_SLOTS)
        return await self.store.audit()

    async def status_history(
        self, caller: Caller, ref: str, *, owner_access_key: str | None = None
    ) -> Mapping[str, str | None]:
        """Returns lower-case status -> ISO time of the last entry; ``preparing`` and ``terminated`` are always set."""
        session = await self.finder.one(caller, ref, owner_access_key=owner_access_key)
        history = {name.lower(): entered_at for name, entered_at in session.status_history.items()}
        # What it has entered comes first, since statuses of one moment stay in their order.
        return {**history, **{name: None for name in ("preparing", "terminated") if name not in history}}

    async def dependency_graph(
        self, caller: Caller, ref: str, *, owner_access_key: str | None = None
    ) -> model.DependencyNode:
        """Returns the session and its dependencies, to a depth of 16."""
        session = await self.finder.one(caller, ref, owner_access_key=owner_access_key)
        return await self._dependency_node(caller, session, _MAX_DEPTH)

    async def _dependency_node(self, caller: Caller, session: model.Session, depth: int) -> model.DependencyNode:
        next_depth = await self.get_many(caller, session.dependencies) if session.dependencies and depth else {}
        nodes = [
            await self._dependency_node(caller, next_depth[dependency_id], depth - 1)
            for dependency_id in session.dependencies
            if dependency_id in next_depth
        ]
        return model.DependencyNode(session=session, depends_on=tuple(nodes))

    # ---- changing ----

    async def rename(
        self, caller: Caller, ref: str, new_name: str, *, owner_access_key: str | None = None
    ) -> model.Session:
        """Gives a live session another name.

        Raises SessionAlreadyExists if another live session of the owner has this name.
        """
        check_session_name(new_name)
        session = await self.finder.one(caller, ref, owner_access_key=owner_access_key, to_change=True)
        if session.status.is_final:
            raise Conflict("The session has ended.", data={"status": session.status.value})

        def make_change(session: model.Session) -> Change | None:
            return Change(old=session, new=replace(session, name=new_name)) if session.name != new_name else None

        return await self.writer.transition(session.id, make_change, point="commit-rename")

    async def restart(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> model.Session:
        """Restarts all kernels in place and waits until they run again. Raises Conflict (the session is not RUNNING, or
        ended instead) and DeadlineExceeded (it takes too long and continues)."""
        session = await self.finder.one(caller, ref, owner_access_key=owner_access_key, to_change=True)
        request = SessionRestartRequested(stimulus_id=caller.stimulus_id)
        restarting_session = await self.writer.apply(session.id, request, self.clock, point="commit-restart")
        restarted_session = await self.writer.wait_until(
            restarting_session.id,
            lambda session: (
                session.version > restarting_session.version and session.status is not SessionStatus.RESTARTING
            ),
            timeout_s=self.settings.restart_timeout_s,
        )
        if restarted_session is None:
            raise DeadlineExceeded("The session is still restarting.")
        if restarted_session.status is not SessionStatus.RUNNING:
            raise Conflict(
                "The session ended while it was restarting.", data={"status": restarted_session.status.value}
            )
        return restarted_session

    async def destroy(
        self,
        caller: Caller,
        ref: str,
        *,
        owner_access_key: str | None = None,
        forced: bool = False,
        recursive: bool = False,
    ) -> model.DestroyReply:
        """Ends a session and waits a few seconds for its end. PENDING becomes CANCELLED at once, any other status
        TERMINATING. ``recursive`` also ends every live session that depends on it. Repeating it is harmless.
        """
        session = await self.finder.one(caller, ref, owner_access_key=owner_access_key, to_change=True)
        sessions = [*(await self._all_dependents(session) if recursive else ()), session]
        reason = KernelEventReason.FORCE_TERMINATED if forced else KernelEventReason.USER_REQUESTED
        request = SessionDestroyRequested(reason=reason, forced=forced, stimulus_id=caller.stimulus_id)
        last_session = session
        for ending_session in sessions:
            if not ending_session.status.is_final:
                last_session = await self.writer.apply(ending_session.id, request, self.clock, point="commit-destroy")
        if not last_session.status.is_final:
            timeout_s = self.settings.destroy_wait_s
            last_session = (
                await self.writer.wait_until(
                    last_session.id, lambda session: session.status.is_final, timeout_s=timeout_s
                )
                or last_session
            )
        metrics = last_session.main.last_stat or self.stats.kernel_statistics(last_session.main.id)
        stats = {**metrics, "status": last_session.status.value, "version": 2} if metrics else {}
        return model.DestroyReply(
            session=last_session, stats=stats, destroyed=tuple(ending_session.id for ending_session in sessions)
        )

    async def destroy_all(self, caller: Caller) -> int:
        """Ends every live session by force and returns their number. Raises Forbidden unless a superadmin calls."""
        require(caller, Operation.END_ALL_SESSIONS)
        reason = KernelEventReason.FORCE_TERMINATED
        request = SessionDestroyRequested(reason=reason, forced=True, stimulus_id=caller.stimulus_id)
        live_sessions = await self.store.by_status(LIVE_SESSION_STATUSES)
        for session in live_sessions:
            with contextlib.suppress(StaleVersion):  # the session is ending, or the caller retries
                await self.writer.apply(session.id, request, self.clock, point="commit-destroy")
        return len(live_sessions)

    async def _all_dependents(self, session: model.Session) -> list[model.Session]:
        """Returns live sessions that depend on this one, directly or indirectly, the furthest first."""
        dependents: dict[SessionId, model.Session] = {}
        frontier = [session]
        while frontier:
            direct_dependents = [
                dependent for session in frontier for dependent in await self.store.dependents(session.id)
            ]
            frontier = [
                direct_dependent
                for direct_dependent in direct_dependents
                if direct_dependent.id not in dependents and direct_dependent.user_id == session.user_id
            ]
            dependents.update((dependent.id, dependent) for dependent in frontier)
        return list(reversed(dependents.values()))
