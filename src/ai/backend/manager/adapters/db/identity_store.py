"""Users, keypairs and what bounds them in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Table, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import AccessKey, DomainName, GroupId, ResourceGroupName, UserId
from ai.backend.infra.database import Database
from ai.backend.manager.adapters.db import tables as t
from ai.backend.manager.adapters.db.filters import compile_filter, compile_order
from ai.backend.manager.model.identity import (
    Caller,
    Credentials,
    Domain,
    Group,
    GroupRef,
    Keypair,
    ResourceGroup,
    ResourcePolicy,
    User,
)
from ai.backend.manager.model.query import ListQuery, Page
from ai.backend.manager.ports.identity_store import KeypairSecret

_KEYPAIR_EXTRAS = frozenset({"user_email", "user_full_name", "concurrency_used"})
_USER_HIDDEN = frozenset({"password"})
_KEYPAIR_HIDDEN = frozenset({"secret_key"})


def _row(value: Any, *, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value) if f.name not in without}


def _put(s: Connection, table: Table, key: str, row: Mapping[str, Any]) -> None:
    done = s.execute(update(table).where(table.c[key] == row[key]).values(row))
    if done.rowcount == 0:
        s.execute(insert(table), dict(row))


def _keypair(row: Row[Any]) -> Keypair:
    values = {k: v for k, v in row._mapping.items() if k not in ("secret_key", "email", "full_name")}
    return Keypair(**values, user_email=row.email, user_full_name=row.full_name)


class SqlIdentityStore:
    """Implements :class:`ai.backend.manager.ports.identity_store.IdentityStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def _rows(self, query: Any) -> Sequence[Row[Any]]:
        def work(s: Connection) -> Sequence[Row[Any]]:
            return (s.execute(query)).all()

        return await self._db.run_read(work)

    async def put_domain(self, domain: Domain) -> None:
        def work(s: Connection) -> None:
            _put(s, t.domains, "name", _row(domain))

        await self._db.run_write(work)

    async def domain(self, name: str) -> Domain | None:
        rows = await self._rows(select(t.domains).where(t.domains.c.name == name))
        return Domain(**rows[0]._mapping) if rows else None

    async def put_group(self, group: Group) -> None:
        def work(s: Connection) -> None:
            _put(s, t.groups, "id", _row(group))

        await self._db.run_write(work)

    async def groups(
        self, *, domain_name: str | None = None, user_id: UserId | None = None, name: str | None = None
    ) -> list[Group]:
        c = t.groups.c
        query = select(t.groups).order_by(c.name)
        if domain_name is not None:
            query = query.where(c.domain_name == domain_name)
        if name is not None:
            query = query.where(c.name == name)
        if user_id is not None:
            m = t.memberships.c
            query = query.where(c.id.in_(select(m.group_id).where(m.user_id == user_id)))
        return [Group(**row._mapping) for row in await self._rows(query)]

    async def put_policy(self, policy: ResourcePolicy) -> None:
        def work(s: Connection) -> None:
            _put(s, t.policies, "name", _row(policy))

        await self._db.run_write(work)

    async def policies(self, *, name: str | None = None) -> list[ResourcePolicy]:
        query = select(t.policies).order_by(t.policies.c.name)
        if name is not None:
            query = query.where(t.policies.c.name == name)
        return [ResourcePolicy(**row._mapping) for row in await self._rows(query)]

    async def put_resource_group(self, group: ResourceGroup) -> None:
        def work(s: Connection) -> None:
            _put(s, t.resource_groups, "name", _row(group))

        await self._db.run_write(work)

    async def resource_group(self, name: str) -> ResourceGroup | None:
        rows = await self._rows(select(t.resource_groups).where(t.resource_groups.c.name == name))
        return ResourceGroup(**rows[0]._mapping) if rows else None

    async def resource_groups(
        self,
        *,
        domain_name: str | None = None,
        group_ids: Sequence[GroupId] = (),
        access_key: str | None = None,
        is_active: bool | None = None,
    ) -> list[ResourceGroup]:
        c, link = t.resource_groups.c, t.resource_group_links.c
        query = select(t.resource_groups).order_by(c.name)
        if is_active is not None:
            query = query.where(c.is_active == is_active)
        targets = [
            *([("domain", domain_name)] if domain_name is not None else []),
            *(("group", str(g)) for g in group_ids),
            *([("keypair", access_key)] if access_key is not None else []),
        ]
        if targets:
            mine = or_(*((link.kind == kind) & (link.target == target) for kind, target in targets))
            query = query.where(or_(c.is_public.is_(True), c.name.in_(select(link.scaling_group).where(mine))))
        return [ResourceGroup(**row._mapping) for row in await self._rows(query)]

    async def associate(
        self,
        resource_group: ResourceGroupName,
        *,
        domain_name: DomainName | None = None,
        group_id: GroupId | None = None,
        access_key: AccessKey | None = None,
    ) -> None:
        wanted = {"domain": domain_name, "group": str(group_id) if group_id else None, "keypair": access_key}
        link = t.resource_group_links.c

        def work(s: Connection) -> None:
            for kind, target in wanted.items():
                if target is None:
                    continue
                row = {"scaling_group": resource_group, "kind": kind, "target": target}
                same = (link.scaling_group == resource_group) & (link.kind == kind) & (link.target == target)
                if (s.execute(select(link.kind).where(same))).first() is None:
                    s.execute(insert(t.resource_group_links), row)

        await self._db.run_write(work)

    async def put_user(
        self, user: User, *, password_hash: str | None, groups: Sequence[GroupId], keypair: KeypairSecret
    ) -> None:
        try:

            def work(s: Connection) -> None:
                row = _row(user, without=frozenset({"groups"}))
                s.execute(insert(t.users), {**row, "password": password_hash})
                pair = _row(keypair.keypair, without=_KEYPAIR_EXTRAS)
                s.execute(insert(t.keypairs), {**pair, "secret_key": keypair.secret_key})
                if groups:
                    s.execute(insert(t.memberships), [{"user_id": user.uuid, "group_id": g} for g in groups])

            await self._db.run_write(work)
        except IntegrityError:
            raise Conflict(f"a user {user.email} exists already", data={"email": "taken"}) from None

    def _users(self, s: Connection, rows: Sequence[Row[Any]]) -> list[User]:
        m, g = t.memberships.c, t.groups.c
        member: dict[Any, list[GroupRef]] = {}
        if rows:
            query = select(m.user_id, g.id, g.name).join(t.groups, g.id == m.group_id).order_by(g.name)
            for user_id, group_id, name in s.execute(query.where(m.user_id.in_([r.uuid for r in rows]))):
                member.setdefault(user_id, []).append(GroupRef(id=GroupId(group_id), name=name))
        return [
            User(
                **{k: v for k, v in row._mapping.items() if k != "password"},
                groups=tuple(member.get(row.uuid, ())),
            )
            for row in rows
        ]

    async def user(self, *, email: str | None = None, uuid: UserId | None = None) -> User | None:
        c = t.users.c
        where = c.email == email if email is not None else c.uuid == uuid

        def work(s: Connection) -> User | None:
            found = self._users(s, (s.execute(select(t.users).where(where))).all())
            return found[0] if found else None

        return await self._db.run_read(work)

    async def users(self, query: ListQuery, *, domain_name: str | None, status: str | None) -> Page[User]:
        c = t.users.c
        where: list[ColumnElement[bool]] = compile_filter(t.users, query.filter, hidden=_USER_HIDDEN)
        if domain_name is not None:
            where.append(c.domain_name == domain_name)
        if status is not None:
            where.append(c.status == status)
        order = compile_order(t.users, query.order, (c.created_at.desc(), c.uuid.asc()), hidden=_USER_HIDDEN)

        def work(s: Connection) -> Page[User]:
            total = (s.execute(select(func.count()).select_from(t.users).where(*where))).scalar_one()
            page = select(t.users).where(*where).order_by(*order).limit(query.limit).offset(query.offset)
            return Page(items=self._users(s, (s.execute(page)).all()), total_count=total)

        return await self._db.run_read(work)

    async def credentials(self, access_key: str) -> Credentials | None:
        k, u = t.keypairs.c, t.users.c
        rows = await self._rows(
            select(
                k.access_key, k.secret_key, k.is_active, k.is_admin, k.resource_policy, k.rate_limit,
                u.uuid, u.email, u.username, u.role, u.domain_name, u.status,
            )
            .join(t.users, u.uuid == k.user_id)
            .where(k.access_key == access_key)
        )  # fmt: skip
        if not rows:
            return None
        row = rows[0]
        caller = Caller(
            user_id=UserId(row.uuid),
            email=row.email,
            username=row.username,
            role=row.role,
            domain_name=DomainName(row.domain_name),
            access_key=AccessKey(row.access_key),
            is_admin=row.is_admin,
            resource_policy=row.resource_policy,
            rate_limit=row.rate_limit,
        )
        is_active = bool(row.is_active) and row.status == "active"
        return Credentials(caller=caller, secret_key=row.secret_key, is_active=is_active)

    async def keypair(self, access_key: str) -> Keypair | None:
        k, u = t.keypairs.c, t.users.c
        query = select(t.keypairs, u.email, u.full_name).join(t.users, u.uuid == k.user_id)
        rows = await self._rows(query.where(k.access_key == access_key))
        return _keypair(rows[0]) if rows else None

    async def keypairs(
        self,
        query: ListQuery,
        *,
        domain_name: str | None = None,
        email: str | None = None,
        is_active: bool | None = None,
    ) -> Page[Keypair]:
        k, u = t.keypairs.c, t.users.c
        where: list[ColumnElement[bool]] = compile_filter(t.keypairs, query.filter, hidden=_KEYPAIR_HIDDEN)
        if domain_name is not None:
            where.append(u.domain_name == domain_name)
        if email is not None:
            where.append(u.email == email)
        if is_active is not None:
            where.append(k.is_active == is_active)
        order = compile_order(
            t.keypairs, query.order, (k.created_at.desc(), k.access_key.asc()), hidden=_KEYPAIR_HIDDEN
        )
        joined = t.keypairs.join(t.users, u.uuid == k.user_id)

        def work(s: Connection) -> Page[Keypair]:
            total = (s.execute(select(func.count()).select_from(joined).where(*where))).scalar_one()
            page = select(t.keypairs, u.email, u.full_name).select_from(joined).where(*where).order_by(*order)
            rows = (s.execute(page.limit(query.limit).offset(query.offset))).all()
            return Page(items=[_keypair(row) for row in rows], total_count=total)

        return await self._db.run_read(work)

    async def set_keypair_active(self, access_key: str, active: bool, *, at: datetime) -> bool:
        def work(s: Connection) -> bool:
            done = s.execute(
                update(t.keypairs).where(t.keypairs.c.access_key == access_key).values(is_active=active, modified_at=at)
            )
            return bool(done.rowcount)

        return await self._db.run_write(work)

    async def touch(self, used: Mapping[AccessKey, tuple[datetime, int]]) -> None:
        k = t.keypairs.c

        def work(s: Connection) -> None:
            for access_key, (at, count) in used.items():
                values = {"last_used": at, "num_queries": k.num_queries + count}
                s.execute(update(t.keypairs).where(k.access_key == access_key).values(values))

        await self._db.run_write(work)
