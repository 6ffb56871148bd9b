"""Stores domains, groups, users, keypairs and policies in SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import AccessKey, GroupId, UserId
from ai.backend.common.states import GroupType, UserStatus
from ai.backend.common.volume_paths import QuotaScopeKind
from ai.backend.infra.database import GUID
from ai.backend.infra.database.batching import chunks
from ai.backend.infra.database.prepared import Prepared
from ai.backend.infra.database.rows import add_row, row_of
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.identity import tables
from ai.backend.manager.identity.model import (
    Credentials,
    Domain,
    Group,
    Keypair,
    ResourcePolicy,
    StoragePolicy,
    Tenant,
    User,
    may_sign,
)
from ai.backend.manager.identity.sql_users import KEYPAIR_QUERY, SqlUserStore, keypair_of, keypair_row, users_of
from ai.backend.manager.identity.store import KeypairSecret, UserScope
from ai.backend.manager.query.model import ListQuery, Page
from ai.backend.manager.query.sql import compile_filter, compile_order
from ai.backend.manager.secrets.sealer import open_secret_key

_HIDDEN_USER_COLUMNS = frozenset({"password"})
_HIDDEN_KEYPAIR_COLUMNS = frozenset({"secret_key"})
_OWNER_COLUMNS = {"email": tables.users.c.email, "full_name": tables.users.c.full_name}
"""The fields of a keypair's user by which keypairs can be filtered and ordered."""
_CALLER_FIELDS = tuple(field for field in Caller.__struct_fields__ if field not in ("administered_groups", "unproved"))
_TABLES_AND_NOUNS: Mapping[type, tuple[Table, str]] = {
    Domain: (tables.domains, "domain"),
    Group: (tables.groups, "group"),
    ResourcePolicy: (tables.policies, "resource policy"),
    StoragePolicy: (tables.storage_policies, "resource policy"),
}


def _select_signing_columns(*columns: Any) -> Select[Any]:
    """Selects the state of keypairs, their users and their domains, which decides if a keypair may sign requests.

    ``columns`` are selected in addition.
    """
    keypair_columns, users, domains = tables.keypairs.c, tables.users.c, tables.domains.c
    query = select(
        keypair_columns.access_key,
        keypair_columns.is_active,
        users.status,
        users.role,
        domains.is_active.label("is_domain_active"),
        *columns,
    )
    return query.join(tables.users, users.uuid == keypair_columns.user_id).outerjoin(
        tables.domains, domains.name == users.domain_name
    )


def _is_active(row: Row[Any]) -> bool:
    return may_sign(row.role, row.status, is_keypair_active=row.is_active, is_domain_active=row.is_domain_active)


_MEMBERSHIP_COLUMNS = tables.memberships.c
_IS_MEMBER = tables.groups.c.id.in_(
    select(_MEMBERSHIP_COLUMNS.group_id).where(_MEMBERSHIP_COLUMNS.user_id == bindparam("user", type_=GUID()))
)


def _select_visible_groups() -> Select[Any]:
    """Selects the groups of a user and the model stores, with the column ``is_member``."""
    groups = tables.groups.c
    is_store = (groups.type == GroupType.MODEL_STORE) & groups.is_active.is_(True)
    return (
        select(tables.groups, _IS_MEMBER.label("is_member"))
        .where(or_(_IS_MEMBER, is_store))
        .order_by(groups.name, groups.id)
    )


