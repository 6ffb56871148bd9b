"""What is to be told to the URL that a session named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ai.backend.common.ids import AccessKey, SessionId
from ai.backend.manager.sessions.events import EventDraft
from ai.backend.manager.sessions.model import Session

_TOLD = ("reason", "result", "exitCode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """One event that a session's ``callback_url`` has not heard yet.

    Attributes:
        id: grows; those of a session are told in this order.
        body: what is posted, as JSON.
        attempts: how often it was tried in vain.
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
    """What is posted: nothing that only the owner may know.

    Source: docs/decisions/0044; ``type``, ``event``, ``session_id`` and ``when`` are the published manager's.
    """
    told = {name: event.payload[name] for name in _TOLD if name in event.payload}
    return {
        "type": "session_lifecycle",
        "event": event.name.removeprefix("session_"),
        "session_id": str(event.session_id),
        "when": at.isoformat(),
        **told,
    }


def owed_callbacks(session: Session, events: Iterable[EventDraft]) -> list[EventDraft]:
    """Those of ``events`` that the session's URL is to hear: changes of the session's status."""
    return [e for e in events if e.kernel_id is None] if session.callback_url else []
