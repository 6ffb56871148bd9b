"""Tables of templates."""

from __future__ import annotations

from sqlalchemy import Column, String, Table

from ai.backend.infra.database import GUID, JSONText, UTCDateTime
from ai.backend.infra.database.columns import EnumText
from ai.backend.manager.db.metadata import metadata, required
from ai.backend.manager.templates.model import TemplateKind

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
