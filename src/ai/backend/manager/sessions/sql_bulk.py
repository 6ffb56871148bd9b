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


def check_versions(conn: Connection, versions: Mapping[Any, int]) -> None:
    """Locks sessions in the order of their ids. Raises StaleVersion unless each has its version in ``versions``."""
    cols = tables.sessions.c
    for chunk in chunks(versions):
        rows = conn.execute(select(cols.id, cols.version).where(cols.id.in_(chunk)).with_for_update())
        stored_versions = {row.id: row.version for row in rows}
        for session_id in chunk:
            if stored_versions.get(session_id) != versions[session_id]:
                raise StaleVersion(f"session {session_id} is not at version {versions[session_id]} any more")


def update_many(conn: Connection, table: Any, changed: Sequence[tuple[Any, Mapping[str, Any]]]) -> None:
    """Sets columns of rows by their id; rows in which the same columns change share a statement."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row_id, values in changed:
        row = {f"new_{name}": value for name, value in values.items()}
        groups.setdefault(tuple(sorted(values)), []).append({**row, "row_id": row_id})
    for names, rows in groups.items():
        values = {name: bindparam(f"new_{name}", type_=table.c[name].type) for name in names}
        is_row = table.c.id == bindparam("row_id", type_=table.c.id.type)
        conn.execute(update(table).where(is_row).values(values), rows)


def move_slots(conn: Connection, deltas: Mapping[AgentId, ResourceSlot]) -> None:
    """Adds to the occupied slots of agents, in the order of their names. Raises InsufficientResource if an agent would
    hold more than it has, failed devices included."""
    cols = agents_tables.agents.c
    agent_ids = sorted(deltas)
    changed_agents: list[tuple[Any, Mapping[str, Any]]] = []
    for chunk in chunks(agent_ids):
        query = select(cols.id, cols.available_slots, cols.occupied_slots).where(cols.id.in_(chunk)).order_by(cols.id)
        for agent_id, available, old_slots in conn.execute(query.with_for_update()):
            delta = deltas[AgentId(agent_id)]
            occupied = (old_slots + delta).nonzero()
            exceeded = [name for name, amount in delta.items() if amount > 0 and occupied[name] > available[name]]
            if exceeded:  # kernels may still hold slots of failed devices
                withheld = withheld_slots(conn.execute(select(cols.devices).where(cols.id == agent_id)).scalar_one())
                exceeded = [name for name in exceeded if occupied[name] > available[name] + withheld[name]]
            if exceeded:
                raise InsufficientResource(f"agent {agent_id} does not have as much free")
            changed_agents.append((agent_id, {"occupied_slots": occupied}))
    update_many(conn, agents_tables.agents, changed_agents)
