"""Stores pages of scans in few statements, however many of the artifacts exist already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BindParameter, Column, ColumnElement, Connection, bindparam, case, func, insert, select, update

from ai.backend.common.artifacts import ArtifactType, RevisionStatus
from ai.backend.common.ids import ArtifactId, RegistryId, RevisionId
from ai.backend.infra.database.rows import row_of
from ai.backend.manager.artifacts.model import Artifact, FoundArtifact, FoundRevision, Recorded, Revision
from ai.backend.manager.artifacts.tables import artifacts, revisions


def _new_value(column: Column[Any]) -> BindParameter[Any]:
    return bindparam(f"new_{column.name}", type_=column.type)


def _new_or_old(column: Column[Any]) -> ColumnElement[Any]:
    """Keeps the old value if the scan has none."""
    return func.coalesce(_new_value(column), column)


def _unless_available(column: Column[Any]) -> ColumnElement[Any]:
    """Keeps the size of an available revision, whatever the registry reports."""
    return case((revisions.c.status == RevisionStatus.AVAILABLE, column), else_=_new_or_old(column))


_A, _R = artifacts.c, revisions.c
_UPDATE_ARTIFACT = (
    update(artifacts)
    .where(_A.id == _new_value(_A.id))
    .values(
        description=_new_value(_A.description),
        extra=_new_value(_A.extra),
        scanned_at=_new_value(_A.scanned_at),
        readme=_new_or_old(_A.readme),
    )
)
_UPDATE_REVISION = (
    update(revisions)
    .where(_R.id == _new_value(_R.id))
    .values(
        source=_new_value(_R.source),
        remote_status=_new_value(_R.remote_status),
        digest=_new_or_old(_R.digest),
        size=_unless_available(_R.size),
        file_count=_unless_available(_R.file_count),
    )
)


def _parameters(**values: Any) -> dict[str, Any]:
    return {f"new_{name}": value for name, value in values.items()}


def record(
    s: Connection, registry_id: RegistryId, scanned: Sequence[FoundArtifact], at: datetime, mint: Callable[[], UUID]
) -> Recorded:
    """Writes a page; of duplicates the last one counts."""
    page = {(one.type, one.name): one for one in scanned}
    existing = _existing_artifacts(s, registry_id, page)
    created = {
        key: Artifact(
            id=ArtifactId(mint()),
            registry_id=registry_id,
            type=one.type,
            name=one.name,
            description=one.description,
            readme=one.readme,
            extra=dict(one.extra),
            created_at=at,
            scanned_at=at,
        )
        for key, one in page.items()
        if key not in existing
    }
    if created:
        s.execute(insert(artifacts), [asdict(artifact) for artifact in created.values()])
    if existing:
        changes = [
            _parameters(id=id_, description=one.description, extra=dict(one.extra), scanned_at=at, readme=one.readme)
            for key, id_ in existing.items()
            for one in [page[key]]
        ]
        s.execute(_UPDATE_ARTIFACT, changes)
    ids = existing | {key: artifact.id for key, artifact in created.items()}
    found_revisions = {(ids[key], r.version): r for key, one in page.items() for r in one.revisions}
    return Recorded(len(created), _record_revisions(s, found_revisions, at, mint))


def _existing_artifacts(
    s: Connection, registry_id: RegistryId, page: Mapping[tuple[ArtifactType, str], FoundArtifact]
) -> dict[tuple[ArtifactType, str], ArtifactId]:
    names = sorted({name for _, name in page})
    query = select(_A.id, _A.type, _A.name).where(_A.registry_id == registry_id, _A.name.in_(names))
    return {(row.type, row.name): row.id for row in s.execute(query) if (row.type, row.name) in page}


def _record_revisions(
    s: Connection,
    found_revisions: Mapping[tuple[ArtifactId, str], FoundRevision],
    at: datetime,
    mint: Callable[[], UUID],
) -> int:
    """Writes revisions and returns the number of new ones."""
    artifact_ids = sorted({artifact_id for artifact_id, _ in found_revisions}, key=str)
    query = select(_R.id, _R.artifact_id, _R.version).where(_R.artifact_id.in_(artifact_ids))
    existing = {(row.artifact_id, row.version): row.id for row in s.execute(query)}
    created = [
        Revision(
            id=RevisionId(mint()),
            artifact_id=artifact_id,
            version=version,
            size=one.size,
            file_count=one.file_count,
            digest=one.digest,
            source=dict(one.source),
            remote_status=one.remote_status,
            status_changed=at,
            created_at=at,
        )
        for (artifact_id, version), one in found_revisions.items()
        if (artifact_id, version) not in existing
    ]
    if created:
        s.execute(insert(revisions), [row_of(one) for one in created])
    changes = [
        _parameters(
            id=existing[key],
            source=dict(one.source),
            remote_status=one.remote_status,
            digest=one.digest,
            size=one.size,
            file_count=one.file_count,
        )
        for key, one in found_revisions.items()
        if key in existing
    ]
    if changes:
        s.execute(_UPDATE_REVISION, changes)
    return len(created)
