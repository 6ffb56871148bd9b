"""Declares the store of templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ai.backend.common.ids import TemplateId, UserId
from ai.backend.manager.templates.model import Template, TemplateKind


class TemplateStore(Protocol):
    """Stores templates. Every method is one transaction."""

    async def add_templates(self, templates: Sequence[Template]) -> None:
        """Inserts all of the given templates, or none."""

    async def template(self, template_id: TemplateId) -> Template | None: ...

    async def templates(
        self, kind: TemplateKind, *, user_id: UserId | None = None, domain_name: str | None = None
    ) -> list[Template]:
        """Returns the templates of a kind that belong to a user or a domain, ordered by name."""
        ...

    async def put_template(self, template: Template) -> bool:
        """Replaces a template. Returns False if it does not exist."""
        ...

    async def drop_template(self, template_id: TemplateId) -> bool: ...
