"""Records the calls of the API in the audit trail."""

from __future__ import annotations

from typing import Any

from ai.backend.infra.http.routes import Call
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.logs.audit import AuditService


class CallAudit:
    """Records every call that changes something."""

    def __init__(self, audit: AuditService) -> None:
        self._audit = audit

    async def record(self, call: Call[Any, Any], outcome: str) -> None:
        caller = call.identity if isinstance(call.identity, Caller) else None
        kind, _, _ = call.endpoint.path.strip("/").partition("/")
        detail = {"route": call.endpoint.template}
        if call.owner_access_key:
            detail["owner_access_key"] = call.owner_access_key[:64]
        await self._audit.record(
            caller,
            call.endpoint.name,
            request_id=call.request_id,
            object_type=kind or "api",
            object_id=next(iter(call.params.values()), None),
            outcome=outcome,
            detail=detail,
        )
