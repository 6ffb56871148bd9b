"""Stores changes of users and keypairs in SQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import AccessKey, GroupId, UserId
from ai.backend.common.states import UserRole, UserStatus
from ai.backend.infra.database import Database
from ai.backend.infra.database.batching import chunks
from ai.backend.infra.database.rows import row_of
from ai.backend.manager.identity import tables
from ai.backend.manager.identity.model import MAX_PASSWORD_HISTORY, GroupRef, Keypair, User
from ai.backend.manager.identity.store import KeypairSecret
from ai.backend.manager.secrets.sealer import Sealer, seal_secret_key

T = TypeVar("T")
RemovalStep = Callable[[Connection, str, Collection[str]], None]
KEYPAIR_QUERY = select(tables.keypairs, tables.users.c.email, tables.users.c.full_name).join(
    tables.users, tables.users.c.uuid == tables.keypairs.c.user_id
)
"""The query that selects keypairs with the email and name of their users, for :func:`keypair_of`."""


def users_of(s: Connection, rows: Sequence[Row[Any]]) -> list[User]:
    """Builds users, with the groups of each user, from database rows."""
    members, group_columns = tables.memberships.c, tables.groups.c
    groups: dict[Any, list[GroupRef]] = {}
    if rows:
        query = (
            select(members.user_id, group_columns.id, group_columns.name)
            .join(tables.groups, group_columns.id == members.group_id)
            .order_by(group_columns.name)
        )
        for user_id, group_id, name in s.execute(query.where(members.user_id.in_([row.uuid for row in rows]))):
            groups.setdefault(user_id, []).append(GroupRef(id=GroupId(group_id), name=name))
    return [
        User(
            **{field: value for field, value in row._mapping.items() if field != "password"},
            groups=tuple(groups.get(row.uuid, ())),
        )
        for row in rows
    ]


def keypair_of(row: Row[Any]) -> Keypair:
    """Builds a keypair from a row of :data:`KEYPAIR_QUERY`."""
    values = {
        field: value for field, value in row._mapping.items() if field not in ("secret_key", "email", "full_name")
    }
    return Keypair(**values, user_email=row.email, user_full_name=row.full_name)


def keypair_row(sealer: Sealer, pair: KeypairSecret) -> dict[str, Any]:
    """Returns the row of a keypair, with its secret sealed."""
    row = row_of(pair.keypair, without=("user_email", "user_full_name", "concurrency_used"))
    return {**row, "secret_key": seal_secret_key(sealer, pair.keypair.access_key, pair.secret_key)}


def _count_admins(s: Connection) -> int:
    """Returns the number of keypairs that can sign as a superadmin, and locks the rows of superadmins."""
    users, keys = tables.users.c, tables.keypairs.c
    s.execute(select(users.uuid).where(users.role == UserRole.SUPERADMIN).order_by(users.uuid).with_for_update()).all()
    can_sign = (users.role == UserRole.SUPERADMIN) & (users.status == UserStatus.ACTIVE) & keys.is_active.is_(True)
    joined = tables.users.join(tables.keypairs, keys.user_id == users.uuid)
    return int(s.execute(select(func.count()).select_from(joined).where(can_sign)).scalar_one())


def _forget_oldest_passwords(s: Connection, user_id: UserId) -> None:
    old = tables.old_passwords.c
    kept = select(old.id).where(old.user_id == user_id).order_by(old.id.desc()).limit(MAX_PASSWORD_HISTORY)
    oldest = min(s.execute(kept).scalars(), default=0)
    s.execute(delete(tables.old_passwords).where(old.user_id == user_id, old.id < oldest))


class SqlUserStore:
    """Implements :class:`ai.backend.manager.identity.store.UserStore`. ``on_removal`` is called with the kind (domain,
    group, keypair) and the keys of what is deleted, in the transaction that deletes it."""

    def __init__(
        self, database: Database, sealer: Sealer | None = None, on_removal: RemovalStep = lambda s, kind, targets: None
    ) -> None:
        self._db = database
        self._on_removal = on_removal
        self._sealer = sealer or Sealer()

    async def _write_with_an_admin_left(self, work: Callable[[Connection], T]) -> T:
        """Runs ``work`` in a write transaction. Raises Conflict if it would leave no superadmin who can sign in.

        Without such a superadmin before, nothing is checked.
        """

        def guarded(s: Connection) -> T:
            admins_before = _count_admins(s)
            result = work(s)
            if admins_before and not _count_admins(s):
                raise Conflict("That would leave no superadmin who can sign in.", data={"admin": "the last one"})
            return result

        return await self._db.run_write(guarded)

    async def change_user(
        self,
        user_id: UserId,
        *,
        groups: Sequence[GroupId] | None = None,
        password_hash: str | None = None,
        keypairs: dict[str, Any] | None = None,
        **values: Any,
    ) -> User | None:
        users, keys, members = tables.users.c, tables.keypairs.c, tables.memberships.c
        if password_hash is not None:
            values["password"] = password_hash

        def work(s: Connection) -> User | None:
            row = s.execute(select(users.password).where(users.uuid == user_id)).first()
            if row is None:
                return None
            if password_hash is not None and row.password is not None:
                s.execute(insert(tables.old_passwords), {"user_id": user_id, "password": row.password})
                _forget_oldest_passwords(s, user_id)
            if values:
                s.execute(update(tables.users).where(users.uuid == user_id).values(values))
            if keypairs:
                s.execute(update(tables.keypairs).where(keys.user_id == user_id).values(keypairs))
            if groups is not None:
                s.execute(delete(tables.memberships).where(members.user_id == user_id))
                if groups:
                    s.execute(
                        insert(tables.memberships),
                        [{"user_id": user_id, "group_id": group_id} for group_id in set(groups)],
                    )
            return users_of(s, s.execute(select(tables.users).where(users.uuid == user_id)).all())[0]

        try:
            return await self._write_with_an_admin_left(work)
        except IntegrityError:
            raise Conflict("That username is taken already.", data={"username": "taken"}) from None

    async def delete_user(self, user_id: UserId) -> bool:
        key_columns, members = tables.keypairs.c, tables.memberships.c

        def work(s: Connection) -> bool:
            keys = s.execute(select(key_columns.access_key).where(key_columns.user_id == user_id)).scalars().all()
            self._on_removal(s, "keypair", keys)
            s.execute(delete(tables.keypairs).where(key_columns.user_id == user_id))
            for table in (tables.recovery_codes, tables.totp_devices, tables.old_passwords, tables.sign_ins):
                s.execute(delete(table).where(table.c.user_id == user_id))
            s.execute(delete(tables.memberships).where(members.user_id == user_id))
            return bool(s.execute(delete(tables.users).where(tables.users.c.uuid == user_id)).rowcount)

        return await self._write_with_an_admin_left(work)

    async def password_hash(self, email: str) -> str | None:
        rows = await self._db.fetch(select(tables.users.c.password).where(tables.users.c.email == email))
        return rows[0].password if rows else None

    async def old_passwords(self, user_id: UserId, count: int) -> list[str]:
        users, old = tables.users.c, tables.old_passwords.c

        def work(s: Connection) -> list[str]:
            present = s.execute(select(users.password).where(users.uuid == user_id)).scalars().all()
            query = select(old.password).where(old.user_id == user_id).order_by(old.id.desc()).limit(count)
            return [text for text in (*present, *s.execute(query).scalars()) if text is not None][:count]

        return await self._db.run_read(work)

    async def rotate_keypair(self, access_key: AccessKey, secret_key: str, *, at: datetime) -> bool:
        values = {"secret_key": seal_secret_key(self._sealer, access_key, secret_key), "modified_at": at}
        statement = update(tables.keypairs).where(tables.keypairs.c.access_key == access_key).values(values)
        return bool(await self._db.run_write(lambda s: s.execute(statement).rowcount))

    async def put_keypair(self, keypair: KeypairSecret) -> None:
        await self._db.execute(insert(tables.keypairs), keypair_row(self._sealer, keypair))

    async def change_keypair(self, access_key: str, **values: Any) -> Keypair | None:
        keys = tables.keypairs.c

        def work(s: Connection) -> Keypair | None:
            if values:
                s.execute(update(tables.keypairs).where(keys.access_key == access_key).values(values))
            row = s.execute(KEYPAIR_QUERY.where(keys.access_key == access_key)).one_or_none()
            return keypair_of(row) if row is not None else None

        return await self._write_with_an_admin_left(work)

    async def delete_keypair(self, access_key: str) -> bool:
        users, keys = tables.users.c, tables.keypairs.c

        def work(s: Connection) -> bool:
            if s.execute(select(users.uuid).where(users.main_access_key == access_key)).first() is not None:
                raise Conflict("It is the main keypair of its user.", data={"access_key": "in use"})
            self._on_removal(s, "keypair", [access_key])
            return bool(s.execute(delete(tables.keypairs).where(keys.access_key == access_key)).rowcount)

        return await self._write_with_an_admin_left(work)

    async def keys_of(self, *, user_id: UserId | None = None, domain_name: str | None = None) -> list[AccessKey]:
        keys, users = tables.keypairs.c, tables.users.c
        query = select(keys.access_key).join(tables.users, users.uuid == keys.user_id).order_by(keys.access_key)
        if user_id is not None:
            query = query.where(users.uuid == user_id)
        if domain_name is not None:
            query = query.where(users.domain_name == domain_name)
        return [AccessKey(row.access_key) for row in await self._db.fetch(query)]

    async def owned_by_deleted(self, access_keys: Collection[AccessKey]) -> set[AccessKey]:
        keys, users = tables.keypairs.c, tables.users.c
        query = (
            select(keys.access_key)
            .join(tables.users, users.uuid == keys.user_id)
            .where(users.status == UserStatus.DELETED)
        )

        def work(s: Connection) -> set[AccessKey]:
            parts = [s.execute(query.where(keys.access_key.in_(chunk))).scalars() for chunk in chunks(access_keys)]
            return {AccessKey(key) for part in parts for key in part}

        return await self._db.run_read(work)

    async def delete_group(self, group_id: GroupId) -> bool:
        def work(s: Connection) -> bool:
            self._on_removal(s, "group", [str(group_id)])
            s.execute(delete(tables.memberships).where(tables.memberships.c.group_id == group_id))
            return bool(s.execute(delete(tables.groups).where(tables.groups.c.id == group_id)).rowcount)

        return await self._db.run_write(work)

    async def delete_domain(self, name: str) -> bool:
        def work(s: Connection) -> bool:
            for noun, table in (("users", tables.users), ("groups", tables.groups)):
                query = select(func.count()).select_from(table).where(table.c.domain_name == name)
                count = s.execute(query).scalar_one()
                if count:
                    raise Conflict(f"The domain {name!r} has {count} {noun}.", data={"name": "in use", noun: count})
            self._on_removal(s, "domain", [name])
            return bool(s.execute(delete(tables.domains).where(tables.domains.c.name == name)).rowcount)

        return await self._db.run_write(work)
