"""Stores agents and slot types in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus
from ai.backend.common.wire.reports import OverlayReport
from ai.backend.infra.database import Database
from ai.backend.infra.database.prepared import Prepared, parameter
from ai.backend.manager.agents import tables
from ai.backend.manager.agents.model import Agent, AgentState, SlotTypeInfo
from ai.backend.manager.query.model import ListQuery, Page
from ai.backend.manager.query.sql import compile_filter, compile_order

_AGENT_FIELDS = tuple(
    agent_field for agent_field in Agent.__struct_fields__ if agent_field not in ("live_stat", "occupied_slots")
)

_IS_OF_GROUP = tables.agents.c.scaling_group == parameter(tables.agents.c.scaling_group)
_AGENTS = Prepared(select(tables.agents).order_by(tables.agents.c.id))
_AGENTS_OF_GROUP = Prepared(select(tables.agents).where(_IS_OF_GROUP).order_by(tables.agents.c.id))
_STATE_FIELDS = tuple(state_field for state_field in AgentState.__struct_fields__)
_STATES = Prepared(select(tables.agents.c.id, *(tables.agents.c[name] for name in _STATE_FIELDS)))
_AGENT = Prepared(select(tables.agents).where(tables.agents.c.id == parameter(tables.agents.c.id)))


class SqlAgentStore:
    """Implements :class:`ai.backend.manager.agents.store.AgentStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def put_agent(self, agent: Agent) -> None:
        row = {name: getattr(agent, name) for name in _AGENT_FIELDS}
        columns = tables.agents.c

        def write_agent(connection: Connection) -> None:
            changes = {**row, "version_id": columns.version_id + 1}
            if connection.execute(update(tables.agents).where(columns.id == agent.id).values(changes)).rowcount == 0:
                connection.execute(insert(tables.agents), {**row, "version_id": 1, "occupied_slots": ResourceSlot()})

        await self._db.run_write(write_agent)

    async def set_status(self, agent_id: AgentId, status: AgentStatus, *, at: datetime) -> None:
        lost_at = at if status is AgentStatus.LOST else None
        await self.change(agent_id, status=status, status_changed=at, lost_at=lost_at)

    async def change(self, agent_id: AgentId, **values: Any) -> None:
        def update_agent(connection: Connection) -> None:
            connection.execute(update(tables.agents).where(tables.agents.c.id == agent_id).values(values))

        await self._db.run_write(update_agent)

    async def agent(self, agent_id: AgentId) -> Agent | None:
        rows = await self._db.fetch(_AGENT, {"id": agent_id})
        return Agent(**rows[0]._mapping) if rows else None

    async def agents(self, *, scaling_group: str | None = None) -> list[Agent]:
        query = _AGENTS if scaling_group is None else _AGENTS_OF_GROUP
        rows = await self._db.fetch(query, {"scaling_group": scaling_group})
        return [Agent(**row._mapping) for row in rows]

    async def states(self) -> Mapping[AgentId, AgentState]:
        rows = await self._db.fetch(_STATES)
        return {row.id: AgentState(**{name: getattr(row, name) for name in _STATE_FIELDS}) for row in rows}

    async def count_by_status(self) -> Mapping[AgentStatus, int]:
        status = tables.agents.c.status
        query = select(status, func.count()).group_by(status)
        return await self._db.run_read(
            lambda connection: {AgentStatus(name): count for name, count in connection.execute(query)}
        )

    async def underlays(self) -> dict[AgentId, OverlayReport]:
        columns = tables.agents.c
        query = (
            select(columns.id, columns.overlay)
            .where(columns.status == AgentStatus.ALIVE, columns.overlay.is_not(None))
            .order_by(columns.id)
        )
        return await self._db.run_read(
            lambda connection: {row.id: row.overlay for row in connection.execute(query) if row.overlay is not None}
        )

    async def page(self, query: ListQuery, *, status: str | None, scaling_group: str | None) -> Page[Agent]:
        columns = tables.agents.c
        conditions: list[ColumnElement[bool]] = compile_filter(tables.agents, query.filter)
        if status is not None:
            conditions.append(columns.status == status)
        if scaling_group is not None:
            conditions.append(columns.scaling_group == scaling_group)
        order_columns = compile_order(tables.agents, query.order, (columns.id.asc(),))

        def read_page(connection: Connection) -> Page[Agent]:
            total_count = (
                connection.execute(select(func.count()).select_from(tables.agents).where(*conditions))
            ).scalar_one()
            page = (
                select(tables.agents)
                .where(*conditions)
                .order_by(*order_columns)
                .limit(query.limit)
                .offset(query.offset)
            )
            return Page(items=[Agent(**row._mapping) for row in connection.execute(page)], total_count=total_count)

        return await self._db.run_read(read_page)

    async def add_slot_types(self, slots: Iterable[SlotTypeInfo]) -> None:
        columns = tables.slot_types.c

        def write_slot_types(connection: Connection) -> None:
            existing_names = set(connection.execute(select(columns.slot_name)).scalars())
            for slot in slots:
                row = {"slot_name": slot.slot_name, "slot_type": slot.slot_type, "display": dict(slot.display)}
                if slot.slot_name in existing_names:
                    connection.execute(update(tables.slot_types).where(columns.slot_name == slot.slot_name).values(row))
                else:
                    connection.execute(insert(tables.slot_types), row)

        await self._db.run_write(write_slot_types)

    async def slot_types(self) -> list[SlotTypeInfo]:
        query = select(tables.slot_types).order_by(tables.slot_types.c.slot_name)
        return await self._db.run_read(
            lambda connection: [SlotTypeInfo(**row._mapping) for row in connection.execute(query)]
        )
