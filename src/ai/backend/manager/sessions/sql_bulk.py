"""Writes of many sessions in few statements, so that one commit holds hundreds of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from ai.backend.common.errors import InsufficientResource, StaleVersion, Unavailable
from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot
from ai.backend.infra.database.batching import CHUNK, chunks
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


@dataclass(slots=True, eq=False)
class _Waiting:
    item: Any
    done: asyncio.Future[None]


@dataclass(eq=False, repr=False)
class BatchWriter:
    """Writes items that arrive during a write together in the next one. ``write`` writes several items or none. If a
    batch fails, its items are written one by one, so that each gets its own result."""

    write: Callable[[Sequence[Any]], Awaitable[None]]
    _waiting: list[_Waiting] = field(default_factory=list, init=False)
    _worker: asyncio.Task[None] | None = field(default=None, init=False)

    async def put(self, item: Any) -> None:
        """Returns once the item is written; raises the error of the write."""
        waiting = _Waiting(item, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        await waiting.done

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:CHUNK], self._waiting[CHUNK:]
            outcomes: list[BaseException | None] = [None] * len(batch)
            try:
                await self.write([waiting.item for waiting in batch])
            except Exception as error:  # noqa: BLE001  # each item gets its own error
                if len(batch) == 1 or isinstance(error, Unavailable):
                    outcomes = [error] * len(batch)
                else:
                    writes = (self.write([waiting.item]) for waiting in batch)
                    outcomes = list(await asyncio.gather(*writes, return_exceptions=True))
            for waiting, outcome in zip(batch, outcomes, strict=True):
                if waiting.done.cancelled():
                    continue
                if outcome is None:
                    waiting.done.set_result(None)
                else:
                    waiting.done.set_exception(outcome)
