"""Defines the SQL tables of artifacts. Columns are named as the fields of the model."""

from __future__ import annotations

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, String, Table, Text, UniqueConstraint, false
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from ai.backend.common.artifacts import ArtifactType, RegistryType, RevisionStatus
from ai.backend.infra.database import GUID, JSONText, UTCDateTime, Whole
from ai.backend.infra.database.columns import EnumText, JSONTuple, required
from ai.backend.manager.artifacts.model import Stages
from ai.backend.manager.db import metadata


class _StagesText(TypeDecorator[Stages]):
    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Stages | None, dialect: Dialect) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Stages | None:
        return None if value is None else msgspec.json.decode(value, type=Stages)


registries = Table(
    "artifact_registries",
    metadata,
    Column("id", GUID, primary_key=True),
    required("name", String(64), unique=True),
    required("type", EnumText(RegistryType)),
    required("url", Text),
    required("credentials", JSONText),
    required("storages", JSONText),
    required("viewers", JSONTuple(str), server_default='["everyone"]'),
    Column("user_import_bytes", BigInteger),
    required("created_at", UTCDateTime),
    required("modified_at", UTCDateTime),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("id", GUID, primary_key=True),
    required("registry_id", GUID, ForeignKey("artifact_registries.id", ondelete="CASCADE")),
    required("type", EnumText(ArtifactType)),
    required("name", String(256), index=True),
    required("description", Text),
    Column("readme", Text),
    required("extra", JSONText),
    required("restricted", Boolean, server_default=false()),
    Column("viewers", JSONTuple(str)),
    required("created_at", UTCDateTime),
    required("scanned_at", UTCDateTime),
    UniqueConstraint("registry_id", "type", "name"),
)

revisions = Table(
    "artifact_revisions",
    metadata,
    Column("id", GUID, primary_key=True),
    required("artifact_id", GUID, ForeignKey("artifacts.id", ondelete="CASCADE")),
    required("version", String(256)),
    required("status", EnumText(RevisionStatus)),
    Column("status_info", Text),
    required("status_changed", UTCDateTime),
    required("generation", Whole),
    required("attempt", Whole),
    required("residue", Boolean, index=True),
    Column("size", BigInteger),
    Column("file_count", Whole),
    Column("digest", String(128)),
    Column("imported_digest", String(128)),
    required("source", JSONText),
    Column("remote_status", EnumText(RevisionStatus)),
    Column("stages", _StagesText),
    required("delegated", Boolean),
    Column("began_at", UTCDateTime),
    required("created_at", UTCDateTime),
    Column("last_used", UTCDateTime),
    UniqueConstraint("artifact_id", "version"),
    Index("ix_artifact_revisions_status_artifact_id", "status", "artifact_id"),
)

session_artifacts = Table(
    "session_artifacts",
    metadata,
    Column("session_id", GUID, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("revision_id", GUID, primary_key=True, index=True),
)
