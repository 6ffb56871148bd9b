"""The REST route that streams the progress of a background task (spec 03-08, client wire contract 2.4)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

from aiohttp import web

from ai.backend.common.ids import TaskId
from ai.backend.infra.http.decode import either, refuse
from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.infra.http.streams import SseEvent, send_events
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.requests import OBJECT_PROBLEMS, caller_of
from ai.backend.manager.tasks.model import Task
from ai.backend.manager.tasks.service import TaskService


class TaskEventsQuery(Schema, frozen=True, rename={"camel": "taskId"}):
    """The query of a task's events: ``task_id`` of the published client, or ``taskId`` of the spec."""

    task_id: UUID | None = None
    camel: UUID | None = None


class TasksApi:
    """Streams the events of background tasks."""

    problems = OBJECT_PROBLEMS

    def __init__(self, tasks: TaskService) -> None:
        self._tasks = tasks

    @route("GET", "/events/background-task", kind="stream", query=TaskEventsQuery)
    async def task_events(self, call: Call[Nothing, TaskEventsQuery]) -> web.StreamResponse:
        """Stream the progress and the end of a background task; then ``server_close``."""
        task_id_text = either(call.query.task_id, call.query.camel, "task_id", "taskId")
        if task_id_text is None:
            raise refuse({"task_id": "required"})
        task_id = TaskId(task_id_text)
        caller = caller_of(call)
        await self._tasks.get(caller, task_id)
        return await send_events(call.request, self._progress_events(caller, task_id))

    async def _progress_events(self, caller: Caller, task_id: TaskId) -> AsyncIterator[SseEvent]:
        async for task in self._tasks.subscribe(caller, task_id):
            for event in _task_events(task):
                yield event


def _task_events(task: Task) -> list[SseEvent]:
    """Returns the events of a task's state, under the published client's name and the spec's, with whole numbers (spec
    03-08). A task that has only been started is reported as updated."""
    name = task.status.value
    data = {
        "task_id": str(task.id),
        "current_progress": int(task.current_progress),
        "total_progress": int(task.total_progress),
        "message": task.message,
    }
    if name == "bgtask_started":
        name = "bgtask_updated"
    return [SseEvent(name, data), SseEvent(name.removeprefix("bg"), data)]
