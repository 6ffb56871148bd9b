"""Tables of idle."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Table

from ai.backend.infra.database import GUID, JSONText, UTCDateTime
from ai.backend.manager.db.metadata import metadata, required

activities = Table(
    "session_activities",
    metadata,
    Column("session_id", GUID, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("last_access", UTCDateTime),
    required("usage", JSONText),
)
