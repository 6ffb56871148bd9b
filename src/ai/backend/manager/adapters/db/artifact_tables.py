"""The tables of artifacts. Column names are the fields of the model."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, String, Table, Text, UniqueConstraint
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from ai.backend.common.artifacts import ArtifactType, RegistryType, RevisionStatus
from ai.backend.infra.database import GUID, JSONText, UTCDateTime, Whole
from ai.backend.manager.adapters.db.columns import EnumText
from ai.backend.manager.adapters.db.tables import metadata
from ai.backend.manager.model.artifact import Stages


class _StagesText(TypeDecorator[Stages]):
    """Stages as a JSON object."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Stages | None, dialect: Dialect) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Stages | None:
        return None if value is None else msgspec.json.decode(value, type=Stages)


def _required(name: str, kind: Any, *constraints: ForeignKey, **options: Any) -> Column[Any]:
    return Column(name, kind, *constraints, nullable=False, **options)


registries = Table(
    "artifact_registries",
    metadata,
    Column("id", GUID, primary_key=True),
    _required("name", String(64), unique=True),
    _required("type", EnumText(RegistryType)),
    _required("url", Text),
    _required("credentials", JSONText),
    _required("storages", JSONText),
    _required("created_at", UTCDateTime),
    _required("modified_at", UTCDateTime),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("id", GUID, primary_key=True),
    _required("registry_id", GUID, ForeignKey("artifact_registries.id", ondelete="CASCADE")),
    _required("type", EnumText(ArtifactType)),
    _required("name", String(256), index=True),
    _required("description", Text),
    Column("readme", Text),
    _required("extra", JSONText),
    _required("created_at", UTCDateTime),
    _required("scanned_at", UTCDateTime),
    UniqueConstraint("registry_id", "type", "name"),
)

revisions = Table(
    "artifact_revisions",
    metadata,
    Column("id", GUID, primary_key=True),
    _required("artifact_id", GUID, ForeignKey("artifacts.id", ondelete="CASCADE")),
    _required("version", String(256)),
    _required("status", EnumText(RevisionStatus)),
    Column("status_info", Text),
    _required("status_changed", UTCDateTime),
    _required("generation", Whole),
    _required("attempt", Whole),
    _required("residue", Boolean, index=True),
    Column("size", BigInteger),
    Column("file_count", Whole),
    Column("digest", String(128)),
    Column("imported_digest", String(128)),
    _required("source", JSONText),
    Column("remote_status", EnumText(RevisionStatus)),
    Column("stages", _StagesText),
    _required("delegated", Boolean),
    Column("began_at", UTCDateTime),
    _required("created_at", UTCDateTime),
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
