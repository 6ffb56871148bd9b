"""Follows background tasks of the server (spec 03-08 "Background Task Progress Events")."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

from ai.backend.client.exceptions import BackendClientError
from ai.backend.client.transport import Transport
from ai.backend.client.types import Remote


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Describes the progress of a background task. ``total`` is zero where the server does not know it."""

    state: str
    current: float
    total: float
    message: str | None

    @property
    def is_final(self) -> bool:
        return self.state != "updated"


class AsyncBackgroundTask(Remote):
    """Follows a background task by its id, which the call that started the task has returned."""

    def __init__(self, transport: Transport, task_id: UUID | str) -> None:
        self._transport = transport
        self.task_id = UUID(str(task_id))

    async def progress(self) -> AsyncIterator[Progress]:
        """Yields every step of the task. The ``state`` of the last one is ``done``, ``failed`` or ``cancelled``."""
        from ai.backend.client.events import follow

        event_family = ""
        async for event in follow(self._transport, "/events/background-task", {"task_id": str(self.task_id)}):
            event_prefix, _, state = event.name.rpartition("_")
            # A server may send each step twice: as `bgtask_*` of the published client and as `task_*` of the spec.
            event_family = event_family or event_prefix
            if event_prefix != event_family:
                continue
            data = event.data
            yield Progress(
                state=state,
                current=float(data.get("current_progress") or 0),
                total=float(data.get("total_progress") or 0),
                message=data.get("message"),
            )

    async def wait(self) -> Progress:
        """Waits for the end of the task and returns the last step.

        Raises BackendClientError if the task failed or was cancelled.
        """
        last_step: Progress | None = None
        async for last_step in self.progress():
            if last_step.is_final:
                break
        if last_step is None or last_step.state != "done":
            state = last_step.state if last_step else "unknown"
            raise BackendClientError(
                f"the background task {self.task_id} is {state}: {last_step.message if last_step else ''}"
            )
        return last_step
