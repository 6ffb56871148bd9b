"""Stores of tasks in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from ai.backend.common.ids import TaskId
from ai.backend.manager.db.fence import check_fence
from ai.backend.manager.logs.model import AuditRecord
from ai.backend.manager.tasks.model import Task, TaskStatus, busy_with


class MemoryJournalStore:
    """Implements TaskStore and AuditStore of :mod:`ai.backend.manager.sessions.store`."""

    def __init__(self) -> None:
        self._tasks: dict[TaskId, Task] = {}
        self._unwanted: set[TaskId] = set()
        self._records: list[AuditRecord] = []

    async def add_task(self, task: Task) -> None:
        check_fence()
        busy = await self.open_task(task.subject) if task.subject else None
        if busy is not None:
            raise busy_with(busy.subject, busy.id)
        self._tasks[task.id] = task

    async def put_task(self, task: Task) -> None:
        check_fence()
        self._tasks[task.id] = task

    async def task(self, task_id: TaskId) -> Task | None:
        return self._tasks.get(task_id)

    async def open_task(self, subject: str) -> Task | None:
        return next((t for t in self._tasks.values() if t.subject == subject and not t.status.is_final), None)

    async def ask_to_cancel(self, task_id: TaskId) -> None:
        check_fence()
        self._unwanted.add(task_id)

    async def asked_to_cancel(self, task_ids: Collection[TaskId]) -> Collection[TaskId]:
        return self._unwanted & set(task_ids)

    async def fail_open_tasks(self, *, at: datetime, message: str, but: Collection[str] = ()) -> int:
        check_fence()
        still = [t for t in self._tasks.values() if not t.status.is_final and t.manager not in but]
        for task in still:
            self._tasks[task.id] = replace(task, status=TaskStatus.FAILED, updated_at=at, message=message)
        return len(still)

    async def append(self, records: Sequence[AuditRecord]) -> None:
        check_fence()
        self._records.extend(records)

    async def recent(self, limit: int) -> list[AuditRecord]:
        return list(reversed(self._records))[:limit]
