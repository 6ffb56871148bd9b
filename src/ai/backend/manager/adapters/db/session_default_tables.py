"""The tables of templates, dotfiles, the use of sessions and of resource groups, and reported errors."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, ForeignKey, Integer, String, Table, Text

from ai.backend.infra.database import GUID, JSONText, UTCDateTime
from ai.backend.infra.database.columns import EnumText
from ai.backend.manager.adapters.db.tables import metadata, required
from ai.backend.manager.model.dotfile import DotfileScope
from ai.backend.manager.model.template import TemplateKind

templates = Table(
    "session_templates",
    metadata,
    Column("id", GUID, primary_key=True),
    required("kind", EnumText(TemplateKind)),
    required("name", String(128)),
    required("domain_name", String(64), index=True),
    required("group_id", GUID),
    required("group_name", String(64)),
    required("user_id", GUID, index=True),
    required("user_email", String(256)),
    required("document", JSONText),
    required("created_at", UTCDateTime),
    required("modified_at", UTCDateTime),
)

dotfiles = Table(
    "dotfiles",
    metadata,
    Column("scope", EnumText(DotfileScope), primary_key=True),
    Column("owner", String(64), primary_key=True),
    Column("path", String(1024), primary_key=True),
    required("permission", String(4)),
    required("data", Text),
)

bootstrap_scripts = Table(
    "bootstrap_scripts",
    metadata,
    Column("access_key", String(20), primary_key=True),
    required("script", Text),
)

activities = Table(
    "session_activities",
    metadata,
    Column("session_id", GUID, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("last_access", UTCDateTime),
    required("usage", JSONText),
)

share_histories = Table(
    "share_histories",
    metadata,
    Column("resource_group", String(64), primary_key=True),
    required("used", JSONText),
    required("at", UTCDateTime),
)

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
