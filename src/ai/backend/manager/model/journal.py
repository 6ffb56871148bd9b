"""Events, background tasks and audit records: what is told about the past.

Source: client wire contract 2.4, peer facts 4.9 and 4.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import AccessKey, DomainName, GroupId, KernelId, SessionId, TaskId, UserId


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDraft:
    """An event before it is written. Written in the same transaction as the change that it tells."""

    name: str
    session_id: SessionId
    kernel_id: KernelId | None = None
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a session or kernel.

    ``id`` grows monotonically over all events, hence also per session; clients resume after it (Last-Event-ID).
    ``payload`` is what the client sees as JSON.
    """

    id: int
    name: str
    session_id: SessionId
    kernel_id: KernelId | None
    access_key: AccessKey
    domain_name: DomainName
    group_id: GroupId
    user_id: UserId
    at: datetime
    payload: Mapping[str, Any]

    @property
    def scope(self) -> Literal["session", "kernel"]:
        return "kernel" if self.name.startswith("kernel_") else "session"


class TaskStatus(StrEnum):
    STARTED = "bgtask_started"
    UPDATED = "bgtask_updated"
    DONE = "bgtask_done"
    FAILED = "bgtask_failed"
    CANCELLED = "bgtask_cancelled"

    @property
    def is_final(self) -> bool:
        return self in (TaskStatus.DONE, TaskStatus.FAILED, TaskStatus.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
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
    """The process that works on it."""
    subject: str = ""
    """What it works on, if no other task may do so at the same time."""


def busy_with(subject: str, task_id: TaskId) -> Conflict:
    """What a second task on the same subject is told."""
    return Conflict(f"A background task on {subject} is under way.", data={"status": "ongoing", "task": str(task_id)})


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """Who did what to which object and how it went. ``outcome`` is ``ok`` or the error code."""

    at: datetime
    request_id: str
    user_id: UserId | None
    access_key: str | None
    operation: str
    object_type: str
    object_id: str | None
    outcome: str
    detail: Mapping[str, Any] = field(default_factory=dict)
