"""Events that are posted to the callback URL of a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ai.backend.common.ids import AccessKey, SessionId
from ai.backend.manager.sessions.events import EventDraft
from ai.backend.manager.sessions.model import Session

_PAYLOAD_FIELDS = ("reason", "result", "exitCode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """An event that has not been posted to a session's ``callback_url`` yet.

    Attributes:
        id: increases; the events of a session are posted in this order.
        body: what is posted, as JSON.
        attempts: the number of failed posts.
        due_at: not before.
    """

    id: int
    session_id: SessionId
    access_key: AccessKey
    url: str
    body: Mapping[str, Any]
    attempts: int
    due_at: datetime


def callback_body(event: EventDraft, at: datetime) -> dict[str, Any]:
    """Return the posted body; it has nothing that only the owner may know.

    Source: docs/decisions/0044; ``type``, ``event``, ``session_id`` and ``when`` are the published manager's.
    """
    details = {name: event.payload[name] for name in _PAYLOAD_FIELDS if name in event.payload}
    return {
        "type": "session_lifecycle",
        "event": event.name.removeprefix("session_"),
        "session_id": str(event.session_id),
        "when": at.isoformat(),
        **details,
    }


def owed_callbacks(session: Session, events: Iterable[EventDraft]) -> list[EventDraft]:
    """Return the events that are posted to the session's URL: changes of the session's status."""
    return [e for e in events if e.kernel_id is None] if session.callback_url else []
