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
    """Builds users from rows of the table of users, and reads the groups of each user."""
    membership_columns, group_columns = tables.memberships.c, tables.groups.c
    groups_by_user: dict[Any, list[GroupRef]] = {}
    if rows:
        query = (
            select(membership_columns.user_id, group_columns.id, group_columns.name)
            .join(tables.groups, group_columns.id == membership_columns.group_id)
            .order_by(group_columns.name)
        )
        for user_id, group_id, name in s.execute(
            query.where(membership_columns.user_id.in_([row.uuid for row in rows]))
        ):
            groups_by_user.setdefault(user_id, []).append(GroupRef(id=GroupId(group_id), name=name))
    return [
        User(
            **{field: value for field, value in row._mapping.items() if field != "password"},
            groups=tuple(groups_by_user.get(row.uuid, ())),
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
    users, keypair_columns = tables.users.c, tables.keypairs.c
    s.execute(select(users.uuid).where(users.role == UserRole.SUPERADMIN).order_by(users.uuid).with_for_update()).all()
    can_sign = (
        (users.role == UserRole.SUPERADMIN) & (users.status == UserStatus.ACTIVE) & keypair_columns.is_active.is_(True)
    )
    users_with_keypairs = tables.users.join(tables.keypairs, keypair_columns.user_id == users.uuid)
    return int(s.execute(select(func.count()).select_from(users_with_keypairs).where(can_sign)).scalar_one())


def _forget_oldest_passwords(s: Connection, user_id: UserId) -> None:
    columns = tables.old_passwords.c
    kept_ids = (
        select(columns.id).where(columns.user_id == user_id).order_by(columns.id.desc()).limit(MAX_PASSWORD_HISTORY)
    )
    oldest_kept_id = min(s.execute(kept_ids).scalars(), default=0)
    s.execute(delete(tables.old_passwords).where(columns.user_id == user_id, columns.id < oldest_kept_id))


class SqlUserStore:
    """Implements :class:`ai.backend.manager.identity.store.UserStore`.

    ``on_removal`` is called with the kind (domain, group, keypair) and the keys of what is deleted, in the transaction
    that deletes it.
    """

    def __init__(
        self, database: Database, sealer: Sealer | None = None, on_removal: RemovalStep = lambda s, kind, targets: None
    ) -> None:
        self._db = database
        self._on_removal = on_removal
        self._sealer = sealer or Sealer()

    async def _write_keeping_an_admin(self, write: Callable[[Connection], T]) -> T:
        """Runs ``write`` in a write transaction. Raises Conflict if no superadmin who can sign in would be left.

        Without such a superadmin before, nothing is checked.
        """

        def checked_write(s: Connection) -> T:
            admins_before = _count_admins(s)
            result = write(s)
            if admins_before and not _count_admins(s):
                raise Conflict("That would leave no superadmin who can sign in.", data={"admin": "the last one"})
            return result

        return await self._db.run_write(checked_write)

    async def change_user(
        self,
        user_id: UserId,
        *,
        groups: Sequence[GroupId] | None = None,
        password_hash: str | None = None,
        keypairs: dict[str, Any] | None = None,
        **values: Any,
    ) -> User | None:
        users, keypair_columns, membership_columns = tables.users.c, tables.keypairs.c, tables.memberships.c
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
                s.execute(update(tables.keypairs).where(keypair_columns.user_id == user_id).values(keypairs))
            if groups is not None:
                s.execute(delete(tables.memberships).where(membership_columns.user_id == user_id))
                if groups:
                    s.execute(
                        insert(tables.memberships),
                        [{"user_id": user_id, "group_id": group_id} for group_id in set(groups)],
                    )
            return users_of(s, s.execute(select(tables.users).where(users.uuid == user_id)).all())[0]

        try:
            return await self._write_keeping_an_admin(work)
        except IntegrityError:
            raise Conflict("That username is taken already.", data={"username": "taken"}) from None

    async def delete_user(self, user_id: UserId) -> bool:
        key_columns, membership_columns = tables.keypairs.c, tables.memberships.c

        def work(s: Connection) -> bool:
            keys = s.execute(select(key_columns.access_key).where(key_columns.user_id == user_id)).scalars().all()
            self._on_removal(s, "keypair", keys)
            s.execute(delete(tables.keypairs).where(key_columns.user_id == user_id))
            for table in (tables.recovery_codes, tables.totp_devices, tables.old_passwords, tables.sign_ins):
                s.execute(delete(table).where(table.c.user_id == user_id))
            s.execute(delete(tables.memberships).where(membership_columns.user_id == user_id))
            return bool(s.execute(delete(tables.users).where(tables.users.c.uuid == user_id)).rowcount)

        return await self._write_keeping_an_admin(work)

    async def password_hash(self, email: str) -> str | None:
        rows = await self._db.fetch(select(tables.users.c.password).where(tables.users.c.email == email))
        return rows[0].password if rows else None

    async def old_passwords(self, user_id: UserId, count: int) -> list[str]:
        users, old_columns = tables.users.c, tables.old_passwords.c

        def work(s: Connection) -> list[str]:
            current_hashes = s.execute(select(users.password).where(users.uuid == user_id)).scalars().all()
            query = (
                select(old_columns.password)
                .where(old_columns.user_id == user_id)
                .order_by(old_columns.id.desc())
                .limit(count)
            )
            return [
                password_hash
                for password_hash in (*current_hashes, *s.execute(query).scalars())
                if password_hash is not None
            ][:count]

        return await self._db.run_read(work)

    async def rotate_keypair(self, access_key: AccessKey, secret_key: str, *, at: datetime) -> bool:
        values = {"secret_key": seal_secret_key(self._sealer, access_key, secret_key), "modified_at": at}
        statement = update(tables.keypairs).where(tables.keypairs.c.access_key == access_key).values(values)
        return bool(await self._db.run_write(lambda s: s.execute(statement).rowcount))

    async def put_keypair(self, keypair: KeypairSecret) -> None:
        await self._db.execute(insert(tables.keypairs), keypair_row(self._sealer, keypair))

    async def change_keypair(self, access_key: str, **values: Any) -> Keypair | None:
        keypair_columns = tables.keypairs.c

        def work(s: Connection) -> Keypair | None:
            if values:
                s.execute(update(tables.keypairs).where(keypair_columns.access_key == access_key).values(values))
            row = s.execute(KEYPAIR_QUERY.where(keypair_columns.access_key == access_key)).one_or_none()
            return keypair_of(row) if row is not None else None

        return await self._write_keeping_an_admin(work)

    async def delete_keypair(self, access_key: str) -> bool:
        users, keypair_columns = tables.users.c, tables.keypairs.c

        def work(s: Connection) -> bool:
            if s.execute(select(users.uuid).where(users.main_access_key == access_key)).first() is not None:
                raise Conflict("It is the main keypair of its user.", data={"access_key": "in use"})
            self._on_removal(s, "keypair", [access_key])
            return bool(s.execute(delete(tables.keypairs).where(keypair_columns.access_key == access_key)).rowcount)

        return await self._write_keeping_an_admin(work)

    async def keys_of(self, *, user_id: UserId | None = None, domain_name: str | None = None) -> list[AccessKey]:
        keypair_columns, users = tables.keypairs.c, tables.users.c
        query = (
            select(keypair_columns.access_key)
            .join(tables.users, users.uuid == keypair_columns.user_id)
            .order_by(keypair_columns.access_key)
        )
        if user_id is not None:
            query = query.where(users.uuid == user_id)
        if domain_name is not None:
            query = query.where(users.domain_name == domain_name)
        return [AccessKey(row.access_key) for row in await self._db.fetch(query)]

    async def keys_of_deleted_users(self, access_keys: Collection[AccessKey]) -> set[AccessKey]:
        keypair_columns, users = tables.keypairs.c, tables.users.c
        query = (
            select(keypair_columns.access_key)
            .join(tables.users, users.uuid == keypair_columns.user_id)
            .where(users.status == UserStatus.DELETED)
        )

        def work(s: Connection) -> set[AccessKey]:
            keys_of_chunks = [
                s.execute(query.where(keypair_columns.access_key.in_(chunk))).scalars() for chunk in chunks(access_keys)
            ]
            return {AccessKey(key) for chunk_keys in keys_of_chunks for key in chunk_keys}

        return await self._db.run_read(work)

    async def delete_group(self, group_id: GroupId) -> bool:
        def work(s: Connection) -> bool:
            self._on_removal(s, "group", [str(group_id)])
            s.execute(delete(tables.memberships).where(tables.memberships.c.group_id == group_id))
            return bool(s.execute(delete(tables.groups).where(tables.groups.c.id == group_id)).rowcount)

        return await self._db.run_write(work)

    async def delete_domain(self, name: str) -> bool:
        def work(s: Connection) -> bool:
            for member_noun, table in (("users", tables.users), ("groups", tables.groups)):
                query = select(func.count()).select_from(table).where(table.c.domain_name == name)
                count = s.execute(query).scalar_one()
                if count:
                    raise Conflict(
                        f"The domain {name!r} has {count} {member_noun}.", data={"name": "in use", member_noun: count}
                    )
            self._on_removal(s, "domain", [name])
            return bool(s.execute(delete(tables.domains).where(tables.domains.c.name == name)).rowcount)

        return await self._db.run_write(work)
