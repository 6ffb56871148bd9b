"""Events, background tasks and the audit trail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ai.backend.common.errors import BackendError, Forbidden, NotFound, Unavailable
from ai.backend.common.ids import SessionId, TaskId
from ai.backend.common.states import UserRole
from ai.backend.infra.bus import Bus, Subscription
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.manager.model.identity import Caller
from ai.backend.manager.model.journal import AuditRecord, Event, Task, TaskStatus
from ai.backend.manager.ports.stores import AuditStore, SessionStore, TaskStore
from ai.backend.manager.services.lookup import SessionFinder
from ai.backend.manager.services.writer import OUTBOX

log = logging.getLogger(__name__)

TASKS = "manager.tasks"
"""Bus topic, payload task id: a background task changed."""
UNWANTED = "manager.unwanted-tasks"
"""Bus topic: a background task of some manager is to be cancelled."""
_PAGE = 500
_RECHECK_S = 5.0
_AUDIT_FLUSH_S = 0.5
_AUDIT_KEPT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events a client wants. ``session_ref`` None is every session that the caller sees.

    ``after_id`` is the client's Last-Event-ID; None starts with the events that follow now.
    """

    session_ref: str | None = None
    scope: Literal["*", "session", "kernel"] = "*"
    owner_access_key: str | None = None
    after_id: int | None = None


async def _hint(subscription: Subscription, timeout_s: float) -> None:
    """Wait for one hint, or the time."""
    try:
        async with asyncio.timeout(timeout_s):
            await subscription.get()
    except TimeoutError:
        return
    subscription.drain()


class EventService:
    """Reads the outbox; the bus only tells when to look."""

    def __init__(self, store: SessionStore, finder: SessionFinder, bus: Bus) -> None:
        self._store = store
        self._finder = finder
        self._bus = bus

    async def newest_id(self) -> int:
        """Of the last event that has happened: ``after_id`` for whoever wants to hear what comes."""
        return await self._store.last_event_id()

    async def subscribe(self, caller: Caller, wanted: EventFilter) -> AsyncIterator[Event]:
        """At least once, in order per session, for ever; the consumer ends it by closing the iterator.

        Raises:
            SessionNotFound: at the first step.
        """
        with self._bus.subscribe(OUTBOX, limit=1) as hints:
            after = wanted.after_id if wanted.after_id is not None else await self.newest_id()
            only: SessionId | None = None
            if wanted.session_ref is not None:
                session = await self._finder.one(caller, wanted.session_ref, owner_access_key=wanted.owner_access_key)
                only = session.id
            while True:
                events = await self._store.events_after(after, limit=_PAGE)
                for event in events:
                    after = event.id
                    if _is_wanted(caller, event, wanted, only):
                        yield event
                if len(events) < _PAGE:
                    await _hint(hints, _RECHECK_S)


def _is_wanted(caller: Caller, event: Event, wanted: EventFilter, only: SessionId | None) -> bool:
    if only is not None and event.session_id != only:
        return False
    if wanted.scope not in ("*", event.scope):
        return False
    if wanted.owner_access_key is not None and only is None and event.access_key != wanted.owner_access_key:
        return False
    return (
        caller.sees_all
        or event.user_id == caller.user_id
        or (caller.role is UserRole.ADMIN and event.domain_name == caller.domain_name)
    )


