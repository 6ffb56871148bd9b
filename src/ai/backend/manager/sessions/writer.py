"""Saves changes of sessions, caches what was written, and notifies loops and waiters.

The sessions that this process wrote last are cached, so that the next step need not read them: a write states the
version that it is based on, hence a stale copy costs one more round and never correctness. Few RUNNING sessions are
cached, as they have no next step (docs/decisions/0016).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from ai.backend.common.errors import SessionNotFound, StaleVersion
from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.states import SessionStatus
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.effects import Command, CreateKernels, DestroyKernels, RestartKernels
from ai.backend.core.lifecycle.events import SessionEvent
from ai.backend.core.lifecycle.transition import InvalidTransition
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import Clock
from ai.backend.manager.sessions.changes import Change, EventDraft, ObservationAck
from ai.backend.manager.sessions.model import Kernel, OwnerLimits, Session
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.traces import trace_statuses
from ai.backend.manager.sessions.transitions import advance
from ai.backend.manager.topics import CALLBACK, CLAIM, LAUNCH, OUTBOX, SCHEDULE, TERMINATE
from ai.backend.plugin.crash_points import crash_point

log = logging.getLogger(__name__)
_MAX_SESSIONS = 4096
_MAX_RUNNING = 64
_MAX_PLACES = 16_384
_MAX_TRIES = 20
_POLL_S, _POLL_SHARED_S = 5.0, 0.5

Step = Callable[[Session], Change | None]


@dataclass(eq=False, repr=False)
class SessionWriter:
    """Saves changes, notifies loops and waiters, and calls ``on_end`` for each session that has ended."""

    store: SessionStore
    bus: Bus
    on_end: Callable[[Session], None] = field(kw_only=True)
    is_shared: bool = field(default=False, kw_only=True)
    _recent: OrderedDict[SessionId, Session] = field(default_factory=OrderedDict, init=False)
    _running: OrderedDict[SessionId, Session] = field(default_factory=OrderedDict, init=False)
    _agents: OrderedDict[KernelId, tuple[SessionId, AgentId]] = field(default_factory=OrderedDict, init=False)
    """The session and the agent of each kernel that has an agent."""
    _waiting: dict[SessionId, set[asyncio.Future[Session]]] = field(default_factory=dict, init=False)

    # ---- reading ----

    def recent_session(self, session_id: SessionId) -> Session | None:
        """Returns the cached session, or None if it is not cached or if other managers write sessions as well."""
        return None if self.is_shared else self.written_session(session_id)

    def written_session(self, session_id: SessionId) -> Session | None:
        """Returns the cached session even if it may be old, for a change whose save checks the version."""
        if session_id in self._running:
            self._running.move_to_end(session_id)
        return self._recent.get(session_id) or self._running.get(session_id)

    def recent_session_of_kernel(self, kernel_id: KernelId) -> Session | None:
        session_and_agent = self._agents.get(kernel_id)
        return self.written_session(session_and_agent[0]) if session_and_agent is not None else None

    def is_on(self, kernel_id: KernelId, agent_id: AgentId) -> bool:
        """Returns True if the cache says that the kernel is on that agent."""
        return self._agents.get(kernel_id, (None, None))[1] == agent_id

    async def load(self, session_id: SessionId, *, fresh: bool = False) -> Session:
        """Returns a session from the cache or the store. Raises SessionNotFound."""
        session = None if fresh else self.recent_session(session_id)
        if session is None:
            session = await self.store.get(session_id)
        if session is None:
            self._forget(session_id)
            raise SessionNotFound(data={"id": str(session_id)})
        self._cache(session)
        return session

    def cache(self, sessions: Iterable[Session]) -> None:
        """Caches sessions that were just read from the store."""
        for session in sessions:
            cached_session = self.written_session(session.id)
            if cached_session is None or cached_session.version <= session.version:
                self._cache(session)

    def _cache(self, session: Session) -> None:
        self._drop_cached(session.id)
        if session.status.is_final:
            self._drop_kernels(session.kernels)
            return
        is_running = session.status is SessionStatus.RUNNING
        cache, limit = (self._running, _MAX_RUNNING) if is_running else (self._recent, _MAX_SESSIONS)
        cache[session.id] = session
        if len(cache) > limit:
            cache.popitem(last=False)
        for kernel in session.kernels:
            self._agents.pop(kernel.id, None)
            if kernel.agent is not None:
                self._agents[kernel.id] = session.id, kernel.agent
        while len(self._agents) > _MAX_PLACES:
            self._agents.popitem(last=False)

    def _drop_cached(self, session_id: SessionId) -> Session | None:
        return self._recent.pop(session_id, None) or self._running.pop(session_id, None)

    def _drop_kernels(self, kernels: Iterable[Kernel]) -> None:
        for kernel in kernels:
            self._agents.pop(kernel.id, None)

    def _forget(self, session_id: SessionId) -> None:
        removed_session = self._drop_cached(session_id)
        self._drop_kernels(removed_session.kernels if removed_session is not None else ())

    # ---- writing ----

    async def insert(self, session: Session, events: Sequence[EventDraft], *, limits: OwnerLimits) -> None:
        """Inserts a session as ``SessionStore.insert`` does. Cancelling the caller does not stop it."""
        await asyncio.shield(self._insert(session, events, limits))

    async def _insert(self, session: Session, events: Sequence[EventDraft], limits: OwnerLimits) -> None:
        crash_point("before-commit-create")
        await self.store.insert(session, events=events, limits=limits)
        crash_point("after-commit-create")
        self._cache(session)
        self.bus.publish(OUTBOX)
        if session.callback_url:
            self.bus.publish(CALLBACK)
        self.bus.publish(SCHEDULE)

    async def commit(
        self, changes: Sequence[Change], *, point: str, ack: ObservationAck | None = None
    ) -> list[Session]:
        """Saves all changes or none, executes their commands, and returns the saved sessions. Cancelling the caller
        does not stop it. Raises StaleVersion; then the cached copies are dropped: load again."""
        return await asyncio.shield(self._commit(changes, point, ack))

    async def _commit(self, changes: Sequence[Change], point: str, ack: ObservationAck | None) -> list[Session]:
        crash_point(f"before-{point}")
        try:
            await self.store.save(changes, ack=ack)
        except StaleVersion:
            for change in changes:
                self._forget(change.old.id)
            raise
        crash_point(f"after-{point}")
        saved_sessions = [replace(change.new, version=change.old.version + 1) for change in changes]
        trace_statuses(changes)
        for session in saved_sessions:
            self._cache(session)
            self._notify_waiters(session)
            if session.status.is_final:
                self.on_end(session)
        if any(change.events for change in changes):
            self.bus.publish(OUTBOX)
        if any(change.events and change.new.callback_url for change in changes):
            self.bus.publish(CALLBACK)
        if any(_concerns_scheduler(change) for change in changes):
            self.bus.publish(SCHEDULE)
        if any(change.new.claim_id is not None and change.new.status != change.old.status for change in changes):
            self.bus.publish(CLAIM)
        for change in changes:
            self._execute(change.commands)
        return saved_sessions

    def _execute(self, commands: Iterable[Command]) -> None:
        """Publishes commands to the loops that call the agents."""
        for command in commands:
            match command:
                case CreateKernels(session_id=session_id) | RestartKernels(session_id=session_id):
                    self.bus.publish(LAUNCH, session_id)
                case DestroyKernels():
                    self.bus.publish(TERMINATE, command)
                case _:
                    assert_never(command)

    async def transition(self, session_id: SessionId, step: Step, *, point: str) -> Session:
        """Loads a session, saves the change that ``step`` makes of it, and returns the saved session.

        Repeats while another change was faster. Raises SessionNotFound, and whatever ``step`` raises; the transitions
        of an InvalidTransition are logged.
        """
        for tries in range(_MAX_TRIES):
            session = await self.load(session_id, fresh=tries > 0)
            try:
                change = step(session)
            except InvalidTransition as e:
                log.info("%s; its history: %s", e.explain(), dict(session.status_history))
                raise
            if change is None:
                return session
            if not change.is_stored:
                self._execute(change.commands)
                return session
            try:
                return (await self.commit([change], point=point))[0]
            except StaleVersion:
                continue
        raise StaleVersion(f"session {session_id} changes too fast")

    async def apply(self, session_id: SessionId, event: SessionEvent, clock: Clock, *, point: str) -> Session:
        """Applies an event to a session; returns and raises as :meth:`transition`."""
        return await self.transition(session_id, lambda session: advance(session, event, now=clock.now()), point=point)

    # ---- waiting ----

    def _notify_waiters(self, session: Session) -> None:
        for future in self._waiting.get(session.id, ()):
            if not future.done():
                future.set_result(session)

    async def wait_until(
        self, session_id: SessionId, is_reached: Callable[[Session], bool], *, timeout_s: float | None
    ) -> Session | None:
        """Waits until ``is_reached`` returns True for a session and returns the session, or None after ``timeout_s``. A
        change made by this process is seen at once, one by another manager within half a second.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s if timeout_s is not None else math.inf
        poll_s = _POLL_SHARED_S if self.is_shared else _POLL_S
        waiters = self._waiting.setdefault(session_id, set())
        session = self.recent_session(session_id)
        future: asyncio.Future[Session] = loop.create_future()
        waiters.add(future)
        try:
            while True:
                if session is None:
                    session = await self.store.get(session_id)
                if session is None or is_reached(session):
                    return session
                timeout = min(poll_s, deadline - loop.time())
                if timeout <= 0:
                    return None
                await asyncio.wait({future}, timeout=timeout)
                session = None
                if future.done():
                    session = future.result()
                    waiters.discard(future)
                    future = loop.create_future()
                    waiters.add(future)
        finally:
            waiters.discard(future)
            if not waiters:
                self._waiting.pop(session_id, None)


def _concerns_scheduler(change: Change) -> bool:
    """Returns True if the scheduler must run: slots are free, a session is pending again, or a dependency ended."""
    return change.new.status != change.old.status and (change.new.status.is_final or change.new.status == "PENDING")
