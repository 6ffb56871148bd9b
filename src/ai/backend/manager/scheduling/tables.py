"""Tables of scheduling."""

from __future__ import annotations

from sqlalchemy import Column, String, Table

from ai.backend.infra.database import JSONText, UTCDateTime
from ai.backend.manager.db.metadata import metadata, required

share_histories = Table(
    "share_histories",
    metadata,
    Column("resource_group", String(64), primary_key=True),
    required("used", JSONText),
    required("at", UTCDateTime),
)
