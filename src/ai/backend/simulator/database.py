"""Provides a database in memory for the stores that the simulation does not replace otherwise."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable
from functools import cache
from typing import TypeVar, cast

from sqlalchemy import Connection, NullPool, create_engine

from ai.backend.infra.database import Database
from ai.backend.manager.db import metadata
from ai.backend.manager.leadership.memory import check_fence

T = TypeVar("T")
_ENGINE = create_engine("sqlite://", poolclass=NullPool, connect_args={"check_same_thread": False})
"""Each of its connections is a database of its own, and all of them share its compiled statements."""


def _driver_connection(connection: Connection) -> sqlite3.Connection:
    return cast(sqlite3.Connection, connection.connection.driver_connection)


@cache
def _empty_database(table_names: frozenset[str]) -> Connection:
    """Returns a database with empty tables, which is copied for each simulation."""
    connection = _ENGINE.connect()
    metadata.create_all(connection, [table for table in metadata.sorted_tables if table.name in table_names])
    connection.commit()
    return connection


class InlineDatabase(Database):
    """Provides a SQLite database in memory that runs each transaction at once in the event loop's thread.

    Runs of the simulation are therefore repeatable.

    Args:
        tables: names of the tables that it has.
    """

    is_shared = False

    def __init__(self, tables: frozenset[str]) -> None:
        self._connection = _ENGINE.connect()
        _driver_connection(_empty_database(tables)).backup(_driver_connection(self._connection))
        weakref.finalize(self, self._connection.close)  # no run of a simulation ends it

    async def run_read(self, work: Callable[[Connection], T]) -> T:
        try:
            return work(self._connection)
        finally:
            if self._connection.in_transaction():
                self._connection.rollback()

    async def run_write(self, work: Callable[[Connection], T]) -> T:
        check_fence()
        with self._connection.begin():
            return work(self._connection)
