"""Stores resource groups in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, insert, or_, select

from ai.backend.infra.database import Database
from ai.backend.infra.database.prepared import IsOneOf, Prepared, parameter
from ai.backend.infra.database.rows import add_row, change_row, put_row, row_of
from ai.backend.manager.resource_groups import tables
from ai.backend.manager.resource_groups.model import Beneficiary, ResourceGroup

_GROUP_COLUMNS = tables.resource_groups.c
_LINK_COLUMNS = tables.resource_group_links.c
_IS_OF_LINKS = IsOneOf(_LINK_COLUMNS.kind + " " + _LINK_COLUMNS.target, "links")
_IS_LINKED_GROUP = _GROUP_COLUMNS.name.in_(select(_LINK_COLUMNS.scaling_group).where(_IS_OF_LINKS))
_GROUP_QUERY = Prepared(select(tables.resource_groups).where(_GROUP_COLUMNS.name == parameter(_GROUP_COLUMNS.name)))
_SELECT_GROUPS = select(tables.resource_groups).order_by(_GROUP_COLUMNS.name)
_GROUPS_QUERY = Prepared(_SELECT_GROUPS)
_OPEN_GROUPS_QUERY = Prepared(_SELECT_GROUPS.where(or_(_GROUP_COLUMNS.is_public.is_(True), _IS_LINKED_GROUP)))


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
            s.execute(delete(tables.resource_group_links).where(_LINK_COLUMNS.scaling_group == name))
            return bool(s.execute(delete(tables.resource_groups).where(_GROUP_COLUMNS.name == name)).rowcount)

        return await self._db.run_write(work)

    async def resource_group(self, name: str) -> ResourceGroup | None:
        rows = await self._db.fetch(_GROUP_QUERY, {"name": name})
        return ResourceGroup(**rows[0]._mapping) if rows else None

    async def resource_groups(
        self, beneficiaries: Sequence[Beneficiary] = (), *, is_active: bool | None = None
    ) -> list[ResourceGroup]:
        links = [f"{beneficiary.kind} {beneficiary.id}" for beneficiary in beneficiaries]
        query = _OPEN_GROUPS_QUERY if beneficiaries else _GROUPS_QUERY
        rows = await self._db.fetch(query, {"links": links})
        groups = [ResourceGroup(**row._mapping) for row in rows]
        return groups if is_active is None else [group for group in groups if group.is_active == is_active]

    async def associate(self, name: str, beneficiary: Beneficiary) -> None:
        def work(s: Connection) -> None:
            is_link = (_LINK_COLUMNS.scaling_group == name) & _is_link_of(beneficiary)
            if s.execute(select(_LINK_COLUMNS.kind).where(is_link)).first() is None:
                row = {"scaling_group": name, "kind": beneficiary.kind, "target": beneficiary.id}
                s.execute(insert(tables.resource_group_links), row)

        await self._db.run_write(work)

    async def dissociate(self, name: str | None, beneficiary: Beneficiary) -> int:
        query = delete(tables.resource_group_links).where(_is_link_of(beneficiary))
        if name is not None:
            query = query.where(_LINK_COLUMNS.scaling_group == name)
        return await self._db.run_write(lambda s: int(s.execute(query).rowcount))


def remove_links(s: Connection, kind: str, ids: Iterable[str]) -> None:
    """Removes the associations of deleted domains, groups or keypairs, in the transaction that deletes them."""
    s.execute(
        delete(tables.resource_group_links).where(_LINK_COLUMNS.kind == kind, _LINK_COLUMNS.target.in_(list(ids)))
    )


def _is_link_of(beneficiary: Beneficiary) -> ColumnElement[bool]:
    return (_LINK_COLUMNS.kind == beneficiary.kind) & (_LINK_COLUMNS.target == beneficiary.id)
