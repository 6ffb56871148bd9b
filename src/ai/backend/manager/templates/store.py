"""Stores of templates: the ports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ai.backend.common.ids import TemplateId, UserId
from ai.backend.manager.templates.model import Template, TemplateKind


class TemplateStore(Protocol):
    async def add_templates(self, templates: Sequence[Template]) -> None:
        """All or none."""

    async def template(self, template_id: TemplateId) -> Template | None: ...

    async def templates(
        self, kind: TemplateKind, *, user_id: UserId | None = None, domain_name: str | None = None
    ) -> list[Template]:
        """By name; all of them without arguments."""
        ...

    async def put_template(self, template: Template) -> bool:
        """Replace one; False if it is gone."""
        ...

    async def drop_template(self, template_id: TemplateId) -> bool: ...
