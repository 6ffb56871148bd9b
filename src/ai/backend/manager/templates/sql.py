"""Stores templates in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, insert, select, update

from ai.backend.common.ids import TemplateId, UserId
from ai.backend.infra.database import Database
from ai.backend.infra.database.rows import row_of
from ai.backend.manager.templates import tables
from ai.backend.manager.templates.model import Template, TemplateKind


class SqlTemplateStore:
    """Implements :class:`ai.backend.manager.templates.store.TemplateStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add_templates(self, templates: Sequence[Template]) -> None:
        await self._db.execute(insert(tables.templates), [row_of(template) for template in templates])

    async def template(self, template_id: TemplateId) -> Template | None:
        rows = await self._db.fetch(select(tables.templates).where(tables.templates.c.id == template_id))
        return Template(**rows[0]._mapping) if rows else None

    async def templates(
        self, kind: TemplateKind, *, user_id: UserId | None = None, domain_name: str | None = None
    ) -> list[Template]:
        c = tables.templates.c
        query = select(tables.templates).where(c.kind == kind).order_by(c.name, c.created_at, c.id)
        if user_id is not None:
            query = query.where(c.user_id == user_id)
        if domain_name is not None:
            query = query.where(c.domain_name == domain_name)
        return [Template(**row._mapping) for row in await self._db.fetch(query)]

    async def put_template(self, template: Template) -> bool:
        same = tables.templates.c.id == template.id
        return bool(await self._db.execute(update(tables.templates).where(same).values(row_of(template))))

    async def drop_template(self, template_id: TemplateId) -> bool:
        return bool(await self._db.execute(delete(tables.templates).where(tables.templates.c.id == template_id)))
