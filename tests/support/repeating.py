"""A database whose transactions all run twice, as after a lost commit: a store must not notice it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from ai.backend.infra.database import Database

T = TypeVar("T")


class RepeatingDatabase(Database):
    """Rolls back the first run of each transaction that succeeds."""

    async def run_read(self, work: Callable[[Connection], T]) -> T:
        return await super().run_read(_twice(work))

    async def run_write(self, work: Callable[[Connection], T]) -> T:
        return await super().run_write(_twice(work))


def _twice(work: Callable[[Connection], T]) -> Callable[[Connection], T]:
    def both(connection: Connection) -> T:
        with connection.begin_nested() as first:
            work(connection)
            first.rollback()
        return work(connection)

    return both
