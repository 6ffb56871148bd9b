"""Stores background tasks in SQL."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

import sqlalchemy as sa

from ai.backend.common.ids import TaskId
from ai.backend.infra.database import GUID, Database, UTCDateTime
from ai.backend.infra.database.columns import EnumText, required
from ai.backend.infra.database.rows import row_of
from ai.backend.manager.db import metadata
from ai.backend.manager.tasks.model import Task, TaskStatus, busy_with

tasks = sa.Table(
    "background_tasks",
    metadata,
    sa.Column("id", GUID, primary_key=True),
    required("name", sa.String(128)),
    required("owner", GUID),
    required("status", EnumText(TaskStatus), index=True),
    required("current_progress", sa.Float),
    required("total_progress", sa.Float),
    required("message", sa.Text),
    required("created_at", UTCDateTime),
    required("updated_at", UTCDateTime),
    required("manager", sa.String(128), server_default=""),
    required("subject", sa.String(128), server_default=""),
    required("is_unwanted", sa.Boolean, server_default=sa.false()),
)


_OPEN_STATUSES = [status for status in TaskStatus if not status.is_final]


class SqlTaskStore:
    """Implements :class:`ai.backend.manager.tasks.store.TaskStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add_task(self, task: Task) -> None:
        cols = tasks.c
        open_task_query = sa.select(cols.id).where(cols.subject == task.subject, cols.status.in_(_OPEN_STATUSES))

        def transact(conn: sa.Connection) -> None:
            busy_task_id = conn.execute(open_task_query).scalars().first() if task.subject else None
            if busy_task_id is not None:
                raise busy_with(task.subject, busy_task_id)
            conn.execute(sa.insert(tasks), row_of(task))

        await self._db.run_write(transact)

    async def put_task(self, task: Task) -> None:
        query = sa.update(tasks).where(tasks.c.id == task.id).values(row_of(task))
        await self._db.run_write(lambda conn: conn.execute(query))

    async def task(self, task_id: TaskId) -> Task | None:
        return await self._one_task(tasks.c.id == task_id)

    async def open_task(self, subject: str) -> Task | None:
        return await self._one_task((tasks.c.subject == subject) & tasks.c.status.in_(_OPEN_STATUSES))

    async def _one_task(self, condition: sa.ColumnElement[bool]) -> Task | None:
        query = sa.select(*(tasks.c[name] for name in Task.__struct_fields__)).where(condition)
        row = await self._db.run_read(lambda conn: conn.execute(query).first())
        return Task(**row._mapping) if row is not None else None

    async def request_cancel(self, task_id: TaskId) -> None:
        query = sa.update(tasks).where(tasks.c.id == task_id).values(is_unwanted=True)
        await self._db.run_write(lambda conn: conn.execute(query))

    async def cancel_requested(self, task_ids: Collection[TaskId]) -> Collection[TaskId]:
        query = sa.select(tasks.c.id).where(tasks.c.id.in_(task_ids), tasks.c.is_unwanted)
        return await self._db.run_read(lambda conn: [TaskId(task_id) for task_id in conn.execute(query).scalars()])

    async def fail_open_tasks(self, *, at: datetime, message: str, living: Collection[str] = ()) -> int:
        cols = tasks.c
        is_unfinished = cols.status.in_(_OPEN_STATUSES) & cols.manager.not_in(living)

        def transact(conn: sa.Connection) -> int:
            new_values = {"status": TaskStatus.FAILED, "updated_at": at, "message": message}
            update_result = conn.execute(sa.update(tasks).where(is_unfinished).values(new_values))
            return int(update_result.rowcount)

        return await self._db.run_write(transact)