class TaskProgress:
    """How a running task tells its progress."""

    def __init__(self, service: TaskService, task: Task) -> None:
        self._service = service
        self.task = task

    async def update(self, current: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the present numbers; None leaves what was said before."""
        await self._service.advance(
            self,
            status=TaskStatus.UPDATED,
            current_progress=current,
            total_progress=total if total is not None else self.task.total_progress,
            message=message if message is not None else self.task.message,
        )


class TaskService:
    """Background tasks. Each runs in the process that began it; what becomes of it, and who wants it to end, is in the
    store, where every manager finds it."""

    def __init__(self, store: TaskStore, bus: Bus, clock: Clock, id_generator: IdGenerator) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        self._id_generator = id_generator
        self._running: dict[TaskId, asyncio.Task[None]] = {}
        self.manager = ""
        """Which of several managers works on the tasks of this process."""

    async def recover(self, *, but: Collection[str] = ()) -> None:
        """Fail what managers left unfinished; those of ``but`` live."""
        await self._store.fail_open_tasks(at=self._clock.now(), message="the manager was restarted", but=but)

    async def start(
        self, caller: Caller, name: str, body: Callable[[TaskProgress], Awaitable[str]], *, subject: str = ""
    ) -> TaskId:
        """Run ``body`` in the background; what it returns is the final message.

        Args:
            subject: what it works on, if no other task of any manager may do so meanwhile.

        Raises:
            Conflict: one does; its id is ``task`` in the data.
        """
        return await asyncio.shield(self._start(caller, name, body, subject))  # or nobody would end what is written

    async def _start(
        self, caller: Caller, name: str, body: Callable[[TaskProgress], Awaitable[str]], subject: str
    ) -> TaskId:
        now = self._clock.now()
        task = Task(
            id=TaskId(self._id_generator.uuid()),
            name=name,
            owner=caller.user_id,
            status=TaskStatus.STARTED,
            created_at=now,
            updated_at=now,
            manager=self.manager,
            subject=subject,
        )
        await self._store.add_task(task)
        running = asyncio.create_task(self._run(TaskProgress(self, task), body), name=f"task-{task.id}")
        self._running[task.id] = running
        running.add_done_callback(lambda _: self._running.pop(task.id, None))
        return task.id

    async def _run(self, progress: TaskProgress, body: Callable[[TaskProgress], Awaitable[str]]) -> None:
        try:
            message = await body(progress)
        except asyncio.CancelledError:
            await self._end(progress, TaskStatus.CANCELLED, "cancelled")
            raise
        except BackendError as e:
            await self._end(progress, TaskStatus.FAILED, e.message)
        except Exception:  # whatever a task does, its outcome must be told
            log.exception("background task %s failed", progress.task.name)
            await self._end(progress, TaskStatus.FAILED, "internal error")
        else:
            await self._end(progress, TaskStatus.DONE, message)

    async def _end(self, progress: TaskProgress, status: TaskStatus, message: str) -> None:
        """However long the store is away: an open task keeps others from its subject."""
        while True:
            try:
                return await self.advance(progress, status=status, message=message)
            except Unavailable as e:
                log.warning("the end of the background task %s cannot be written yet: %s", progress.task.name, e)
                await asyncio.sleep(_RECHECK_S)

    async def advance(self, progress: TaskProgress, **changes: Any) -> None:
        """Write a change and tell the subscribers."""
        progress.task = replace(progress.task, updated_at=self._clock.now(), **changes)
        await self._store.put_task(progress.task)
        self._bus.publish(TASKS, progress.task.id)

    async def get(self, caller: Caller, task_id: TaskId) -> Task:
        """Raises NotFound for somebody else's."""
        task = await self._store.task(task_id)
        if task is None or (task.owner != caller.user_id and not caller.sees_all):
            raise NotFound("There is no such background task.")
        return task

    async def subscribe(self, caller: Caller, task_id: TaskId) -> AsyncIterator[Task]:
        """The present state, then every change, ending after a final one."""
        with self._bus.subscribe(TASKS) as hints:
            last: Task | None = None
            while last is None or not last.status.is_final:
                task = await self.get(caller, task_id)
                if task != last:
                    last = task
                    yield task
                    continue
                await _hint(hints, _RECHECK_S)

    async def is_under_way(self, subject: str) -> bool:
        """Whether some manager works on it."""
        return await self._store.open_task(subject) is not None

    async def cancel(self, caller: Caller, task_id: TaskId) -> None:
        """Have it end, soon, wherever it runs. Harmless if it has ended."""
        task = await self.get(caller, task_id)
        running = self._running.get(task_id)
        if running is not None:
            running.cancel()
        elif not task.status.is_final:
            await self._store.ask_to_cancel(task_id)
            self._bus.publish(UNWANTED)

    async def run(self) -> None:
        """End what other managers were asked to cancel, until cancelled oneself."""
        with self._bus.subscribe(UNWANTED) as hints:
            while True:
                await _hint(hints, _RECHECK_S)
                try:
                    for task_id in await self._store.asked_to_cancel(list(self._running)) if self._running else ():
                        if (running := self._running.get(task_id)) is not None:
                            running.cancel()
                except Exception:  # the next round asks again
                    log.exception("it is not known which background tasks are to be cancelled")

    async def stop(self) -> None:
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class AuditService:
    """Collects records and writes them in batches."""

    def __init__(self, store: AuditStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._pending: list[AuditRecord] = []

    async def record(
        self,
        caller: Caller | None,
        operation: str,
        *,
        request_id: str,
        object_type: str,
        object_id: str | None,
        outcome: str,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep who did what. Written in batches: it never delays the reply and is flushed at stop."""
        record = AuditRecord(
            at=self._clock.now(),
            request_id=request_id[:64],
            user_id=caller.user_id if caller is not None else None,
            access_key=caller.access_key if caller is not None else None,
            operation=operation[:128],
            object_type=object_type[:32],
            object_id=object_id[:128] if object_id is not None else None,
            outcome=outcome[:64],
            detail=detail or {},
        )
        self._pending.append(record)
        if len(self._pending) >= _AUDIT_KEPT:
            await self.flush()

    async def recent(self, caller: Caller, *, limit: int = 100) -> Sequence[AuditRecord]:
        """Superadmins only."""
        if not caller.is_superadmin:
            raise Forbidden("Only superadmins read the audit trail.")
        await self.flush()
        return await self._store.recent(limit)

    async def flush(self) -> None:
        """Write what is pending; on failure it stays pending."""
        batch = self._pending[:]
        if batch:
            await self._store.append(batch)
            del self._pending[: len(batch)]

    async def run(self) -> None:
        """Flush from time to time, until cancelled."""
        while True:
            await asyncio.sleep(_AUDIT_FLUSH_S)
            try:
                await self.flush()
            except Exception:  # the loop must outlive any failure of the store
                log.exception("could not write the audit trail")
