"""Stores login sessions in a SQLite file, for a web server without Redis."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, Select, delete, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from ai.backend.infra.database import Database
from ai.backend.web.login.model import StoredLogin
from ai.backend.web.login.tables import login_failures, login_uses, logins, metadata


class SqlLoginStore:
    """Stores login sessions in SQL (:class:`~ai.backend.web.login.store.LoginStore`) until they expire."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def start(self) -> None:
        await self._database.run_write(metadata.create_all)

    async def stop(self) -> None:
        await self._database.close()

    async def put(self, login: StoredLogin) -> None:
        def write(connection: Connection) -> None:
            connection.execute(
                insert(logins).values(
                    login_id=login.login_id,
                    username=login.username,
                    sealed=login.sealed,
                    expires_at=login.expires_at,
                    created_at=login.created_at,
                    address=login.address,
                    client=login.client,
                )
            )

        await self._database.run_write(write)

    async def remove_expired(self, *, now: datetime) -> None:
        """Removes expired login sessions."""

        def write(connection: Connection) -> None:
            connection.execute(delete(logins).where(logins.c.expires_at <= now))
            connection.execute(delete(login_uses).where(login_uses.c.login_id.not_in(select(logins.c.login_id))))
            connection.execute(delete(login_failures).where(login_failures.c.expires_at <= now))

        await self._database.run_write(write)

    async def get(self, login_id: str, *, now: datetime) -> StoredLogin | None:
        query = _select_with_uses().where(logins.c.login_id == login_id, logins.c.expires_at > now)
        for row in await self._database.fetch(query):
            return StoredLogin(**row._mapping)
        return None

    async def of_user(self, username: str, *, now: datetime) -> list[StoredLogin]:
        query = _select_with_uses().where(logins.c.username == username, logins.c.expires_at > now)
        rows = await self._database.fetch(query.order_by(logins.c.created_at.desc(), logins.c.login_id))
        return [StoredLogin(**row._mapping) for row in rows]

    async def extend(self, login_id: str, expires_at: datetime) -> None:
        await self._database.execute(update(logins).where(logins.c.login_id == login_id).values(expires_at=expires_at))

    async def touch(self, login_id: str, used_at: datetime) -> None:
        def write(connection: Connection) -> None:
            if connection.execute(select(logins.c.login_id).where(logins.c.login_id == login_id)).first() is not None:
                statement = upsert(login_uses).values(login_id=login_id, used_at=used_at)
                changed_columns = {"used_at": used_at}
                connection.execute(statement.on_conflict_do_update(index_elements=["login_id"], set_=changed_columns))

        await self._database.run_write(write)

    async def delete(self, login_id: str) -> None:
        await self._database.execute(delete(logins).where(logins.c.login_id == login_id))

    async def delete_of_user(self, username: str, *, except_id: str | None = None) -> None:
        statement = delete(logins).where(logins.c.username == username)
        if except_id is not None:
            statement = statement.where(logins.c.login_id != except_id)
        await self._database.execute(statement)

    async def delete_all(self) -> None:
        await self._database.execute(delete(logins))

    async def add_failures(self, key: str, count: int, *, now: datetime, expires_at: datetime) -> int:
        failure_count = login_failures.c

        def write(connection: Connection) -> int:
            connection.execute(delete(login_failures).where(failure_count.key == key, failure_count.expires_at <= now))
            statement = upsert(login_failures).values(key=key, count=count, expires_at=expires_at)
            changed_columns = {"count": failure_count.count + count, "expires_at": expires_at}
            connection.execute(statement.on_conflict_do_update(index_elements=["key"], set_=changed_columns))
            return int(connection.execute(select(failure_count.count).where(failure_count.key == key)).scalar_one())

        return await self._database.run_write(write)

    async def clear_failures(self, key: str) -> None:
        await self._database.execute(delete(login_failures).where(login_failures.c.key == key))


def _select_with_uses() -> Select[tuple[object, ...]]:
    return select(logins, login_uses.c.used_at).outerjoin(login_uses, login_uses.c.login_id == logins.c.login_id)
