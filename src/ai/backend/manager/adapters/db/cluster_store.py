"""Agents, slot types, presets, tasks and the audit trail in SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from ai.backend.common.ids import AgentId, ResourceGroupName, TaskId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus
from ai.backend.common.wire.reports import OverlayReport
from ai.backend.infra.database import Database
from ai.backend.infra.database.rows import row_of
from ai.backend.manager.adapters.db import tables as t
from ai.backend.manager.adapters.db.filters import compile_filter, compile_order
from ai.backend.manager.model.cluster import Agent, ResourcePreset, SlotTypeInfo
from ai.backend.manager.model.journal import AuditRecord, Task, TaskStatus, busy_with
from ai.backend.manager.model.query import ListQuery, Page

_AGENT_FIELDS = tuple(f.name for f in fields(Agent) if f.name not in ("live_stat", "occupied_slots"))
_OPEN = [status for status in TaskStatus if not status.is_final]


class SqlAgentStore:
    """Implements :class:`ai.backend.manager.ports.stores.AgentStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def put_agent(self, agent: Agent) -> None:
        row = {name: getattr(agent, name) for name in _AGENT_FIELDS}
        c = t.agents.c

        def work(s: Connection) -> None:
            row["version_id"] = c.version_id + 1
            done = s.execute(update(t.agents).where(c.id == agent.id).values(row))
            if done.rowcount == 0:
                fresh = {**row, "version_id": 1, "occupied_slots": ResourceSlot()}
                s.execute(insert(t.agents), fresh)

        await self._db.run_write(work)

    async def _set(self, agent_id: AgentId, **values: Any) -> None:
        def work(s: Connection) -> None:
            s.execute(update(t.agents).where(t.agents.c.id == agent_id).values(values))

        await self._db.run_write(work)

    async def set_status(self, agent_id: AgentId, status: AgentStatus, *, at: datetime) -> None:
        lost_at = at if status is AgentStatus.LOST else None
        await self._set(agent_id, status=status, status_changed=at, lost_at=lost_at)

    async def set_schedulable(self, agent_id: AgentId, schedulable: bool) -> None:
        await self._set(agent_id, schedulable=schedulable)

    async def set_resource_group(self, agent_id: AgentId, name: ResourceGroupName) -> None:
        await self._set(agent_id, scaling_group=name)

    async def beat(self, agent_id: AgentId, *, at: datetime) -> None:
        await self._set(agent_id, last_heartbeat=at)

    async def agent(self, agent_id: AgentId) -> Agent | None:
        def work(s: Connection) -> Agent | None:
            row = (s.execute(select(t.agents).where(t.agents.c.id == agent_id))).one_or_none()
            return Agent(**row._mapping) if row is not None else None

        return await self._db.run_read(work)

    async def agents(self, *, scaling_group: str | None = None) -> list[Agent]:
        query = select(t.agents).order_by(t.agents.c.id)
        if scaling_group is not None:
            query = query.where(t.agents.c.scaling_group == scaling_group)

        def work(s: Connection) -> list[Agent]:
            return [Agent(**row._mapping) for row in s.execute(query)]

        return await self._db.run_read(work)

    async def underlays(self) -> dict[AgentId, OverlayReport]:
        c = t.agents.c
        query = select(c.id, c.overlay).where(c.status == AgentStatus.ALIVE, c.overlay.is_not(None)).order_by(c.id)

        def work(s: Connection) -> dict[AgentId, OverlayReport]:
            return {row.id: row.overlay for row in s.execute(query) if row.overlay is not None}

        return await self._db.run_read(work)

    async def page(self, query: ListQuery, *, status: str | None, scaling_group: str | None) -> Page[Agent]:
        c = t.agents.c
        where: list[ColumnElement[bool]] = compile_filter(t.agents, query.filter)
        if status is not None:
            where.append(c.status == status)
        if scaling_group is not None:
            where.append(c.scaling_group == scaling_group)
        order = compile_order(t.agents, query.order, (c.id.asc(),))

        def work(s: Connection) -> Page[Agent]:
            total = (s.execute(select(func.count()).select_from(t.agents).where(*where))).scalar_one()
            page = select(t.agents).where(*where).order_by(*order).limit(query.limit).offset(query.offset)
            return Page(items=[Agent(**row._mapping) for row in s.execute(page)], total_count=total)

        return await self._db.run_read(work)

    async def add_slot_types(self, slots: Iterable[SlotTypeInfo]) -> None:
        c = t.slot_types.c

        def work(s: Connection) -> None:
            known = set((s.execute(select(c.slot_name))).scalars())
            for slot in slots:
                row = {"slot_name": slot.slot_name, "slot_type": slot.slot_type, "display": dict(slot.display)}
                if slot.slot_name in known:
                    s.execute(update(t.slot_types).where(c.slot_name == slot.slot_name).values(row))
                else:
                    s.execute(insert(t.slot_types), row)

        await self._db.run_write(work)

    async def slot_types(self) -> list[SlotTypeInfo]:
        def work(s: Connection) -> list[SlotTypeInfo]:
            rows = s.execute(select(t.slot_types).order_by(t.slot_types.c.slot_name))
            return [SlotTypeInfo(**row._mapping) for row in rows]

        return await self._db.run_read(work)

    async def presets(self) -> list[ResourcePreset]:
        def work(s: Connection) -> list[ResourcePreset]:
            rows = s.execute(select(t.presets).order_by(t.presets.c.name))
            return [ResourcePreset(**row._mapping) for row in rows]

        return await self._db.run_read(work)

    async def put_preset(self, preset: ResourcePreset) -> None:
        row = row_of(preset)

        def work(s: Connection) -> None:
            done = s.execute(update(t.presets).where(t.presets.c.name == preset.name).values(row))
            if done.rowcount == 0:
                s.execute(insert(t.presets), row)

        await self._db.run_write(work)

    async def delete_preset(self, name: str) -> bool:
        query = delete(t.presets).where(t.presets.c.name == name)
        return await self._db.run_write(lambda s: bool(s.execute(query).rowcount))


class SqlJournalStore:
    """Implements TaskStore and AuditStore of :mod:`ai.backend.manager.ports.stores`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add_task(self, task: Task) -> None:
        c = t.tasks.c
        busy = select(c.id).where(c.subject == task.subject, c.status.in_(_OPEN))

        def work(s: Connection) -> None:
            other = s.execute(busy).scalars().first() if task.subject else None
            if other is not None:
                raise busy_with(task.subject, other)
            s.execute(insert(t.tasks), row_of(task))

        await self._db.run_write(work)

    async def put_task(self, task: Task) -> None:
        query = update(t.tasks).where(t.tasks.c.id == task.id).values(row_of(task))
        await self._db.run_write(lambda s: s.execute(query))

    async def task(self, task_id: TaskId) -> Task | None:
        return await self._one_task(t.tasks.c.id == task_id)

    async def open_task(self, subject: str) -> Task | None:
        return await self._one_task((t.tasks.c.subject == subject) & t.tasks.c.status.in_(_OPEN))

    async def _one_task(self, which: ColumnElement[bool]) -> Task | None:
        query = select(*(t.tasks.c[f.name] for f in fields(Task))).where(which)
        row = await self._db.run_read(lambda s: s.execute(query).first())
        return Task(**row._mapping) if row is not None else None

    async def ask_to_cancel(self, task_id: TaskId) -> None:
        query = update(t.tasks).where(t.tasks.c.id == task_id).values(is_unwanted=True)
        await self._db.run_write(lambda s: s.execute(query))

    async def asked_to_cancel(self, task_ids: Collection[TaskId]) -> Collection[TaskId]:
        query = select(t.tasks.c.id).where(t.tasks.c.id.in_(task_ids), t.tasks.c.is_unwanted)
        return await self._db.run_read(lambda s: [TaskId(i) for i in s.execute(query).scalars()])

    async def fail_open_tasks(self, *, at: datetime, message: str, but: Collection[str] = ()) -> int:
        c = t.tasks.c
        unfinished = c.status.in_(_OPEN) & c.manager.not_in(but)

        def work(s: Connection) -> int:
            values = {"status": TaskStatus.FAILED, "updated_at": at, "message": message}
            done = s.execute(update(t.tasks).where(unfinished).values(values))
            return int(done.rowcount)

        return await self._db.run_write(work)

    async def append(self, records: Sequence[AuditRecord]) -> None:
        if records:
            names = [f.name for f in fields(AuditRecord)]

            def work(s: Connection) -> None:
                s.execute(insert(t.audit_logs), [{n: getattr(r, n) for n in names} for r in records])

            await self._db.run_write(work)

    async def recent(self, limit: int) -> list[AuditRecord]:
        names = [f.name for f in fields(AuditRecord)]
        columns = [t.audit_logs.c[name] for name in names]

        def work(s: Connection) -> list[AuditRecord]:
            rows = s.execute(select(*columns).order_by(t.audit_logs.c.id.desc()).limit(limit))
            return [AuditRecord(**row._mapping) for row in rows]

        return await self._db.run_read(work)
