"""Stores leases in SQL. The fence of a lease is checked in the transactions that it guards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from sqlalchemy import BigInteger, Column, Connection, String, Table, delete, insert, select, text, update

from ai.backend.common.errors import Conflict
from ai.backend.infra.database import Database, UTCDateTime
from ai.backend.infra.database.columns import required
from ai.backend.infra.database.engine import write_fence
from ai.backend.manager.db import metadata
from ai.backend.manager.leadership.store import Lease

leases = Table(
    "leases",
    metadata,
    Column("name", String(128), primary_key=True),
    required("holder", String(128)),
    required("token", BigInteger),
    required("expires_at", UTCDateTime),
)


def _server_time(conn: Connection) -> datetime:
    """Returns the time of the database server, since the clocks of managers may differ."""
    if conn.dialect.name == "sqlite":
        return datetime.now(UTC)
    now: datetime = conn.execute(text("SELECT clock_timestamp()")).scalar_one()
    return now


class SqlLeaseStore:
    """Implements :class:`ai.backend.manager.leadership.store.LeaseStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def acquire(self, name: str, holder: str, *, ttl_s: float) -> Lease | None:
        columns = leases.c

        def work(conn: Connection) -> Lease | None:
            now = _server_time(conn)
            expires_at = now + timedelta(seconds=ttl_s)
            row = conn.execute(select(leases).where(columns.name == name)).one_or_none()
            if row is None:
                conn.execute(insert(leases), {"name": name, "holder": holder, "token": 1, "expires_at": expires_at})
                return Lease(name=name, holder=holder, token=1)
            if row.holder != holder and row.expires_at > now:
                return None
            token = row.token if row.holder == holder else row.token + 1
            conn.execute(
                update(leases).where(columns.name == name).values(holder=holder, token=token, expires_at=expires_at)
            )
            return Lease(name=name, holder=holder, token=token)

        return await self._db.run_write(work)

    async def release(self, lease: Lease) -> None:
        columns = leases.c
        held_conditions = (columns.name == lease.name, columns.holder == lease.holder, columns.token == lease.token)

        release_statement = update(leases).where(*held_conditions)
        await self._db.run_write(
            lambda conn: conn.execute(release_statement.values(expires_at=_server_time(conn), holder=""))
        )

    async def holders(self, prefix: str) -> dict[str, str]:
        columns = leases.c

        def work(conn: Connection) -> dict[str, str]:
            now = _server_time(conn)
            matches = columns.name.startswith(prefix, autoescape=True)
            conn.execute(delete(leases).where(matches, columns.expires_at < now - timedelta(days=1)))
            rows = conn.execute(
                select(columns.name, columns.holder).where(matches, columns.expires_at > now, columns.holder != "")
            )
            return {row.name: row.holder for row in rows}

        return await self._db.run_write(work)

    @contextmanager
    def fenced(self, lease: Lease) -> Iterator[None]:
        query = select(leases.c.token).where(leases.c.name == lease.name, leases.c.holder == lease.holder)

        def check(conn: Connection) -> None:
            if conn.execute(query).scalar() != lease.token:
                raise Conflict(f"another manager has the lease {lease.name!r} by now", data={"lease": lease.name})

        reset_token = write_fence.set(check)
        try:
            yield
        finally:
            write_fence.reset(reset_token)
