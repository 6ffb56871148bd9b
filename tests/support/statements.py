"""Lets the databases of a process share compiled statements.

Each test has a database of its own, for which SQLAlchemy would compile every statement anew: half of the time that a
manager takes to start. A daemon has one database, and so gains nothing by this.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

_STATEMENTS = 5000


@cache
def share_statements() -> None:
    """Has the SQLite databases that are opened from now on use one cache, whose keys contain the dialect: those of
    two databases are equal, since nobody gives them options."""
    compiled: LRUCache[Any, Any] = LRUCache(_STATEMENTS)
    dialect: Any = SQLiteDialect_pysqlite
    dialect.__eq__ = lambda self, other: type(self) is type(other)
    dialect.__hash__ = lambda self: hash(type(self))

    @event.listens_for(Engine, "engine_connect")
    def use_shared(connection: Connection) -> None:
        if isinstance(connection.dialect, SQLiteDialect_pysqlite):
            connection.engine._compiled_cache = compiled
