"""Background tasks and their statuses."""

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
    """A background task; ``status`` is also the name of the event that announces it."""

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
    """The id of the manager that runs it."""
    subject: str = ""
    """The object that it works on, if no other task may do so at the same time."""


def busy_with(subject: str, task_id: TaskId) -> Conflict:
    """Returns the error for a second task on the same subject."""
    return Conflict(f"A background task on {subject} is under way.", data={"status": "ongoing", "task": str(task_id)})
