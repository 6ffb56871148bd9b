"""Writes many sessions with few statements, so that one commit holds hundreds of sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from ai.backend.common.errors import InsufficientResource, StaleVersion
from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot
from ai.backend.infra.database.prepared import IsOneOf, Prepared, updating
from ai.backend.manager.agents import tables as agents_tables
from ai.backend.manager.agents.model import withheld_slots
from ai.backend.manager.sessions import tables

_AGENTS, _SESSIONS = agents_tables.agents.c, tables.sessions.c
_LOCK_VERSIONS = Prepared(
    select(_SESSIONS.id, _SESSIONS.version).where(IsOneOf(_SESSIONS.id, "ids")).order_by(_SESSIONS.id).with_for_update()
)
_LOCK_SLOTS = Prepared(
    select(_AGENTS.id, _AGENTS.available_slots, _AGENTS.occupied_slots)
    .where(IsOneOf(_AGENTS.id, "ids"))
    .order_by(_AGENTS.id)
    .with_for_update()
)


def check_versions(conn: Connection, versions: Mapping[Any, int]) -> None:
    """Locks sessions in the order of their ids. Raises StaleVersion unless each has its version in ``versions``."""
    stored_versions = dict(_LOCK_VERSIONS.all(conn, {"ids": list(versions)}))
    for session_id, version in versions.items():
        if stored_versions.get(session_id) != version:
            raise StaleVersion(f"session {session_id} is not at version {version} any more")


def update_many(conn: Connection, table: Any, values_of_rows: Sequence[tuple[Any, Mapping[str, Any]]]) -> None:
    """Sets columns of rows by their id; rows in which the same columns change share a statement."""
    rows_by_columns: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row_id, values in values_of_rows:
        row = {f"new_{name}": value for name, value in values.items()}
        rows_by_columns.setdefault(tuple(sorted(values)), []).append({**row, "id": row_id})
    for column_names, rows in rows_by_columns.items():
        updating(table, ("id",), column_names).execute(conn, *rows)


def move_slots(conn: Connection, deltas: Mapping[AgentId, ResourceSlot]) -> None:
    """Adds to the occupied slots of agents, in the order of their names. Raises InsufficientResource if an agent would
    hold more than it has, failed devices included."""
    if not deltas:
        return
    changed_agents: list[tuple[Any, Mapping[str, Any]]] = []
    for agent_id, capacity, old_slots in _LOCK_SLOTS.all(conn, {"ids": list(deltas)}):
        delta = deltas[AgentId(agent_id)]
        occupied_slots = (old_slots + delta).nonzero()
        exceeded_slots = [
            name for name, amount in delta.items() if amount > 0 and occupied_slots[name] > capacity[name]
        ]
        if exceeded_slots:  # kernels may still hold slots of failed devices
            query = select(_AGENTS.devices).where(_AGENTS.id == agent_id)
            withheld_amounts = withheld_slots(conn.execute(query).scalar_one())
            exceeded_slots = [
                name for name in exceeded_slots if occupied_slots[name] > capacity[name] + withheld_amounts[name]
            ]
        if exceeded_slots:
            raise InsufficientResource(f"agent {agent_id} does not have as much free")
        changed_agents.append((agent_id, {"occupied_slots": occupied_slots}))
    update_many(conn, agents_tables.agents, changed_agents)
