"""REST replies about artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from ai.backend.infra.http.fields import iso
from ai.backend.manager.artifacts import schemas as schema
from ai.backend.manager.artifacts.model import (
    ArtifactFile,
    ArtifactRegistry,
    ArtifactRow,
    ImportProgress,
    Revision,
    RevisionRow,
)

ProgressOf: TypeAlias = Callable[[Revision], ImportProgress | None]


def registry_item(registry: ArtifactRegistry) -> schema.RegistryItem:
    return schema.RegistryItem(
        id=str(registry.id),
        name=registry.name,
        type=registry.type.value,
        url=registry.url,
        credentials=sorted(registry.credentials),
        storages=dict(registry.storages),
        created_at=iso(registry.created_at) or "",
        modified_at=iso(registry.modified_at) or "",
    )


def _revision(revision: Revision, progress_of: ProgressOf) -> dict[str, Any]:
    stages = revision.stages
    return {
        "id": str(revision.id),
        "artifact_id": str(revision.artifact_id),
        "version": revision.version,
        "status": revision.status.value,
        "status_info": revision.status_info,
        "status_changed": iso(revision.status_changed) or "",
        "remote_status": revision.remote_status.value if revision.remote_status is not None else None,
        "size": revision.size,
        "file_count": revision.file_count,
        "digest": revision.digest,
        "is_outdated": revision.is_outdated,
        "storage": f"{stages.proxy}:{stages.archive}" if stages is not None and stages.archive else None,
        "progress": progress_of(revision),
        "created_at": iso(revision.created_at) or "",
        "last_used": iso(revision.last_used),
    }


def _artifact(row: ArtifactRow, progress_of: ProgressOf) -> dict[str, Any]:
    artifact = row.artifact
    return {
        "id": str(artifact.id),
        "type": artifact.type.value,
        "name": artifact.name,
        "description": artifact.description,
        "registry": row.registry.name,
        "registry_type": row.registry.type.value,
        "extra": dict(artifact.extra),
        "scanned_at": iso(artifact.scanned_at) or "",
        "created_at": iso(artifact.created_at) or "",
        "revisions": [schema.RevisionItem(**_revision(r, progress_of)) for r in row.revisions],
    }


def artifact_item(row: ArtifactRow, progress_of: ProgressOf) -> schema.ArtifactItem:
    return schema.ArtifactItem(**_artifact(row, progress_of))


def artifact_info(row: ArtifactRow, progress_of: ProgressOf) -> schema.ArtifactInfo:
    return schema.ArtifactInfo(**_artifact(row, progress_of), readme=row.artifact.readme)


def revision_info(row: RevisionRow, progress_of: ProgressOf) -> schema.RevisionInfo:
    return schema.RevisionInfo(
        **_revision(row.revision, progress_of),
        artifact=row.artifact.name,
        type=row.artifact.type.value,
        registry=row.registry.name,
    )


def revision_list(rows: Iterable[RevisionRow], progress_of: ProgressOf) -> schema.RevisionList:
    return schema.RevisionList(revisions=[revision_info(row, progress_of) for row in rows])


def file_list(row: RevisionRow, files: Sequence[ArtifactFile], progress_of: ProgressOf) -> schema.FileList:
    return schema.FileList(revision=revision_info(row, progress_of), files=files)
