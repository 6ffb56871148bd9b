"""Templates, dotfiles, the use of sessions and reported errors, in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ai.backend.common.ids import AccessKey, SessionId, TemplateId, UserId
from ai.backend.manager.adapters.memory.session_store import Memory
from ai.backend.manager.model.activity import Activity
from ai.backend.manager.model.dotfile import Dotfile, DotfileOwner, DotfileScope, with_dotfile
from ai.backend.manager.model.error_log import ErrorReport, KeptError
from ai.backend.manager.model.query import Page
from ai.backend.manager.model.template import Template, TemplateKind


class MemoryTemplateStore:
    """Implements :class:`ai.backend.manager.ports.session_defaults.TemplateStore`."""

    def __init__(self) -> None:
        self._templates: dict[TemplateId, Template] = {}

    async def add_templates(self, templates: Sequence[Template]) -> None:
        self._templates.update((template.id, template) for template in templates)

    async def template(self, template_id: TemplateId) -> Template | None:
        return self._templates.get(template_id)

    async def templates(
        self, kind: TemplateKind, *, user_id: UserId | None = None, domain_name: str | None = None
    ) -> list[Template]:
        found = [
            template
            for template in self._templates.values()
            if template.kind is kind
            and user_id in (None, template.user_id)
            and domain_name in (None, template.domain_name)
        ]
        return sorted(found, key=lambda template: (template.name, template.created_at, str(template.id)))

    async def put_template(self, template: Template) -> bool:
        if template.id not in self._templates:
            return False
        self._templates[template.id] = template
        return True

    async def drop_template(self, template_id: TemplateId) -> bool:
        return self._templates.pop(template_id, None) is not None


class MemoryDotfileStore:
    """Implements :class:`ai.backend.manager.ports.session_defaults.DotfileStore`."""

    def __init__(self) -> None:
        self._dotfiles: dict[DotfileOwner, list[Dotfile]] = {}
        self._scripts: dict[AccessKey, str] = {}

    async def dotfiles(self, owner: DotfileOwner) -> list[Dotfile]:
        return list(self._dotfiles.get(owner, ()))

    async def put_dotfile(self, owner: DotfileOwner, dotfile: Dotfile, *, is_new: bool) -> None:
        self._dotfiles[owner] = with_dotfile(self._dotfiles.get(owner, ()), dotfile, is_new=is_new)

    async def drop_dotfile(self, owner: DotfileOwner, path: str) -> bool:
        kept = self._dotfiles.get(owner, [])
        self._dotfiles[owner] = [one for one in kept if one.path != path]
        return len(self._dotfiles[owner]) < len(kept)

    async def dotfiles_of(self, owners: Sequence[DotfileOwner]) -> list[tuple[DotfileScope, Dotfile]]:
        ordered = sorted(owners, key=lambda owner: owner.scope)
        return [(owner.scope, one) for owner in ordered for one in self._dotfiles.get(owner, ())]

    async def bootstrap_script(self, access_key: AccessKey) -> str:
        return self._scripts.get(access_key, "")

    async def put_bootstrap_script(self, access_key: AccessKey, script: str) -> None:
        self._scripts[access_key] = script


class MemoryActivityStore:
    """Implements :class:`ai.backend.manager.ports.activity_store.ActivityStore`."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory
        self._kept: dict[SessionId, Activity] = {}

    async def activities(self, session_ids: Collection[SessionId]) -> Mapping[SessionId, Activity]:
        return {i: self._kept[i] for i in session_ids if i in self._kept}

    async def note_access(self, accesses: Mapping[SessionId, datetime]) -> None:
        for session_id, at in accesses.items():
            known = self._of(session_id)
            if known is not None and (known.last_access is None or known.last_access < at):
                self._kept[session_id] = replace(known, last_access=at)

    async def put_usage(self, usage: Mapping[SessionId, Mapping[str, Any]]) -> None:
        for session_id, window in usage.items():
            known = self._of(session_id)
            if known is not None:
                self._kept[session_id] = replace(known, usage=dict(window))

    def _of(self, session_id: SessionId) -> Activity | None:
        if self._memory is not None and session_id not in self._memory.sessions:
            return None
        return self._kept.get(session_id, Activity(session_id=session_id))


class MemoryErrorLogStore:
    """Implements :class:`ai.backend.manager.ports.error_log_store.ErrorLogStore`."""

    def __init__(self) -> None:
        self._kept: dict[int, KeptError] = {}
        self._cleared: set[int] = set()
        self._last = 0

    async def add_error(self, report: ErrorReport) -> int:
        self._last += 1
        self._kept[self._last] = KeptError(id=self._last, report=report)
        return self._last

    async def errors(
        self,
        *,
        limit: int,
        offset: int,
        user_id: UserId | None = None,
        domain_name: str | None = None,
        mark_read: bool = False,
    ) -> Page[KeptError]:
        listed = [
            one
            for number, one in sorted(self._kept.items(), reverse=True)
            if number not in self._cleared and _within(one, user_id, domain_name)
        ]
        page = listed[offset : offset + limit]
        if mark_read:
            self._kept.update((one.id, replace(one, is_read=True)) for one in page)
        return Page(items=page, total_count=len(listed))

    async def clear_error(
        self, error_id: int, *, user_id: UserId | None = None, domain_name: str | None = None
    ) -> bool:
        found = self._kept.get(error_id)
        if found is None or not _within(found, user_id, domain_name):
            return False
        self._cleared.add(error_id)
        return True

    async def purge_errors(self, *, before: datetime) -> None:
        self._kept = {i: one for i, one in self._kept.items() if one.report.created_at >= before}


def _within(one: KeptError, user_id: UserId | None, domain_name: str | None) -> bool:
    return user_id in (None, one.report.user_id) and domain_name in (None, one.report.domain_name)
