"""The store of agents and slot types in SQL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus
from ai.backend.common.wire.reports import OverlayReport
from ai.backend.infra.database import Database
from ai.backend.manager.agents import tables
from ai.backend.manager.agents.model import Agent, SlotTypeInfo
from ai.backend.manager.query.model import ListQuery, Page
from ai.backend.manager.query.sql import compile_filter, compile_order

_AGENT_FIELDS = tuple(f.name for f in fields(Agent) if f.name not in ("live_stat", "occupied_slots"))


class SqlAgentStore:
    """Implements :class:`ai.backend.manager.agents.store.AgentStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def put_agent(self, agent: Agent) -> None:
        row = {name: getattr(agent, name) for name in _AGENT_FIELDS}
        c = tables.agents.c

        def work(s: Connection) -> None:
            changes = {**row, "version_id": c.version_id + 1}
            if s.execute(update(tables.agents).where(c.id == agent.id).values(changes)).rowcount == 0:
                s.execute(insert(tables.agents), {**row, "version_id": 1, "occupied_slots": ResourceSlot()})

        await self._db.run_write(work)

    async def set_status(self, agent_id: AgentId, status: AgentStatus, *, at: datetime) -> None:
        lost_at = at if status is AgentStatus.LOST else None
        await self.change(agent_id, status=status, status_changed=at, lost_at=lost_at)

    async def change(self, agent_id: AgentId, **values: Any) -> None:
        def work(s: Connection) -> None:
            s.execute(update(tables.agents).where(tables.agents.c.id == agent_id).values(values))

        await self._db.run_write(work)

    async def agent(self, agent_id: AgentId) -> Agent | None:
        def work(s: Connection) -> Agent | None:
            row = (s.execute(select(tables.agents).where(tables.agents.c.id == agent_id))).one_or_none()
            return Agent(**row._mapping) if row is not None else None

        return await self._db.run_read(work)

    async def agents(self, *, scaling_group: str | None = None) -> list[Agent]:
        query = select(tables.agents).order_by(tables.agents.c.id)
        if scaling_group is not None:
            query = query.where(tables.agents.c.scaling_group == scaling_group)
        return await self._db.run_read(lambda s: [Agent(**row._mapping) for row in s.execute(query)])

    async def underlays(self) -> dict[AgentId, OverlayReport]:
        c = tables.agents.c
        query = select(c.id, c.overlay).where(c.status == AgentStatus.ALIVE, c.overlay.is_not(None)).order_by(c.id)
        return await self._db.run_read(
            lambda s: {row.id: row.overlay for row in s.execute(query) if row.overlay is not None}
        )

    async def page(self, query: ListQuery, *, status: str | None, scaling_group: str | None) -> Page[Agent]:
        c = tables.agents.c
        where: list[ColumnElement[bool]] = compile_filter(tables.agents, query.filter)
        if status is not None:
            where.append(c.status == status)
        if scaling_group is not None:
            where.append(c.scaling_group == scaling_group)
        order = compile_order(tables.agents, query.order, (c.id.asc(),))

        def work(s: Connection) -> Page[Agent]:
            total = (s.execute(select(func.count()).select_from(tables.agents).where(*where))).scalar_one()
            page = select(tables.agents).where(*where).order_by(*order).limit(query.limit).offset(query.offset)
            return Page(items=[Agent(**row._mapping) for row in s.execute(page)], total_count=total)

        return await self._db.run_read(work)

    async def add_slot_types(self, slots: Iterable[SlotTypeInfo]) -> None:
        c = tables.slot_types.c

        def work(s: Connection) -> None:
            existing = set(s.execute(select(c.slot_name)).scalars())
            for slot in slots:
                row = {"slot_name": slot.slot_name, "slot_type": slot.slot_type, "display": dict(slot.display)}
                if slot.slot_name in existing:
                    s.execute(update(tables.slot_types).where(c.slot_name == slot.slot_name).values(row))
                else:
                    s.execute(insert(tables.slot_types), row)

        await self._db.run_write(work)

    async def slot_types(self) -> list[SlotTypeInfo]:
        query = select(tables.slot_types).order_by(tables.slot_types.c.slot_name)
        return await self._db.run_read(lambda s: [SlotTypeInfo(**row._mapping) for row in s.execute(query)])
