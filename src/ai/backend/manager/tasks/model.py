"""Defines background tasks and their statuses."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import TaskId, UserId


class TaskStatus(StrEnum):
    STARTED = "bgtask_started"
    UPDATED = "bgtask_updated"
    DONE = "bgtask_done"
    FAILED = "bgtask_failed"
    CANCELLED = "bgtask_cancelled"

    @property
    def is_final(self) -> bool:
        return self in (TaskStatus.DONE, TaskStatus.FAILED, TaskStatus.CANCELLED)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Represents a background task; ``status`` is also the name of the event that announces the status."""

    id: TaskId
    name: str
    owner: UserId
    status: TaskStatus
    current_progress: float = 0
    total_progress: float = 0
    message: str = ""
    created_at: datetime
    updated_at: datetime
    manager: str = ""
    """The id of the manager that runs the task."""
    subject: str = ""
    """The name of the object on which the task works, if only one task may work on the object at a time."""


def busy_with(subject: str, task_id: TaskId) -> Conflict:
    """Returns the error for a second task on a subject on which a task already works."""
    return Conflict(f"A background task on {subject} is under way.", data={"status": "ongoing", "task": str(task_id)})
