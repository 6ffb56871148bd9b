"""The store of background tasks in memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from ai.backend.common.ids import TaskId
from ai.backend.manager.db.fence import check_fence
from ai.backend.manager.tasks.model import Task, TaskStatus, busy_with


class MemoryTaskStore:
    """Implements :class:`ai.backend.manager.tasks.store.TaskStore`."""

    def __init__(self) -> None:
        self._tasks: dict[TaskId, Task] = {}
        self._cancel_requested: set[TaskId] = set()

    async def add_task(self, task: Task) -> None:
        check_fence()
        existing = await self.open_task(task.subject) if task.subject else None
        if existing is not None:
            raise busy_with(existing.subject, existing.id)
        self._tasks[task.id] = task

    async def put_task(self, task: Task) -> None:
        check_fence()
        self._tasks[task.id] = task

    async def task(self, task_id: TaskId) -> Task | None:
        return self._tasks.get(task_id)

    async def open_task(self, subject: str) -> Task | None:
        return next((t for t in self._tasks.values() if t.subject == subject and not t.status.is_final), None)

    async def request_cancel(self, task_id: TaskId) -> None:
        check_fence()
        self._cancel_requested.add(task_id)

    async def cancel_requested(self, task_ids: Collection[TaskId]) -> Collection[TaskId]:
        return self._cancel_requested & set(task_ids)

    async def fail_open_tasks(self, *, at: datetime, message: str, but: Collection[str] = ()) -> int:
        check_fence()
        unfinished = [t for t in self._tasks.values() if not t.status.is_final and t.manager not in but]
        for task in unfinished:
            self._tasks[task.id] = replace(task, status=TaskStatus.FAILED, updated_at=at, message=message)
        return len(unfinished)
