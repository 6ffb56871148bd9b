"""The REST route of the audit trail, with the names of users."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

from msgspec import Meta

from ai.backend.common.errors import Forbidden
from ai.backend.common.ids import UserId
from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.logs.audit import AuditService
from ai.backend.manager.logs.model import AuditQuery, StoredAuditRecord

MAX_PAGE = 100
_UNKNOWN_USER = UserId(UUID(int=0))


class AuditQueryFields(Schema, frozen=True):
    """Selects records of the audit trail by user, text and outcome.

    ``before``: the id of the oldest record that is shown; ``text``: a part of an operation, or the id of an object or a
    request; ``refused``: only what did not go well.
    """

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 50
    before: Annotated[int, Meta(ge=1, lt=1 << 62)] | None = None
    email: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    text: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    refused: Literal["true", "false"] = "false"


class AuditItem(TypedDict):
    """A record of the audit trail: an operation, its object, its caller and its outcome.

    ``email`` is null for a caller who had not signed, or has been purged. ``outcome``: ``ok``, ``success``, or the code
    of an error.
    """

    id: int
    at: str
    email: str | None
    access_key: str | None
    operation: str
    object_type: str
    object_id: str | None
    outcome: str
    request_id: str
    detail: dict[str, Any]


class AuditPage(TypedDict):
    """A page of the audit trail; ``has_more`` is true if there are older records."""

    items: list[AuditItem]
    has_more: bool


class AuditApi:
    """The route of the audit trail, for superadmins."""

    problems = (Forbidden,)

    def __init__(self, audit: AuditService, identities: IdentityStore) -> None:
        self._audit = audit
        self._identities = identities

    @route("GET", "/logs/audit", query=AuditQueryFields)
    async def records(self, call: Call[Nothing, AuditQueryFields]) -> AuditPage:
        """Returns what users have changed, newest first."""
        fields, user_id = call.query, None
        if fields.email is not None:
            user = await self._identities.user(email=fields.email)
            user_id = user.uuid if user is not None else _UNKNOWN_USER
        query = AuditQuery(
            limit=fields.limit + 1,
            before=fields.before,
            user_id=user_id,
            text=fields.text,
            only_refused=fields.refused == "true",
        )
        stored_records = await self._audit.records(caller_of(call), query)
        page_records = stored_records[: fields.limit]
        emails = await self._emails({stored_record.record.user_id for stored_record in page_records})
        return {
            "items": [_audit_view(stored_record, emails) for stored_record in page_records],
            "has_more": len(stored_records) > fields.limit,
        }

    async def _emails(self, user_ids: Iterable[UserId | None]) -> Mapping[UserId | None, str]:
        users = [await self._identities.user(uuid=user_id) for user_id in user_ids if user_id is not None]
        return {user.uuid: user.email for user in users if user is not None}


def _audit_view(stored_record: StoredAuditRecord, emails: Mapping[UserId | None, str]) -> AuditItem:
    record = stored_record.record
    return {
        "id": stored_record.id,
        "at": record.at.isoformat(),
        "email": emails.get(record.user_id),
        "access_key": record.access_key,
        "operation": record.operation,
        "object_type": record.object_type,
        "object_id": record.object_id,
        "outcome": record.outcome,
        "request_id": record.request_id,
        "detail": dict(record.detail),
    }
