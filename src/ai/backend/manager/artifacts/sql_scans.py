"""Writing what scans find: a page in a few statements, however much of it is known already."""

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


def _told(column: Column[Any]) -> BindParameter[Any]:
    return bindparam(f"new_{column.name}", type_=column.type)


def _if_told(column: Column[Any]) -> ColumnElement[Any]:
    """What is not told stays."""
    return func.coalesce(_told(column), column)


def _unless_here(column: Column[Any]) -> ColumnElement[Any]:
    """What is available is as large as it is here, whatever the registry has by now."""
    return case((revisions.c.status == RevisionStatus.AVAILABLE, column), else_=_if_told(column))


_A, _R = artifacts.c, revisions.c
_UPDATE_ARTIFACT = (
    update(artifacts)
    .where(_A.id == _told(_A.id))
    .values(
        description=_told(_A.description),
        extra=_told(_A.extra),
        scanned_at=_told(_A.scanned_at),
        readme=_if_told(_A.readme),
    )
)
_UPDATE_REVISION = (
    update(revisions)
    .where(_R.id == _told(_R.id))
    .values(
        source=_told(_R.source),
        remote_status=_told(_R.remote_status),
        digest=_if_told(_R.digest),
        size=_unless_here(_R.size),
        file_count=_unless_here(_R.file_count),
    )
)


def _new(**values: Any) -> dict[str, Any]:
    return {f"new_{name}": value for name, value in values.items()}


def record(
    s: Connection, registry_id: RegistryId, found: Sequence[FoundArtifact], at: datetime, mint: Callable[[], UUID]
) -> Recorded:
    """Write one page; of what comes twice, the later counts."""
    page = {(one.type, one.name): one for one in found}
    known = _known_artifacts(s, registry_id, page)
    made = {
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
        if key not in known
    }
    if made:
        s.execute(insert(artifacts), [asdict(artifact) for artifact in made.values()])
    if known:
        told = [
            _new(id=id_, description=one.description, extra=dict(one.extra), scanned_at=at, readme=one.readme)
            for key, id_ in known.items()
            for one in [page[key]]
        ]
        s.execute(_UPDATE_ARTIFACT, told)
    ids = known | {key: artifact.id for key, artifact in made.items()}
    wanted = {(ids[key], r.version): r for key, one in page.items() for r in one.revisions}
    return Recorded(len(made), _record_revisions(s, wanted, at, mint))


def _known_artifacts(
    s: Connection, registry_id: RegistryId, page: Mapping[tuple[ArtifactType, str], FoundArtifact]
) -> dict[tuple[ArtifactType, str], ArtifactId]:
    names = sorted({name for _, name in page})
    query = select(_A.id, _A.type, _A.name).where(_A.registry_id == registry_id, _A.name.in_(names))
    return {(row.type, row.name): row.id for row in s.execute(query) if (row.type, row.name) in page}


def _record_revisions(
    s: Connection, wanted: Mapping[tuple[ArtifactId, str], FoundRevision], at: datetime, mint: Callable[[], UUID]
) -> int:
    """How many are new."""
    artifact_ids = sorted({artifact_id for artifact_id, _ in wanted}, key=str)
    query = select(_R.id, _R.artifact_id, _R.version).where(_R.artifact_id.in_(artifact_ids))
    known = {(row.artifact_id, row.version): row.id for row in s.execute(query)}
    made = [
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
        for (artifact_id, version), one in wanted.items()
        if (artifact_id, version) not in known
    ]
    if made:
        s.execute(insert(revisions), [row_of(one) for one in made])
    told = [
        _new(
            id=known[key],
            source=dict(one.source),
            remote_status=one.remote_status,
            digest=one.digest,
            size=one.size,
            file_count=one.file_count,
        )
        for key, one in wanted.items()
        if key in known
    ]
    if told:
        s.execute(_UPDATE_REVISION, told)
    return len(made)
