"""Declares the store of background tasks."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Protocol

from ai.backend.common.ids import TaskId
from ai.backend.manager.tasks.model import Task


class TaskStore(Protocol):
    """Stores background tasks. A task is open until its status is final."""

    async def add_task(self, task: Task) -> None:
        """Inserts a task. Raises Conflict, with ``task`` in its data, if an open task has the same subject."""

    async def put_task(self, task: Task) -> None:
        """Updates an existing task."""

    async def task(self, task_id: TaskId) -> Task | None: ...
    async def open_task(self, subject: str) -> Task | None: ...

    async def request_cancel(self, task_id: TaskId) -> None: ...

    async def cancel_requested(self, task_ids: Collection[TaskId]) -> Collection[TaskId]:
        """Returns those of the given tasks whose cancellation was requested."""
        ...

    async def fail_open_tasks(self, *, at: datetime, message: str, living: Collection[str] = ()) -> int:
        """Marks open tasks as failed, except tasks of the managers in ``living``, and returns their number."""
        ...
