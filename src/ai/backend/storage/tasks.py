"""Runs background tasks that outlive their request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from uuid import uuid4

from ai.backend.common.errors import BackendError, InternalError, NotFound
from ai.backend.common.ids import TaskId
from ai.backend.plugin.volume import Progress

log = logging.getLogger(__name__)
_MAX_ENDED_TASKS = 1000


class TaskStatus(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True, kw_only=True)
class Task:
    """Describes a background task of the storage proxy, with its progress, status and error.

    ``key`` names its subject; no two tasks with one key run at once.
    """

    id: TaskId
    kind: str
    key: str
    progress: Progress
    status: TaskStatus = TaskStatus.RUNNING
    error: BackendError | None = None


class Tasks:
    """Runs tasks and remembers the last ended ones, in memory only."""

    def __init__(self) -> None:
        self._tasks: dict[TaskId, Task] = {}
        self._running: dict[str, Task] = {}
        self._works: dict[TaskId, asyncio.Task[None]] = {}

    def start(self, kind: str, key: str, work: Callable[[Progress], Awaitable[None]]) -> Task:
        """Starts a task, or returns the running one of the same key."""
        if (running_task := self._running.get(key)) is not None:
            return running_task
        task = Task(id=TaskId(uuid4()), kind=kind, key=key, progress=Progress())
        self._tasks[task.id] = self._running[key] = task
        for old_task in [ended_task for ended_task in self._tasks.values() if ended_task.status != TaskStatus.RUNNING][
            :-_MAX_ENDED_TASKS
        ]:
            del self._tasks[old_task.id]
        self._works[task.id] = asyncio.create_task(self._run(task, work), name=f"{kind} {key}")
        return task

    async def _run(self, task: Task, work: Callable[[Progress], Awaitable[None]]) -> None:
        try:
            await work(task.progress)
            task.status = TaskStatus.CANCELLED if task.progress.is_cancelled else TaskStatus.DONE
        except BackendError as e:
            task.status, task.error = TaskStatus.FAILED, e
            log.warning("%s %s failed: %s", task.kind, task.key, e.message)
        except Exception:
            task.status, task.error = TaskStatus.FAILED, InternalError()
            log.exception("%s %s failed", task.kind, task.key)
        finally:
            del self._running[task.key]
            del self._works[task.id]

    def get(self, task_id: TaskId) -> Task:
        """Returns a task by its id. Raises NotFound."""
        if (task := self._tasks.get(task_id)) is None:
            raise NotFound("There is no such task, or it ended long ago.")
        return task

    def cancel(self, key: str) -> None:
        """Requests the running task of a key to end."""
        if (task := self._running.get(key)) is not None:
            task.progress.cancel()

    async def stop(self) -> None:
        """Stops all running tasks, which then have no result.

        Tasks that can be resumed have their state on the volume.
        """
        for task in self._running.values():
            task.progress.abandon()
        await asyncio.gather(*self._works.values(), return_exceptions=True)
