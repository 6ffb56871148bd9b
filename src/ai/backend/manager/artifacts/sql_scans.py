"""Stores pages of scans in few statements, however many of the artifacts exist already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BindParameter, Column, ColumnElement, Connection, bindparam, case, func, insert, select, update

from ai.backend.common.artifacts import RevisionStatus
from ai.backend.common.ids import ArtifactId, RegistryId, RevisionId
from ai.backend.infra.database.rows import row_of
from ai.backend.manager.artifacts.model import Artifact, FoundArtifact, FoundRevision, Revision
from ai.backend.manager.artifacts.tables import artifacts, revisions


def _new_value(column: Column[Any]) -> BindParameter[Any]:
    return bindparam(f"new_{column.name}", type_=column.type)


def _new_or_old(column: Column[Any]) -> ColumnElement[Any]:
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
    s: Connection, registry_id: RegistryId, scanned: Sequence[FoundArtifact], at: datetime, new_id: Callable[[], UUID]
) -> tuple[int, int]:
    """Writes a page, of whose duplicates the last one counts; returns how many artifacts and revisions are new."""
    page = {(one.type, one.name): one for one in scanned}
    names = sorted({name for _, name in page})
    query = select(_A.id, _A.type, _A.name).where(_A.registry_id == registry_id, _A.name.in_(names))
    ids = {(row.type, row.name): row.id for row in s.execute(query) if (row.type, row.name) in page}
    created, changed = [], []
    for key, one in page.items():
        values = row_of(one, without=["revisions"]) | {"extra": dict(one.extra), "scanned_at": at}
        if key in ids:
            del values["type"], values["name"]
            changed.append(_parameters(id=ids[key], **values))
        else:
            ids[key] = new_id()
            created.append(row_of(Artifact(id=ids[key], registry_id=registry_id, created_at=at, **values)))
    if created:
        s.execute(insert(artifacts), created)
    if changed:
        s.execute(_UPDATE_ARTIFACT, changed)
    found_revisions = {(ids[key], r.version): r for key, one in page.items() for r in one.revisions}
    return len(created), _record_revisions(s, found_revisions, at, new_id)


def _record_revisions(
    s: Connection,
    found_revisions: Mapping[tuple[ArtifactId, str], FoundRevision],
    at: datetime,
    new_id: Callable[[], UUID],
) -> int:
    """Writes revisions and returns the number of new ones."""
    artifact_ids = sorted({artifact_id for artifact_id, _ in found_revisions}, key=str)
    query = select(_R.id, _R.artifact_id, _R.version).where(_R.artifact_id.in_(artifact_ids))
    existing = {(row.artifact_id, row.version): row.id for row in s.execute(query)}
    created, changed = [], []
    for (artifact_id, version), one in found_revisions.items():
        values = row_of(one, without=["version"]) | {"source": dict(one.source)}
        if (artifact_id, version) in existing:
            changed.append(_parameters(id=existing[artifact_id, version], **values))
        else:
            values |= {"id": RevisionId(new_id()), "artifact_id": artifact_id, "version": version}
            created.append(row_of(Revision(status_changed=at, created_at=at, **values)))
    if created:
        s.execute(insert(revisions), created)
    if changed:
        s.execute(_UPDATE_REVISION, changed)
    return len(created)
