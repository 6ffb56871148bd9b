"""Runs background tasks, and lets their owners follow and cancel them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from ai.backend.common.errors import BackendError, NotFound, Unavailable
from ai.backend.common.ids import TaskId
from ai.backend.common.structs import replace
from ai.backend.infra.bus import Bus, Subscription
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.infra.loop import cancel_all
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.tasks.model import Task, TaskStatus
from ai.backend.manager.tasks.store import TaskStore

log = logging.getLogger(__name__)

TASKS = "manager.tasks"
"""Bus topic, payload task id: a background task changed."""
CANCEL_REQUESTS = "manager.unwanted-tasks"
"""Bus topic: a background task of some manager is to be cancelled."""
RECHECK_S = 5.0
"""Seconds for which a subscriber waits for a message before it reads the store again."""


async def wait_for_hint(subscription: Subscription, timeout_s: float) -> None:
    """Waits until a message comes to a subscription or the timeout ends, and drops further waiting messages."""
    try:
        async with asyncio.timeout(timeout_s):
            await subscription.get()
    except TimeoutError:
        return
    subscription.drain()


@dataclass(eq=False, repr=False)
class TaskProgress:
    """Records the progress of a running task."""

    service: TaskService
    task: Task

    async def update(self, current: float, total: float | None = None, message: str | None = None) -> None:
        """Records how much of the task is done; a value that is None keeps the previous value."""
        await self.service.advance(
            self,
            status=TaskStatus.UPDATED,
            current_progress=current,
            total_progress=total if total is not None else self.task.total_progress,
            message=message if message is not None else self.task.message,
        )


@dataclass(eq=False, repr=False)
class TaskService:
    """Runs background tasks in the process that started them. Their states and requests to cancel them are in the
    store, where every manager finds them."""

    store: TaskStore
    bus: Bus
    clock: Clock
    id_generator: IdGenerator
    manager: str = field(default="", init=False)
    """The id of this process if several managers share the store."""
    _running: dict[TaskId, asyncio.Task[None]] = field(default_factory=dict, init=False)

    async def recover(self, *, living: Collection[str] = ()) -> None:
        """Marks unfinished tasks as failed, except tasks of the managers in ``living``."""
        await self.store.fail_open_tasks(at=self.clock.now(), message="the manager was restarted", living=living)

    async def start(
        self, caller: Caller, name: str, body: Callable[[TaskProgress], Awaitable[str]], *, subject: str = ""
    ) -> TaskId:
        """Starts a background task that runs ``body``; the result of ``body`` is the final message of the task. No
        other task of any manager works on the ``subject`` at the same time: raises Conflict, with the other's id as
        ``task`` in the data.
        """
        return await asyncio.shield(self._start(caller, name, body, subject))  # a task that has been stored must be run

    async def _start(
        self, caller: Caller, name: str, body: Callable[[TaskProgress], Awaitable[str]], subject: str
    ) -> TaskId:
        now = self.clock.now()
        task = Task(
            id=TaskId(self.id_generator.uuid()),
            name=name,
            owner=caller.user_id,
            status=TaskStatus.STARTED,
            created_at=now,
            updated_at=now,
            manager=self.manager,
            subject=subject,
        )
        await self.store.add_task(task)
        running_task = asyncio.create_task(self._run(TaskProgress(self, task), body), name=f"task-{task.id}")
        self._running[task.id] = running_task
        running_task.add_done_callback(lambda _: self._running.pop(task.id, None))
        return task.id

    async def _run(self, progress: TaskProgress, body: Callable[[TaskProgress], Awaitable[str]]) -> None:
        try:
            message = await body(progress)
        except asyncio.CancelledError:
            await self._end(progress, TaskStatus.CANCELLED, "cancelled")
            raise
        except BackendError as e:
            await self._end(progress, TaskStatus.FAILED, e.message)
        except Exception:  # any outcome of a task must be recorded
            log.exception("background task %s failed", progress.task.name)
            await self._end(progress, TaskStatus.FAILED, "internal error")
        else:
            await self._end(progress, TaskStatus.DONE, message)

    async def _end(self, progress: TaskProgress, status: TaskStatus, message: str) -> None:
        """Records the end of a task, and retries while the store is unavailable, since an open task
        blocks its subject.
        """
        while True:
            try:
                return await self.advance(progress, status=status, message=message)
            except Unavailable as e:
                log.warning("the end of the background task %s cannot be written yet: %s", progress.task.name, e)
                await asyncio.sleep(RECHECK_S)

    async def advance(self, progress: TaskProgress, **changes: Any) -> None:
        """Stores a change of a task and notifies its subscribers."""
        progress.task = replace(progress.task, updated_at=self.clock.now(), **changes)
        await self.store.put_task(progress.task)
        self.bus.publish(TASKS, progress.task.id)

    async def get(self, caller: Caller, task_id: TaskId) -> Task:
        """Returns a task. Raises NotFound, also for the tasks of others."""
        task = await self.store.task(task_id)
        if task is None or not is_permitted(caller, Operation.SEE_TASKS, is_own=task.owner == caller.user_id):
            raise NotFound("There is no such background task.")
        return task

    async def subscribe(self, caller: Caller, task_id: TaskId) -> AsyncIterator[Task]:
        """Yields a task in its current state and in each later state, until the final state."""
        with self.bus.subscribe(TASKS) as subscription:
            last_state: Task | None = None
            while last_state is None or not last_state.status.is_final:
                task = await self.get(caller, task_id)
                if task != last_state:
                    last_state = task
                    yield task
                    continue
                await wait_for_hint(subscription, RECHECK_S)

    async def is_under_way(self, subject: str) -> bool:
        """Returns True if an unfinished task of any manager works on the subject."""
        return await self.store.open_task(subject) is not None

    async def cancel(self, caller: Caller, task_id: TaskId) -> None:
        """Cancels a task, on whichever manager it runs, or does nothing if the task has ended."""
        task = await self.get(caller, task_id)
        running_task = self._running.get(task_id)
        if running_task is not None:
            running_task.cancel()
        elif not task.status.is_final:
            await self.store.request_cancel(task_id)
            self.bus.publish(CANCEL_REQUESTS)

    async def run(self) -> None:
        """Cancels tasks of this process when other managers have requested it; runs until it is cancelled."""
        with self.bus.subscribe(CANCEL_REQUESTS) as subscription:
            while True:
                await wait_for_hint(subscription, RECHECK_S)
                try:
                    for task_id in await self.store.cancel_requested(list(self._running)) if self._running else ():
                        if (running_task := self._running.get(task_id)) is not None:
                            running_task.cancel()
                except Exception:  # the next round asks again
                    log.exception("could not read which background tasks are to be cancelled")

    async def stop(self) -> None:
        """Cancels the tasks of this process and waits until they have ended."""
        await cancel_all(*self._running.values())
