"""Events, background tasks and the audit trail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ai.backend.common.ids import TaskId
from ai.backend.manager.model.identity import Caller
from ai.backend.manager.model.journal import AuditRecord, Event, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events a client wants. ``session_ref`` None is every session that the caller sees.

    ``after_id`` is the client's Last-Event-ID; None starts with the events that follow now.
    """

    session_ref: str | None = None
    scope: Literal["*", "session", "kernel"] = "*"
    owner_access_key: str | None = None
    after_id: int | None = None


class EventService:
    def subscribe(self, caller: Caller, wanted: EventFilter) -> AsyncIterator[Event]:
        """At least once, in order per session, for ever; the consumer ends it by closing the iterator.

        Raises:
            SessionNotFound: at the first step.
        """
        raise NotImplementedError


class TaskProgress:
    """How a running task tells its progress."""

    async def update(self, current: float, total: float | None = None, message: str | None = None) -> None:
        raise NotImplementedError


class TaskService:
    async def start(self, caller: Caller, name: str, body: Callable[[TaskProgress], Awaitable[str]]) -> TaskId:
        """Run ``body`` in the background; what it returns is the final message."""
        raise NotImplementedError

    async def get(self, caller: Caller, task_id: TaskId) -> Task:
        """Raises NotFound for somebody else's."""
        raise NotImplementedError

    def subscribe(self, caller: Caller, task_id: TaskId) -> AsyncIterator[Task]:
        """The present state, then every change, ending after a final one."""
        raise NotImplementedError

    async def cancel(self, caller: Caller, task_id: TaskId) -> None:
        raise NotImplementedError


class AuditService:
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
        raise NotImplementedError

    async def recent(self, caller: Caller, *, limit: int = 100) -> Sequence[AuditRecord]:
        """Superadmins only."""
        raise NotImplementedError
