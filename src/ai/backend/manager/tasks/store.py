"""Stores of tasks: the ports."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Protocol

from ai.backend.common.ids import TaskId
from ai.backend.manager.tasks.model import Task


class TaskStore(Protocol):
    """A task is open until its status is final."""

    async def add_task(self, task: Task) -> None:
        """Raises Conflict, with the id as ``task`` in its data: an open task has its subject."""

    async def put_task(self, task: Task) -> None:
        """Change one that is there."""

    async def task(self, task_id: TaskId) -> Task | None: ...
    async def open_task(self, subject: str) -> Task | None: ...

    async def ask_to_cancel(self, task_id: TaskId) -> None: ...

    async def asked_to_cancel(self, task_ids: Collection[TaskId]) -> Collection[TaskId]:
        """Those of them that somebody wants to end."""
        ...

    async def fail_open_tasks(self, *, at: datetime, message: str, but: Collection[str] = ()) -> int:
        """End the tasks that managers left unfinished; those of the managers ``but`` go on."""
        ...
