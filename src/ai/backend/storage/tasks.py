"""Work that outlives the request that asked for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from uuid import uuid4

from ai.backend.common.errors import BackendError, InternalError, NotFound
from ai.backend.common.ids import TaskId
from ai.backend.plugin.volume import Progress

log = logging.getLogger(__name__)
_KEPT = 1000


class TaskStatus(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True, kw_only=True)
class Task:
    """One piece of work. ``key`` names what it works on: no two run for one key."""

    id: TaskId
    kind: str
    key: str
    progress: Progress
    status: TaskStatus = TaskStatus.RUNNING
    error: BackendError | None = None


class Tasks:
    """Those that run, and the last that ran. Nothing of it survives the process."""

    def __init__(self) -> None:
        self._tasks: dict[TaskId, Task] = {}
        self._running: dict[str, Task] = {}
        self._works: dict[TaskId, asyncio.Task[None]] = {}

    def start(self, kind: str, key: str, work: Callable[[Progress], Awaitable[None]]) -> Task:
        """Begin, or return the task that works on this already."""
        if (running := self._running.get(key)) is not None:
            return running
        task = Task(id=TaskId(uuid4()), kind=kind, key=key, progress=Progress())
        self._tasks[task.id] = self._running[key] = task
        for old in [t for t in self._tasks.values() if t.status != TaskStatus.RUNNING][:-_KEPT]:
            del self._tasks[old.id]
        self._works[task.id] = asyncio.create_task(self._run(task, work), name=f"{kind} {key}")
        return task

    async def _run(self, task: Task, work: Callable[[Progress], Awaitable[None]]) -> None:
        try:
            await work(task.progress)
            task.status = TaskStatus.CANCELLED if task.progress.is_cancelled else TaskStatus.DONE
        except BackendError as e:
            task.status, task.error = TaskStatus.FAILED, e
            log.warning("%s %s failed: %s", task.kind, task.key, e.message)
        except Exception:
            task.status, task.error = TaskStatus.FAILED, InternalError()
            log.exception("%s %s failed", task.kind, task.key)
        finally:
            del self._running[task.key]
            del self._works[task.id]

    def get(self, task_id: TaskId) -> Task:
        """Raises NotFound."""
        if (task := self._tasks.get(task_id)) is None:
            raise NotFound("There is no such task, or it ended long ago.")
        return task

    def cancel(self, key: str) -> None:
        """End what works on this, soon."""
        if (task := self._running.get(key)) is not None:
            task.progress.cancel()

    async def stop(self) -> None:
        """Leave the work where it is; what can be taken up again has left its mark on the volume."""
        for task in self._running.values():
            task.progress.abandon()
        works = list(self._works.values())
        await asyncio.gather(*works, return_exceptions=True)
