"""REST routes of the errors that clients report (client wire contract 2.9), and the audit of all calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta
from msgspec.structs import asdict

from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.fields import Success
from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.logs.audit import AuditService
from ai.backend.manager.logs.errors import ErrorLogService
from ai.backend.manager.logs.model import ErrorReport, StoredError

Text = Annotated[str, Meta(max_length=65_536)]
MAX_PAGE = 100
_REPORT_FIELDS = ("severity", "source", "message", "context_lang", "request_url", "request_status", "traceback")


class ErrorBody(Schema, frozen=True):
    """An error that a client reports, with its severity, source, message and context.

    ``context_env`` is an object, or that as JSON text. ``user`` is ignored: the caller is the reporter.
    """

    severity: Literal["critical", "error", "warning"]
    source: Annotated[str, Meta(min_length=1, max_length=64)]
    message: Text
    context_lang: Annotated[str, Meta(max_length=64)] = ""
    context_env: dict[str, Any] | Text = ""
    user: Annotated[str, Meta(max_length=64)] | None = None
    request_url: Annotated[str, Meta(max_length=2_048)] | None = None
    request_status: int | None = None
    traceback: Text | None = None


class ErrorsQuery(Schema, frozen=True):
    """Selects a page of reported errors, and says if the errors on the page are marked as read.

    The published client writes ``True`` and ``False``.
    """

    mark_read: Literal["True", "False", "true", "false", "1", "0"] = "false"
    page_no: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    page_size: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 20


class Reported(Success):
    log_id: str


class ErrorItem(TypedDict):
    """A reported error; ``created_at`` is in seconds since 1970, ``user`` the id of the reporter."""

    log_id: str
    created_at: float
    user: str
    is_read: bool
    severity: str
    source: str
    message: str
    context_lang: str
    context_env: dict[str, Any]
    request_url: str | None
    request_status: int | None
    traceback: str | None


class ErrorPage(TypedDict):
    logs: list[ErrorItem]
    count: int


class ErrorLogApi:
    """Routes of reported errors: users see their own, administrators those of their domain."""

    def __init__(self, errors: ErrorLogService, now: Callable[[], datetime]) -> None:
        self._errors = errors
        self._now = now

    @route("POST", "/logs/error", body=ErrorBody, audited=False)
    async def report(self, call: Call[ErrorBody]) -> Reported:
        """Reports an error."""
        caller, body = caller_of(call), call.body
        values = {name: value for name, value in asdict(body).items() if name not in ("user", "context_env")}
        log_id = await self._errors.report(
            ErrorReport(
                **values,
                user_id=caller.user_id,
                domain_name=caller.domain_name,
                context_env=_parse_environment(body.context_env),
                created_at=self._now(),
            )
        )
        return {"success": True, "log_id": str(log_id)}

    @route("GET", "/logs/error", query=ErrorsQuery, reply=ErrorPage)
    async def errors(self, call: Call[Nothing, ErrorsQuery]) -> dict[str, Any]:
        """Returns reported errors, newest first; ``mark_read`` marks those of this page."""
        query = call.query
        page = await self._errors.list(
            caller_of(call),
            limit=query.page_size,
            offset=(query.page_no - 1) * query.page_size,
            mark_read=query.mark_read.lower() in ("true", "1"),
        )
        return {"logs": [_error_view(error) for error in page.items], "count": page.total_count}

    @route("POST", "/logs/error/{log_id}/clear", repeatable=True)
    async def clear(self, call: Call) -> Success:
        """Hides an error from the lists."""
        log_id_text = call.params["log_id"]
        log_id = int(log_id_text) if log_id_text.isascii() and log_id_text.isdigit() and len(log_id_text) < 19 else 0
        await self._errors.clear(caller_of(call), log_id)
        return {"success": True}


def _parse_environment(value: dict[str, Any] | str) -> dict[str, Any]:
    environment: Any = value or {}
    if isinstance(environment, str):
        try:
            environment = json.loads(environment)
        except (ValueError, RecursionError):
            raise refuse({"context_env": "not JSON"}) from None
    if not isinstance(environment, dict):
        raise refuse({"context_env": "not an object"})
    if len(json.dumps(environment)) > 65_536:
        raise refuse({"context_env": "too large"})
    return environment


def _error_view(error: StoredError) -> dict[str, Any]:
    report = error.report
    return {
        **{name: getattr(report, name) for name in _REPORT_FIELDS},
        "log_id": str(error.id),
        "created_at": report.created_at.timestamp(),
        "user": str(report.user_id),
        "is_read": error.is_read,
        "context_env": dict(report.context_env),
    }


class CallAudit:
    """Writes a record to the audit trail for every API call that changes something."""

    def __init__(self, audit: AuditService) -> None:
        self._audit = audit

    async def record(self, call: Call[Any, Any], outcome: str) -> None:
        caller = call.identity if isinstance(call.identity, Caller) else None
        object_type, _, _ = call.endpoint.path.strip("/").partition("/")
        detail = {"route": call.endpoint.template, **call.audit_detail}
        if call.owner_access_key:
            detail["owner_access_key"] = call.owner_access_key[:64]
        await self._audit.record(
            caller,
            call.endpoint.name,
            request_id=call.request_id,
            object_type=object_type or "api",
            object_id=next(iter(call.params.values()), None),
            outcome=outcome,
            detail=detail,
        )
