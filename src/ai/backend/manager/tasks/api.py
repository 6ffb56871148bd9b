"""REST routes of tasks."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ai.backend.infra.http.routes import Schema
from ai.backend.infra.http.streams import SseEvent
from ai.backend.manager.tasks.model import Task


class TaskEventsQuery(Schema, frozen=True, rename={"camel": "taskId"}):
    """``task_id`` of the published client, ``taskId`` of the spec."""

    task_id: Annotated[str, Meta(max_length=36)] | None = None
    camel: Annotated[str, Meta(max_length=36)] | None = None


def _told_task(task: Task) -> list[SseEvent]:
    """Under the published client's name and the spec's; nothing is told of a task that has only been started."""
    name = task.status.value
    data = {
        "task_id": str(task.id),
        "current_progress": task.current_progress,
        "total_progress": task.total_progress,
        "message": task.message,
    }
    if name == "bgtask_started":
        name = "bgtask_updated"
    return [SseEvent(name, data), SseEvent(name.removeprefix("bg"), data)]
