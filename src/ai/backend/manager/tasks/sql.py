"""The store of background tasks in SQL."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, insert, select, update

from ai.backend.common.ids import TaskId
from ai.backend.infra.database import Database
from ai.backend.infra.database.rows import row_of
from ai.backend.manager.tasks import tables
from ai.backend.manager.tasks.model import Task, TaskStatus, busy_with

_OPEN = [status for status in TaskStatus if not status.is_final]


class SqlTaskStore:
    """Implements :class:`ai.backend.manager.tasks.store.TaskStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add_task(self, task: Task) -> None:
        c = tables.tasks.c
        busy = select(c.id).where(c.subject == task.subject, c.status.in_(_OPEN))

        def work(s: Connection) -> None:
            other = s.execute(busy).scalars().first() if task.subject else None
            if other is not None:
                raise busy_with(task.subject, other)
            s.execute(insert(tables.tasks), row_of(task))

        await self._db.run_write(work)

    async def put_task(self, task: Task) -> None:
        query = update(tables.tasks).where(tables.tasks.c.id == task.id).values(row_of(task))
        await self._db.run_write(lambda s: s.execute(query))

    async def task(self, task_id: TaskId) -> Task | None:
        return await self._one_task(tables.tasks.c.id == task_id)

    async def open_task(self, subject: str) -> Task | None:
        return await self._one_task((tables.tasks.c.subject == subject) & tables.tasks.c.status.in_(_OPEN))

    async def _one_task(self, which: ColumnElement[bool]) -> Task | None:
        query = select(*(tables.tasks.c[f.name] for f in fields(Task))).where(which)
        row = await self._db.run_read(lambda s: s.execute(query).first())
        return Task(**row._mapping) if row is not None else None

    async def request_cancel(self, task_id: TaskId) -> None:
        query = update(tables.tasks).where(tables.tasks.c.id == task_id).values(is_unwanted=True)
        await self._db.run_write(lambda s: s.execute(query))

    async def cancel_requested(self, task_ids: Collection[TaskId]) -> Collection[TaskId]:
        query = select(tables.tasks.c.id).where(tables.tasks.c.id.in_(task_ids), tables.tasks.c.is_unwanted)
        return await self._db.run_read(lambda s: [TaskId(i) for i in s.execute(query).scalars()])

    async def fail_open_tasks(self, *, at: datetime, message: str, but: Collection[str] = ()) -> int:
        c = tables.tasks.c
        unfinished = c.status.in_(_OPEN) & c.manager.not_in(but)

        def work(s: Connection) -> int:
            values = {"status": TaskStatus.FAILED, "updated_at": at, "message": message}
            done = s.execute(update(tables.tasks).where(unfinished).values(values))
            return int(done.rowcount)

        return await self._db.run_write(work)
