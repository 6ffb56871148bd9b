"""Stores templates in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select, update

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
        def work(s: Connection) -> None:
            s.execute(insert(tables.templates), [row_of(template) for template in templates])

        await self._db.run_write(work)

    async def template(self, template_id: TemplateId) -> Template | None:
        def work(s: Connection) -> Template | None:
            row = s.execute(select(tables.templates).where(tables.templates.c.id == template_id)).one_or_none()
            return Template(**row._mapping) if row is not None else None

        return await self._db.run_read(work)

    async def templates(
        self, kind: TemplateKind, *, user_id: UserId | None = None, domain_name: str | None = None
    ) -> list[Template]:
        c = tables.templates.c
        query = select(tables.templates).where(c.kind == kind).order_by(c.name, c.created_at, c.id)
        if user_id is not None:
            query = query.where(c.user_id == user_id)
        if domain_name is not None:
            query = query.where(c.domain_name == domain_name)

        def work(s: Connection) -> list[Template]:
            return [Template(**row._mapping) for row in s.execute(query)]

        return await self._db.run_read(work)

    async def put_template(self, template: Template) -> bool:
        def work(s: Connection) -> bool:
            query = update(tables.templates).where(tables.templates.c.id == template.id).values(row_of(template))
            return bool(s.execute(query).rowcount)

        return await self._db.run_write(work)

    async def drop_template(self, template_id: TemplateId) -> bool:
        def work(s: Connection) -> bool:
            return bool(s.execute(delete(tables.templates).where(tables.templates.c.id == template_id)).rowcount)

        return await self._db.run_write(work)
