"""Stores templates in memory."""

from __future__ import annotations

from collections.abc import Sequence

from ai.backend.common.ids import TemplateId, UserId
from ai.backend.manager.db.fence import check_fence
from ai.backend.manager.templates.model import Template, TemplateKind


class MemoryTemplateStore:
    """Implements :class:`ai.backend.manager.templates.store.TemplateStore`."""

    def __init__(self) -> None:
        self._templates: dict[TemplateId, Template] = {}

    async def add_templates(self, templates: Sequence[Template]) -> None:
        check_fence()
        self._templates.update((template.id, template) for template in templates)

    async def template(self, template_id: TemplateId) -> Template | None:
        return self._templates.get(template_id)

    async def templates(
        self, kind: TemplateKind, *, user_id: UserId | None = None, domain_name: str | None = None
    ) -> list[Template]:
        templates = [
            template
            for template in self._templates.values()
            if template.kind is kind
            and user_id in (None, template.user_id)
            and domain_name in (None, template.domain_name)
        ]
        return sorted(templates, key=lambda template: (template.name, template.created_at, str(template.id)))

    async def put_template(self, template: Template) -> bool:
        check_fence()
        if template.id not in self._templates:
            return False
        self._templates[template.id] = template
        return True

    async def drop_template(self, template_id: TemplateId) -> bool:
        check_fence()
        return self._templates.pop(template_id, None) is not None
