"""Stores resource groups in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, false, insert, or_, select

from ai.backend.common.ids import AccessKey, DomainName, GroupId, ResourceGroupName
from ai.backend.infra.database import Database
from ai.backend.infra.database.rows import add_row, change_row, put_row, row_of
from ai.backend.manager.resource_groups import tables
from ai.backend.manager.resource_groups.model import ResourceGroup

_GROUP = tables.resource_groups.c
_LINK = tables.resource_group_links.c


class SqlResourceGroupStore:
    """Implements :class:`ai.backend.manager.resource_groups.store.ResourceGroupStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def put_resource_group(self, group: ResourceGroup, *, only_new: bool = False) -> None:
        def work(s: Connection) -> None:
            if only_new:
                add_row(s, tables.resource_groups, row_of(group), "resource group")
            else:
                put_row(s, tables.resource_groups, "name", row_of(group))

        await self._db.run_write(work)

    async def change_resource_group(self, name: str, **values: Any) -> ResourceGroup | None:
        row = await self._db.run_write(lambda s: change_row(s, tables.resource_groups, "name", name, values))
        return ResourceGroup(**row._mapping) if row is not None else None

    async def delete_resource_group(self, name: str) -> bool:
        def work(s: Connection) -> bool:
            s.execute(delete(tables.resource_group_links).where(_LINK.scaling_group == name))
            return bool(s.execute(delete(tables.resource_groups).where(_GROUP.name == name)).rowcount)

        return await self._db.run_write(work)

    async def resource_group(self, name: str) -> ResourceGroup | None:
        query = select(tables.resource_groups).where(_GROUP.name == name)
        row = await self._db.run_read(lambda s: s.execute(query).one_or_none())
        return ResourceGroup(**row._mapping) if row is not None else None

    async def resource_groups(
        self,
        *,
        domain_name: str | None = None,
        group_ids: Sequence[GroupId] = (),
        access_key: str | None = None,
        is_active: bool | None = None,
    ) -> list[ResourceGroup]:
        query = select(tables.resource_groups).order_by(_GROUP.name)
        if is_active is not None:
            query = query.where(_GROUP.is_active == is_active)
        targets = [
            *([("domain", domain_name)] if domain_name is not None else []),
            *(("group", str(g)) for g in group_ids),
            *([("keypair", access_key)] if access_key is not None else []),
        ]
        if targets:
            linked = select(_LINK.scaling_group).where(or_(*(_is_target(*target) for target in targets)))
            query = query.where(or_(_GROUP.is_public.is_(True), _GROUP.name.in_(linked)))
        rows = await self._db.run_read(lambda s: s.execute(query).all())
        return [ResourceGroup(**row._mapping) for row in rows]

    async def associate(
        self,
        resource_group: ResourceGroupName,
        *,
        domain_name: DomainName | None = None,
        group_id: GroupId | None = None,
        access_key: AccessKey | None = None,
    ) -> None:
        def work(s: Connection) -> None:
            for kind, target in _targets(domain_name, group_id, access_key):
                link = (_LINK.scaling_group == resource_group) & _is_target(kind, target)
                if s.execute(select(_LINK.kind).where(link)).first() is None:
                    row = {"scaling_group": resource_group, "kind": kind, "target": target}
                    s.execute(insert(tables.resource_group_links), row)

        await self._db.run_write(work)

    async def dissociate(
        self,
        resource_group: ResourceGroupName | None,
        *,
        domain_name: DomainName | None = None,
        group_id: GroupId | None = None,
        access_key: AccessKey | None = None,
    ) -> int:
        targets = _targets(domain_name, group_id, access_key)
        query = delete(tables.resource_group_links).where(or_(false(), *(_is_target(*target) for target in targets)))
        if resource_group is not None:
            query = query.where(_LINK.scaling_group == resource_group)
        return await self._db.run_write(lambda s: int(s.execute(query).rowcount))


def remove_links(s: Connection, kind: str, targets: Iterable[str]) -> None:
    """Removes the associations of domains, groups or keypairs in the transaction that deletes them."""
    s.execute(delete(tables.resource_group_links).where(_LINK.kind == kind, _LINK.target.in_(list(targets))))


def _is_target(kind: str, target: str) -> ColumnElement[bool]:
    return (_LINK.kind == kind) & (_LINK.target == target)


def _targets(
    domain_name: DomainName | None, group_id: GroupId | None, access_key: AccessKey | None
) -> list[tuple[str, str]]:
    targets = {"domain": domain_name, "group": group_id, "keypair": access_key}
    return [(kind, str(target)) for kind, target in targets.items() if target is not None]
