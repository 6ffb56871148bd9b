"""Stores templates in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Column, String, Table, delete, insert, select, update

from ai.backend.common.ids import TemplateId, UserId
from ai.backend.infra.database import GUID, Database, JSONText, UTCDateTime
from ai.backend.infra.database.columns import EnumText, required
from ai.backend.infra.database.rows import row_of
from ai.backend.manager.db import metadata
from ai.backend.manager.templates.model import Template, TemplateKind

_TEMPLATE_TABLE = Table(
    "session_templates",
    metadata,
    Column("id", GUID, primary_key=True),
    required("kind", EnumText(TemplateKind)),
    required("name", String(128)),
    required("domain_name", String(64), index=True),
    required("group_id", GUID),
    required("group_name", String(64)),
    required("user_id", GUID, index=True),
    required("user_email", String(256)),
    required("document", JSONText),
    required("created_at", UTCDateTime),
    required("modified_at", UTCDateTime),
)


class SqlTemplateStore:
    """Implements :class:`ai.backend.manager.templates.store.TemplateStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add_templates(self, templates: Sequence[Template]) -> None:
        await self._db.execute(insert(_TEMPLATE_TABLE), [row_of(template) for template in templates])

    async def template(self, template_id: TemplateId) -> Template | None:
        rows = await self._db.fetch(select(_TEMPLATE_TABLE).where(_TEMPLATE_TABLE.c.id == template_id))
        return Template(**rows[0]._mapping) if rows else None

    async def templates(
        self, kind: TemplateKind, *, user_id: UserId | None = None, domain_name: str | None = None
    ) -> list[Template]:
        columns = _TEMPLATE_TABLE.c
        query = (
            select(_TEMPLATE_TABLE).where(columns.kind == kind).order_by(columns.name, columns.created_at, columns.id)
        )
        if user_id is not None:
            query = query.where(columns.user_id == user_id)
        if domain_name is not None:
            query = query.where(columns.domain_name == domain_name)
        return [Template(**row._mapping) for row in await self._db.fetch(query)]

    async def put_template(self, template: Template) -> bool:
        is_template = _TEMPLATE_TABLE.c.id == template.id
        return bool(await self._db.execute(update(_TEMPLATE_TABLE).where(is_template).values(row_of(template))))

    async def drop_template(self, template_id: TemplateId) -> bool:
        return bool(await self._db.execute(delete(_TEMPLATE_TABLE).where(_TEMPLATE_TABLE.c.id == template_id)))