def _select_groups(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Selects the groups of a domain."""
    groups = tables.groups.c
    return select(tables.groups).where(groups.domain_name == bindparam("domain"), *conditions).order_by(groups.name)


def _select_credentials() -> Select[Any]:
    keypair_columns, users = tables.keypairs.c, tables.users.c
    query = _select_signing_columns(
        keypair_columns.secret_key, keypair_columns.is_admin, keypair_columns.resource_policy,
        keypair_columns.rate_limit, keypair_columns.concurrency_limit, keypair_columns.ssh_public_key,
        keypair_columns.allowed_client_ip.label("key_networks"),
        users.uuid.label("user_id"), users.email, users.username, users.domain_name, users.allowed_client_ip,
        users.sudo_session_enabled,
    )  # fmt: skip
    return query.where(keypair_columns.access_key == bindparam("access_key"))


def _select_storage_policy() -> Select[Any]:
    policies, users = tables.storage_policies.c, tables.users.c
    policy_name = select(users.resource_policy).where(users.uuid == bindparam("user", type_=GUID())).scalar_subquery()
    return select(tables.storage_policies).where(policies.kind == QuotaScopeKind.USER, policies.name == policy_name)


# Every request about folders runs these queries, so they are built once.
_DOMAIN_QUERY = Prepared(select(tables.domains).where(tables.domains.c.name == bindparam("domain")))
_POLICY_QUERY = Prepared(select(tables.policies).where(tables.policies.c.name == bindparam("policy")))
_POLICIES_QUERY = Prepared(select(tables.policies).order_by(tables.policies.c.name))
_VISIBLE_GROUPS_QUERY = Prepared(_select_visible_groups())
_STORAGE_POLICY_QUERY = Prepared(_select_storage_policy())
_DOMAIN_GROUPS_QUERY = Prepared(_select_groups())
_MEMBER_GROUPS_QUERY = Prepared(_select_groups(_IS_MEMBER))
_CREDENTIALS_QUERY = Prepared(_select_credentials())
_ADMINISTERED_QUERY = Prepared(
    select(_MEMBERSHIP_COLUMNS.group_id).where(
        _MEMBERSHIP_COLUMNS.user_id == bindparam("user", type_=GUID()), _MEMBERSHIP_COLUMNS.is_admin.is_(True)
    )
)


class SqlIdentityStore(SqlUserStore):
    """Implements :class:`ai.backend.manager.identity.store.IdentityStore`."""

    async def put(self, value: Domain | Group | ResourcePolicy | StoragePolicy, *, only_new: bool = False) -> None:
        (table, object_noun), row = _TABLES_AND_NOUNS[type(value)], row_of(value)
        matches_key = and_(*(column == row[column.name] for column in table.primary_key))

        def work(s: Connection) -> None:
            if only_new:
                add_row(s, table, row, object_noun)
            elif s.execute(update(table).where(matches_key).values(row)).rowcount == 0:
                s.execute(insert(table), row)

        await self._db.run_write(work)

    async def change(self, model: type[Tenant], /, *key: Any, **values: Any) -> Tenant | None:
        table = _TABLES_AND_NOUNS[model][0]
        matches_key = and_(*(column == key_value for column, key_value in zip(table.primary_key, key, strict=True)))

        def work(s: Connection) -> Row[Any] | None:
            try:
                if values:
                    s.execute(update(table).where(matches_key).values(values))
            except IntegrityError:
                raise Conflict(f"{values.get('name')!r} is taken already.", data={"name": "taken"}) from None
            return s.execute(select(table).where(matches_key)).one_or_none()

        row = await self._db.run_write(work)
        return model(**row._mapping) if row is not None else None

    async def domain(self, name: str) -> Domain | None:
        rows = await self._db.fetch(_DOMAIN_QUERY, {"domain": name})
        return Domain(**rows[0]._mapping) if rows else None

    async def domains(self) -> list[Domain]:
        rows = await self._db.fetch(select(tables.domains).order_by(tables.domains.c.name))
        return [Domain(**row._mapping) for row in rows]

    async def groups(
        self, *, domain_name: str | None = None, user_id: UserId | None = None, name: str | None = None
    ) -> list[Group]:
        if domain_name is not None and name is None:
            groups_query = _DOMAIN_GROUPS_QUERY if user_id is None else _MEMBER_GROUPS_QUERY
            rows = await self._db.fetch(groups_query, {"domain": domain_name, "user": user_id})
            return [Group(**row._mapping) for row in rows]
        columns, membership_columns = tables.groups.c, tables.memberships.c
        query = select(tables.groups).order_by(columns.name)
        if domain_name is not None:
            query = query.where(columns.domain_name == domain_name)
        if name is not None:
            query = query.where(columns.name == name)
        if user_id is not None:
            query = query.where(
                columns.id.in_(select(membership_columns.group_id).where(membership_columns.user_id == user_id))
            )
        return [Group(**row._mapping) for row in await self._db.fetch(query)]

    async def user_scope(self, domain_name: str, user_id: UserId, policy: str) -> UserScope:
        query_parameters = {"domain": domain_name, "user": user_id, "policy": policy}

        def work(s: Connection) -> UserScope:
            domain = _DOMAIN_QUERY.first(s, query_parameters)
            visible_rows = _VISIBLE_GROUPS_QUERY.all(s, query_parameters)
            groups = [
                (Group(**{name: value for name, value in row._mapping.items() if name != "is_member"}), row.is_member)
                for row in visible_rows
            ]
            keypair_policy = _POLICY_QUERY.first(s, query_parameters)
            storage_policy_row = _STORAGE_POLICY_QUERY.first(s, query_parameters)
            return UserScope(
                domain=Domain(**domain._mapping) if domain is not None else None,
                groups=tuple(group for group, is_member in groups if is_member),
                policy=ResourcePolicy(**keypair_policy._mapping) if keypair_policy is not None else None,
                storage_policy=StoragePolicy(**storage_policy_row._mapping) if storage_policy_row is not None else None,
                model_stores=tuple(group for group, _ in groups if group.is_model_store),
            )

        return await self._db.run_read(work)

    async def change_members(
        self, group_id: GroupId, *, add: Collection[UserId] = (), remove: Collection[UserId] = ()
    ) -> None:
        membership_columns = tables.memberships.c

        def work(s: Connection) -> None:
            # Users to be added are removed first, so that no membership exists twice.
            is_changed = membership_columns.user_id.in_([*add, *remove])
            admins = (
                s.execute(
                    select(membership_columns.user_id).where(
                        membership_columns.group_id == group_id, membership_columns.is_admin.is_(True)
                    )
                )
                .scalars()
                .all()
            )
            s.execute(delete(tables.memberships).where(membership_columns.group_id == group_id, is_changed))
            if add:
                s.execute(
                    insert(tables.memberships),
                    [{"user_id": user_id, "group_id": group_id, "is_admin": user_id in admins} for user_id in set(add)],
                )

        await self._db.run_write(work)

    async def change_group_admins(self, group_id: GroupId, users: Collection[UserId], *, is_admin: bool) -> bool:
        membership_columns = tables.memberships.c
        condition = (membership_columns.group_id == group_id) & membership_columns.user_id.in_([*users])

        def work(s: Connection) -> bool:
            if s.execute(select(func.count()).select_from(tables.memberships).where(condition)).scalar_one() != len(
                {*users}
            ):
                return False
            s.execute(update(tables.memberships).where(condition).values(is_admin=is_admin))
            return True

        return await self._db.run_write(work)

    async def group_admins(self, group_id: GroupId) -> list[UserId]:
        membership_columns = tables.memberships.c
        query = select(membership_columns.user_id).where(
            membership_columns.group_id == group_id, membership_columns.is_admin.is_(True)
        )
        return [UserId(row.user_id) for row in await self._db.fetch(query.order_by(membership_columns.user_id))]

    async def policies(self, *, name: str | None = None) -> list[ResourcePolicy]:
        rows = await self._db.fetch(_POLICIES_QUERY if name is None else _POLICY_QUERY, {"policy": name})
        return [ResourcePolicy(**row._mapping) for row in rows]

    async def storage_policies(self, kind: QuotaScopeKind, *, name: str | None = None) -> list[StoragePolicy]:
        columns = tables.storage_policies.c
        query = select(tables.storage_policies).where(columns.kind == kind).order_by(columns.name)
        rows = await self._db.fetch(query if name is None else query.where(columns.name == name))
        return [StoragePolicy(**row._mapping) for row in rows]

    async def delete_policy(self, kind: QuotaScopeKind | None, name: str) -> bool:
        owner_table = {None: tables.keypairs, QuotaScopeKind.USER: tables.users, QuotaScopeKind.PROJECT: tables.groups}[
            kind
        ]
        use_query = select(owner_table.c.resource_policy).where(owner_table.c.resource_policy == name).limit(1)
        table = tables.policies if kind is None else tables.storage_policies
        condition = and_(table.c.name == name, *(() if kind is None else (table.c.kind == kind,)))

        def work(s: Connection) -> bool:
            if s.execute(use_query).first() is not None:
                raise Conflict(f"The resource policy {name!r} is in use.", data={"name": "in use"})
            return bool(s.execute(delete(table).where(condition)).rowcount)

        return await self._db.run_write(work)

    async def put_user(
        self, user: User, *, password_hash: str | None, groups: Sequence[GroupId], keypair: KeypairSecret
    ) -> None:
        def work(s: Connection) -> None:
            s.execute(insert(tables.users), {**row_of(user, without=("groups",)), "password": password_hash})
            s.execute(insert(tables.keypairs), keypair_row(self._sealer, keypair))
            if groups:
                s.execute(
                    insert(tables.memberships), [{"user_id": user.uuid, "group_id": group_id} for group_id in groups]
                )

        try:
            await self._db.run_write(work)
        except IntegrityError:
            raise Conflict(f"a user {user.email} exists already", data={"email": "taken"}) from None

    async def user(self, *, email: str | None = None, uuid: UserId | None = None) -> User | None:
        columns = tables.users.c
        query = select(tables.users).where(columns.email == email if email is not None else columns.uuid == uuid)
        users = await self._db.run_read(lambda s: users_of(s, s.execute(query).all()))
        return users[0] if users else None

    async def users(
        self,
        query: ListQuery,
        *,
        domain_name: str | None,
        status: str | None,
        is_active: bool | None = None,
        group_id: GroupId | None = None,
    ) -> Page[User]:
        columns, membership_columns = tables.users.c, tables.memberships.c
        clauses = compile_filter(tables.users, query.filter, hidden=_HIDDEN_USER_COLUMNS)
        if domain_name is not None:
            clauses.append(columns.domain_name == domain_name)
        if status is not None:
            clauses.append(columns.status == status)
        if is_active is not None:
            clauses.append((columns.status == UserStatus.ACTIVE) == is_active)
        if group_id is not None:
            clauses.append(
                columns.uuid.in_(select(membership_columns.user_id).where(membership_columns.group_id == group_id))
            )
        order = compile_order(
            tables.users, query.order, (columns.created_at.desc(), columns.uuid.asc()), hidden=_HIDDEN_USER_COLUMNS
        )

        def work(s: Connection) -> Page[User]:
            total = s.execute(select(func.count()).select_from(tables.users).where(*clauses)).scalar_one()
            page = select(tables.users).where(*clauses).order_by(*order).limit(query.limit).offset(query.offset)
            return Page(items=users_of(s, s.execute(page).all()), total_count=total)

        return await self._db.run_read(work)

    async def credentials(self, access_key: str) -> Credentials | None:
        rows = await self._db.fetch(_CREDENTIALS_QUERY, {"access_key": access_key})
        if not rows:
            return None
        row = rows[0]
        administered_rows = await self._db.fetch(_ADMINISTERED_QUERY, {"user": row.user_id})
        return Credentials(
            caller=Caller(
                **{name: getattr(row, name) for name in _CALLER_FIELDS},
                administered_groups=frozenset(administered_row.group_id for administered_row in administered_rows),
            ),
            secret_key=open_secret_key(self._sealer, row.access_key, row.secret_key),
            is_active=_is_active(row),
            ssh_public_key=row.ssh_public_key,
            key_networks=row.key_networks,
        )

    async def active_keys(self, access_keys: Collection[str]) -> set[str]:
        active_access_keys: set[str] = set()
        for chunk in chunks(sorted(access_keys)):
            rows = await self._db.fetch(_select_signing_columns().where(tables.keypairs.c.access_key.in_(chunk)))
            active_access_keys.update(row.access_key for row in rows if _is_active(row))
        return active_access_keys

    async def keypair(self, access_key: str) -> Keypair | None:
        rows = await self._db.fetch(KEYPAIR_QUERY.where(tables.keypairs.c.access_key == access_key))
        return keypair_of(rows[0]) if rows else None

    async def keypairs(
        self,
        query: ListQuery,
        *,
        domain_name: str | None = None,
        email: str | None = None,
        is_active: bool | None = None,
    ) -> Page[Keypair]:
        keypair_columns, users = tables.keypairs.c, tables.users.c
        clauses = compile_filter(tables.keypairs, query.filter, hidden=_HIDDEN_KEYPAIR_COLUMNS, joined=_OWNER_COLUMNS)
        for column, value in (
            (users.domain_name, domain_name),
            (users.email, email),
            (keypair_columns.is_active, is_active),
        ):
            if value is not None:
                clauses.append(column == value)
        default_order = (keypair_columns.created_at.desc(), keypair_columns.access_key.asc())
        order = compile_order(
            tables.keypairs, query.order, default_order, hidden=_HIDDEN_KEYPAIR_COLUMNS, joined=_OWNER_COLUMNS
        )
        keypairs_with_users = tables.keypairs.join(tables.users, users.uuid == keypair_columns.user_id)

        def work(s: Connection) -> Page[Keypair]:
            total = s.execute(select(func.count()).select_from(keypairs_with_users).where(*clauses)).scalar_one()
            page = KEYPAIR_QUERY.where(*clauses).order_by(*order).limit(query.limit).offset(query.offset)
            return Page(items=[keypair_of(row) for row in s.execute(page)], total_count=total)

        return await self._db.run_read(work)

    async def touch(self, uses_by_key: Mapping[AccessKey, tuple[datetime, int]]) -> None:
        keypair_columns = tables.keypairs.c

        def work(s: Connection) -> None:
            for access_key, (last_used, request_count) in uses_by_key.items():
                values = {"last_used": last_used, "num_queries": keypair_columns.num_queries + request_count}
                s.execute(update(tables.keypairs).where(keypair_columns.access_key == access_key).values(values))

        await self._db.run_write(work)
