"""The table of stored answers."""

from __future__ import annotations

from sqlalchemy import Column, LargeBinary, String, Table

from ai.backend.infra.database import GUID, JSONText, UTCDateTime, Whole
from ai.backend.manager.db.metadata import metadata, required

kept_answers = Table(
    "kept_answers",
    metadata,
    Column("access_key", String(20), primary_key=True),
    Column("token", String(128), primary_key=True),
    required("fingerprint", String(64)),
    required("call_id", GUID),
    required("begun_at", UTCDateTime, index=True),
    Column("status", Whole),
    Column("headers", JSONText),
    Column("body", LargeBinary),
)
