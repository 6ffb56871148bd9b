"""Defines the SQL tables of the audit trail and of reported errors."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Integer, String, Table, Text

from ai.backend.infra.database import GUID, JSONText, UTCDateTime, Whole
from ai.backend.infra.database.columns import required
from ai.backend.manager.db import metadata

error_logs = Table(
    "error_logs",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    required("severity", String(16)),
    required("source", String(64)),
    required("message", Text),
    required("user_id", GUID, index=True),
    required("domain_name", String(64)),
    required("context_lang", String(64)),
    required("context_env", JSONText),
    Column("request_url", Text),
    Column("request_status", Integer),
    Column("traceback", Text),
    required("created_at", UTCDateTime, index=True),
    required("is_read", Boolean),
    required("is_cleared", Boolean),
    sqlite_autoincrement=True,
)

audit_logs = Table(
    "audit_logs",
    metadata,
    Column("id", Whole, primary_key=True, autoincrement=True),
    required("at", UTCDateTime, index=True),
    required("request_id", String(64)),
    Column("user_id", GUID),
    Column("access_key", String(20)),
    required("operation", String(128)),
    required("object_type", String(32)),
    Column("object_id", String(128)),
    required("outcome", String(64)),
    required("detail", JSONText),
)
