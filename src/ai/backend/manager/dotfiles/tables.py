"""Tables of dotfiles and bootstrap scripts."""

from __future__ import annotations

from sqlalchemy import Column, String, Table, Text

from ai.backend.infra.database.columns import EnumText
from ai.backend.manager.db.metadata import metadata, required
from ai.backend.manager.dotfiles.model import DotfileScope

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
