"""Defines reported errors (client wire contract 2.9, ``/logs/error``) and records of the audit trail."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from ai.backend.common.ids import DomainName, UserId

SUCCESSFUL_OUTCOMES = ("ok", "success")
"""The outcomes of successful operations in the audit trail, of REST and of GraphQL mutations. Every other one is an
error's code.
"""


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an error as a client has reported it. ``severity`` is critical, error or warning."""

    severity: str
    source: str
    message: str
    user_id: UserId
    domain_name: DomainName
    context_lang: str = ""
    context_env: Mapping[str, Any] = msgspec.field(default_factory=dict)
    request_url: str | None = None
    request_status: int | None = None
    traceback: str | None = None
    created_at: datetime


class StoredError(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a reported error as it is stored.

    ``is_read`` is True if an administrator or the reporter has marked the error as read.
    """

    id: int
    report: ErrorReport
    is_read: bool = False


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Selects records of the audit trail.

    Attributes:
        before: only records with smaller ids, which are older; None for the newest.
        user_id: of the user who did it.
        text: a part of the operation, or the whole id of its object or request.
        only_refused: without those whose outcome is one of :data:`SUCCESSFUL_OUTCOMES`.
    """

    limit: int
    before: int | None = None
    user_id: UserId | None = None
    text: str | None = None
    only_refused: bool = False


class StoredAuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Represents a stored audit record; newer records have greater ids."""

    id: int
    record: AuditRecord


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an operation of a user on an object. ``outcome`` is one of :data:`SUCCESSFUL_OUTCOMES` or the error's
    code.
    """

    at: datetime
    request_id: str
    user_id: UserId | None
    access_key: str | None
    operation: str
    object_type: str
    object_id: str | None
    outcome: str
    detail: Mapping[str, Any] = msgspec.field(default_factory=dict)
