"""The table of background tasks."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, String, Table, Text, false

from ai.backend.infra.database import GUID, UTCDateTime
from ai.backend.infra.database.columns import EnumText
from ai.backend.manager.db.metadata import metadata, required
from ai.backend.manager.tasks.model import TaskStatus

tasks = Table(
    "background_tasks",
    metadata,
    Column("id", GUID, primary_key=True),
    required("name", String(128)),
    required("owner", GUID),
    required("status", EnumText(TaskStatus), index=True),
    required("current_progress", Float),
    required("total_progress", Float),
    required("message", Text),
    required("created_at", UTCDateTime),
    required("updated_at", UTCDateTime),
    required("manager", String(128), server_default=""),
    required("subject", String(128), server_default=""),
    required("is_unwanted", Boolean, server_default=false()),
)
