"""Provides a database in memory for the stores that the simulation does not replace otherwise."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, StaticPool, create_engine

from ai.backend.infra.database import Database
from ai.backend.manager.db import metadata
from ai.backend.manager.leadership.memory import check_fence

T = TypeVar("T")


class InlineDatabase(Database):
    """Provides a SQLite database in memory that runs each transaction at once in the event loop's thread.

    Runs of the simulation are therefore repeatable.

    Args:
        tables: names of the tables that it has.
    """

    is_shared = False

    def __init__(self, tables: frozenset[str]) -> None:
        self._engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
        weakref.finalize(self, self._engine.dispose)  # no run of a simulation ends it
        metadata.create_all(self._engine, [table for table in metadata.sorted_tables if table.name in tables])

    async def run_read(self, work: Callable[[Connection], T]) -> T:
        with self._engine.connect() as connection:
            return work(connection)

    async def run_write(self, work: Callable[[Connection], T]) -> T:
        check_fence()
        with self._engine.begin() as connection:
            return work(connection)
