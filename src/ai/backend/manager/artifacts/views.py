"""REST replies about artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import msgspec

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

T = TypeVar("T", bound=msgspec.Struct)
ProgressOf: TypeAlias = Callable[[Revision], ImportProgress | None]


def _text(value: Any) -> Any:
    """Returns ids, words of an enumeration and times as text, and other values as they are."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, UUID) else value


def _item(kind: type[T], value: Any, **others: Any) -> T:
    """Builds a reply from the attributes of a value that have the names of its fields, and others."""
    names = [name for name in kind.__struct_fields__ if name not in others]
    return kind(**{name: _text(getattr(value, name)) for name in names}, **others)


def registry_item(registry: ArtifactRegistry) -> schema.RegistryItem:
    return _item(schema.RegistryItem, registry, credentials=sorted(registry.credentials))


def _revision(kind: type[T], revision: Revision, progress_of: ProgressOf, **others: Any) -> T:
    stages = revision.stages
    storage = f"{stages.proxy}:{stages.archive}" if stages is not None and stages.archive else None
    return _item(kind, revision, storage=storage, progress=progress_of(revision), **others)


def artifact_item(
    row: ArtifactRow, progress_of: ProgressOf, kind: type[schema.ArtifactItem] = schema.ArtifactItem
) -> schema.ArtifactItem:
    revisions = [_revision(schema.RevisionItem, revision, progress_of) for revision in row.revisions]
    registry, registry_type = row.registry.name, row.registry.type.value
    return _item(kind, row.artifact, registry=registry, registry_type=registry_type, revisions=revisions)


def revision_info(row: RevisionRow, progress_of: ProgressOf) -> schema.RevisionInfo:
    names = {"artifact": row.artifact.name, "type": row.artifact.type.value, "registry": row.registry.name}
    return _revision(schema.RevisionInfo, row.revision, progress_of, **names)


def revision_list(rows: Iterable[RevisionRow], progress_of: ProgressOf) -> schema.RevisionList:
    return schema.RevisionList(revisions=[revision_info(row, progress_of) for row in rows])


def file_list(row: RevisionRow, files: Sequence[ArtifactFile], progress_of: ProgressOf) -> schema.FileList:
    return schema.FileList(revision=revision_info(row, progress_of), files=files)
