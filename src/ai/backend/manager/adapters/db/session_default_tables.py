"""The tables of templates, dotfiles, the use of sessions and of resource groups, and reported errors."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Column, ForeignKey, Integer, String, Table, Text

from ai.backend.infra.database import GUID, JSONText, UTCDateTime
from ai.backend.manager.adapters.db.columns import EnumText
from ai.backend.manager.adapters.db.tables import metadata
from ai.backend.manager.model.dotfile import DotfileScope
from ai.backend.manager.model.template import TemplateKind


def _required(name: str, kind: Any, *constraints: ForeignKey, **options: Any) -> Column[Any]:
    return Column(name, kind, *constraints, nullable=False, **options)


templates = Table(
    "session_templates",
    metadata,
    Column("id", GUID, primary_key=True),
    _required("kind", EnumText(TemplateKind)),
    _required("name", String(128)),
    _required("domain_name", String(64), index=True),
    _required("group_id", GUID),
    _required("group_name", String(64)),
    _required("user_id", GUID, index=True),
    _required("user_email", String(256)),
    _required("document", JSONText),
    _required("created_at", UTCDateTime),
    _required("modified_at", UTCDateTime),
)

dotfiles = Table(
    "dotfiles",
    metadata,
    Column("scope", EnumText(DotfileScope), primary_key=True),
    Column("owner", String(64), primary_key=True),
    Column("path", String(1024), primary_key=True),
    _required("permission", String(4)),
    _required("data", Text),
)

bootstrap_scripts = Table(
    "bootstrap_scripts",
    metadata,
    Column("access_key", String(20), primary_key=True),
    _required("script", Text),
)

activities = Table(
    "session_activities",
    metadata,
    Column("session_id", GUID, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("last_access", UTCDateTime),
    _required("usage", JSONText),
)

share_histories = Table(
    "share_histories",
    metadata,
    Column("resource_group", String(64), primary_key=True),
    _required("used", JSONText),
    _required("at", UTCDateTime),
)

error_logs = Table(
    "error_logs",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    _required("severity", String(16)),
    _required("source", String(64)),
    _required("message", Text),
    _required("user_id", GUID, index=True),
    _required("domain_name", String(64)),
    _required("context_lang", String(64)),
    _required("context_env", JSONText),
    Column("request_url", Text),
    Column("request_status", Integer),
    Column("traceback", Text),
    _required("created_at", UTCDateTime, index=True),
    _required("is_read", Boolean),
    _required("is_cleared", Boolean),
    sqlite_autoincrement=True,
)
