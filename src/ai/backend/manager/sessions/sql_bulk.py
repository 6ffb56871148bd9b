"""Writes of many sessions in few statements, so that one commit holds hundreds of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from ai.backend.common.errors import InsufficientResource, StaleVersion
from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot
from ai.backend.infra.database.batching import chunks
from ai.backend.manager.agents import tables as agents_tables
from ai.backend.manager.agents.model import withheld_slots
from ai.backend.manager.sessions import tables


def check_versions(s: Connection, versions: Mapping[Any, int]) -> None:
    """Locks sessions that are to change, by id. Raises StaleVersion unless each is at its version."""
    c = tables.sessions.c
    for part in chunks(versions):
        rows = s.execute(select(c.id, c.version).where(c.id.in_(part)).with_for_update())
        stored = {row.id: row.version for row in rows}
        for session_id in part:
            if stored.get(session_id) != versions[session_id]:
                raise StaleVersion(f"session {session_id} is not at version {versions[session_id]} any more")


def update_many(s: Connection, table: Any, changed: Sequence[tuple[Any, Mapping[str, Any]]]) -> None:
    """Sets columns of rows by their id; rows in which the same columns change share a statement."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row_id, values in changed:
        row = {f"new_{name}": value for name, value in values.items()}
        groups.setdefault(tuple(sorted(values)), []).append({**row, "row_id": row_id})
    for names, rows in groups.items():
        values = {name: bindparam(f"new_{name}", type_=table.c[name].type) for name in names}
        which = table.c.id == bindparam("row_id", type_=table.c.id.type)
        s.execute(update(table).where(which).values(values), rows)


def move_slots(s: Connection, deltas: Mapping[AgentId, ResourceSlot]) -> None:
    """Adds to the occupied slots of agents, in the order of their names. Raises InsufficientResource if an agent would
    hold more than it has, failed devices included."""
    c = agents_tables.agents.c
    agent_ids = sorted(deltas)
    changed: list[tuple[Any, Mapping[str, Any]]] = []
    for part in chunks(agent_ids):
        query = select(c.id, c.available_slots, c.occupied_slots).where(c.id.in_(part)).order_by(c.id)
        for agent_id, available, before in s.execute(query.with_for_update()):
            delta = deltas[AgentId(agent_id)]
            occupied = (before + delta).nonzero()
            over = [name for name, amount in delta.items() if amount > 0 and occupied[name] > available[name]]
            if over:  # kernels may still hold slots of failed devices
                withheld = withheld_slots(s.execute(select(c.devices).where(c.id == agent_id)).scalar_one())
                over = [name for name in over if occupied[name] > available[name] + withheld[name]]
            if over:
                raise InsufficientResource(f"agent {agent_id} does not have as much free")
            changed.append((agent_id, {"occupied_slots": occupied}))
    update_many(s, agents_tables.agents, changed)
