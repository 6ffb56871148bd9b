"""Stores artifacts, their registries and the results of scans in SQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from ai.backend.common.artifacts import RevisionStatus
from ai.backend.common.errors import Conflict, InvalidInput, NotFound
from ai.backend.common.ids import ArtifactId, RegistryId, RevisionId
from ai.backend.common.structs import replace
from ai.backend.infra.database import Database
from ai.backend.infra.database.batching import chunks
from ai.backend.infra.database.rows import add_row, row_of
from ai.backend.manager.artifacts.model import (
    Artifact,
    ArtifactQuery,
    ArtifactRegistry,
    ArtifactRow,
    Revision,
    RevisionRow,
    ScannedArtifact,
    ScannedRevision,
    Viewer,
)
from ai.backend.manager.artifacts.sql_viewers import has_viewer, is_open_to, names_of, viewer_id
from ai.backend.manager.artifacts.tables import artifacts, registries, revisions, session_artifacts
from ai.backend.manager.folders.model import FolderMount, MountKind
from ai.backend.manager.query.model import Page
from ai.backend.manager.secrets.sealer import Sealer, open_credentials, seal_credentials


def _new_value(column: Column[Any]) -> BindParameter[Any]:
    return bindparam(f"new_{column.name}", type_=column.type)


def _new_or_old(column: Column[Any]) -> ColumnElement[Any]:
    return func.coalesce(_new_value(column), column)


def _unless_available(column: Column[Any]) -> ColumnElement[Any]:
    """Returns the SQL value that a scan writes into a column of revisions: available revisions keep their old value.

    Other revisions take the scan's value.
    """
    return case((revisions.c.status == RevisionStatus.AVAILABLE, column), else_=_new_or_old(column))


_ARTIFACT, _REVISION = artifacts.c, revisions.c
_UPDATE_ARTIFACT = (
    update(artifacts)
    .where(_ARTIFACT.id == _new_value(_ARTIFACT.id))
    .values(
        description=_new_value(_ARTIFACT.description),
        extra=_new_value(_ARTIFACT.extra),
        restricted=_new_value(_ARTIFACT.restricted),
        scanned_at=_new_value(_ARTIFACT.scanned_at),
        readme=_new_or_old(_ARTIFACT.readme),
    )
)
_UPDATE_REVISION = (
    update(revisions)
    .where(_REVISION.id == _new_value(_REVISION.id))
    .values(
        source=_new_value(_REVISION.source),
        remote_status=_new_value(_REVISION.remote_status),
        digest=_new_or_old(_REVISION.digest),
        size=_unless_available(_REVISION.size),
        file_count=_unless_available(_REVISION.file_count),
    )
)


def _update_parameters(**values: Any) -> dict[str, Any]:
    return {f"new_{name}": value for name, value in values.items()}


def _record_scan(
    s: Connection,
    registry_id: RegistryId,
    scanned_artifacts: Sequence[ScannedArtifact],
    at: datetime,
    new_id: Callable[[], UUID],
) -> tuple[int, int]:
    """Writes the artifacts of a page of a scan. Returns the numbers of new artifacts and of new revisions.

    If the page has an artifact twice, the last one counts.
    """
    artifact_by_key = {(artifact.type, artifact.name): artifact for artifact in scanned_artifacts}
    names = sorted({name for _, name in artifact_by_key})
    query = select(_ARTIFACT.id, _ARTIFACT.type, _ARTIFACT.name).where(
        _ARTIFACT.registry_id == registry_id, _ARTIFACT.name.in_(names)
    )
    id_by_key = {(row.type, row.name): row.id for row in s.execute(query) if (row.type, row.name) in artifact_by_key}
    new_rows, changed_rows = [], []
    for key, artifact in artifact_by_key.items():
        values = row_of(artifact, without=["revisions"]) | {"extra": dict(artifact.extra), "scanned_at": at}
        if key in id_by_key:
            del values["type"], values["name"]
            changed_rows.append(_update_parameters(id=id_by_key[key], **values))
        else:
            id_by_key[key] = new_id()
            new_rows.append(row_of(Artifact(id=id_by_key[key], registry_id=registry_id, created_at=at, **values)))
    if new_rows:
        s.execute(insert(artifacts), new_rows)
    if changed_rows:
        s.execute(_UPDATE_ARTIFACT, changed_rows)
    scanned_revisions = {
        (id_by_key[key], revision.version): revision
        for key, artifact in artifact_by_key.items()
        for revision in artifact.revisions
    }
    return len(new_rows), _record_revisions(s, scanned_revisions, at, new_id)


def _record_revisions(
    s: Connection,
    scanned_revisions: Mapping[tuple[ArtifactId, str], ScannedRevision],
    at: datetime,
    new_id: Callable[[], UUID],
) -> int:
    """Writes revisions and returns the number of new ones."""
    artifact_ids = sorted({artifact_id for artifact_id, _ in scanned_revisions}, key=str)
    query = select(_REVISION.id, _REVISION.artifact_id, _REVISION.version).where(
        _REVISION.artifact_id.in_(artifact_ids)
    )
    existing_revisions = {(row.artifact_id, row.version): row.id for row in s.execute(query)}
    new_rows, changed_rows = [], []
    for (artifact_id, version), revision in scanned_revisions.items():
        values = row_of(revision, without=["version"]) | {"source": dict(revision.source)}
        if (artifact_id, version) in existing_revisions:
            changed_rows.append(_update_parameters(id=existing_revisions[artifact_id, version], **values))
        else:
            values |= {"id": RevisionId(new_id()), "artifact_id": artifact_id, "version": version}
            new_rows.append(row_of(Revision(status_changed=at, created_at=at, **values)))
    if new_rows:
        s.execute(insert(revisions), new_rows)
    if changed_rows:
        s.execute(_UPDATE_REVISION, changed_rows)
    return len(new_rows)


_IS_AVAILABLE = revisions.c.status == RevisionStatus.AVAILABLE
_HAS_FILES = or_(revisions.c.status != RevisionStatus.SCANNED, revisions.c.residue)
R = TypeVar("R", ArtifactRow, RevisionRow)


_FIELDS: Mapping[type[Any], Sequence[str]] = {
    Revision: Revision.__struct_fields__,
    Artifact: Artifact.__struct_fields__,
    ArtifactRegistry: [model_field.name for model_field in fields(ArtifactRegistry)],
}


def _read_model(kind: type[Any], row: Row[Any], prefix: str) -> Any:
    return kind(**{name: row._mapping[f"{prefix}_{name}"] for name in _FIELDS[kind]})


def _labelled_columns(table: Table, prefix: str) -> list[ColumnElement[Any]]:
    return [column.label(f"{prefix}_{column.name}") for column in table.c]


def _select_artifacts() -> Select[Any]:
    return select(*_labelled_columns(artifacts, "a"), *_labelled_columns(registries, "g")).join(
        registries, registries.c.id == artifacts.c.registry_id
    )


def _select_revisions() -> Select[Any]:
    return (
        select(
            *_labelled_columns(revisions, "r"), *_labelled_columns(artifacts, "a"), *_labelled_columns(registries, "g")
        )
        .join(artifacts, artifacts.c.id == revisions.c.artifact_id)
        .join(registries, registries.c.id == artifacts.c.registry_id)
    )


def _revision_row(row: Row[Any]) -> RevisionRow:
    return RevisionRow(
        revision=_read_model(Revision, row, "r"),
        artifact=_read_model(Artifact, row, "a"),
        registry=_read_model(ArtifactRegistry, row, "g"),
    )


def _with_revisions(s: Connection, query: Select[Any], *, available_only: bool) -> list[ArtifactRow]:
    rows = s.execute(query).all()
    is_of_artifacts = revisions.c.artifact_id.in_([row.a_id for row in rows])
    revisions_query = select(revisions).where(is_of_artifacts, *([_IS_AVAILABLE] if available_only else []))
    revisions_of_artifact: dict[UUID, list[Revision]] = {}
    for row in s.execute(revisions_query.order_by(revisions.c.created_at.desc(), revisions.c.version)):
        revisions_of_artifact.setdefault(row.artifact_id, []).append(Revision(**row._mapping))
    return [
        ArtifactRow(
            artifact=_read_model(Artifact, row, "a"),
            registry=_read_model(ArtifactRegistry, row, "g"),
            revisions=revisions_of_artifact.get(row.a_id, ()),
        )
        for row in rows
    ]


def _has_revision(*where: ColumnElement[bool]) -> ColumnElement[bool]:
    return select(revisions.c.id).where(revisions.c.artifact_id == artifacts.c.id, *where).exists()


def _check_no_files(s: Connection, *where: ColumnElement[bool]) -> None:
    """Raises Conflict if a revision that meets the conditions has files or is being imported."""
    row = s.execute(_select_revisions().where(_HAS_FILES, *where).limit(1)).one_or_none()
    if row is not None:
        revision_row = _revision_row(row)
        status = revision_row.revision.status
        status_text = "being cleaned up" if status is RevisionStatus.SCANNED else status
        raise Conflict(f"{revision_row.ref} is {status_text}: clean it up first.")


def link_artifacts(s: Connection, session_id: UUID, mounts: Sequence[FolderMount], at: datetime) -> None:
    """Records the revisions that a new session mounts, in the transaction that inserts the session. Raises
    InvalidInput: a revision is no longer available.
    """
    for mount in {mount.folder_id: mount for mount in mounts if mount.kind is MountKind.ARTIFACT}.values():
        is_usable = and_(revisions.c.id == mount.folder_id, _IS_AVAILABLE)
        if s.execute(update(revisions).where(is_usable).values(last_used=at)).rowcount != 1:
            raise InvalidInput(
                f"The artifact {mount.name!r} cannot be mounted: it is not available any more.",
                data={"config.mounts": f"gone: {mount.name}"},
            )
        s.execute(insert(session_artifacts), {"session_id": session_id, "revision_id": mount.folder_id})


class SqlArtifactStore:
    """Implements :class:`ai.backend.manager.artifacts.store.ArtifactStore` in SQL. ``live_sessions`` selects ``id`` and
    ``name`` of the sessions that are not final.
    """

    def __init__(self, database: Database, live_sessions: Select[Any], sealer: Sealer | None = None) -> None:
        self._db = database
        self._live_sessions = live_sessions.subquery()
        self._sealer = sealer or Sealer()

    def _with_opened_credentials(self, row: R) -> R:
        return replace(row, registry=self._opened_registry(row.registry))

    def _opened_registry(self, registry: ArtifactRegistry) -> ArtifactRegistry:
        credentials = open_credentials(self._sealer, registry.id, registry.credentials)
        return replace(registry, credentials=credentials)

    async def registries(self, *, viewer: Viewer | None = None) -> Sequence[ArtifactRegistry]:
        def read_registries(s: Connection) -> Sequence[Row[Any]]:
            conditions = () if viewer is None else (has_viewer(registries.c.viewers, names_of(s, viewer)),)
            return s.execute(select(registries).where(*conditions).order_by("name")).all()

        rows = await self._db.run_read(read_registries)
        return [self._opened_registry(ArtifactRegistry(**row._mapping)) for row in rows]

    async def add_registry(self, registry: ArtifactRegistry) -> None:
        sealed_values = seal_credentials(self._sealer, registry.id, registry.credentials)
        row = {**asdict(registry), "credentials": sealed_values}
        await self._db.run_write(lambda s: add_row(s, registries, row, "registry"))

    async def change_registry(self, registry_id: RegistryId, **values: Any) -> None:
        if "credentials" in values:
            values["credentials"] = seal_credentials(self._sealer, registry_id, values["credentials"])
        query = update(registries).where(registries.c.id == registry_id).values(values)
        await self._db.run_write(lambda s: s.execute(query))

    async def remove_registry(self, registry_id: RegistryId) -> None:
        def delete_registry(s: Connection) -> None:
            _check_no_files(s, artifacts.c.registry_id == registry_id)
            artifact_ids = select(artifacts.c.id).where(artifacts.c.registry_id == registry_id)
            s.execute(delete(revisions).where(revisions.c.artifact_id.in_(artifact_ids)))
            s.execute(delete(artifacts).where(artifacts.c.registry_id == registry_id))
            s.execute(delete(registries).where(registries.c.id == registry_id))

        await self._db.run_write(delete_registry)

    async def record(
        self,
        registry_id: RegistryId,
        scanned_artifacts: Sequence[ScannedArtifact],
        *,
        at: datetime,
        new_id: Callable[[], UUID],
    ) -> tuple[int, int]:
        def write_scan(s: Connection) -> tuple[int, int]:
            if s.execute(select(registries.c.id).where(registries.c.id == registry_id)).scalar() is None:
                raise NotFound("The registry was removed meanwhile.", data={"registry": "gone"})
            return _record_scan(s, registry_id, scanned_artifacts, at, new_id)

        return await self._db.run_write(write_scan)

    async def page(self, query: ArtifactQuery) -> Page[ArtifactRow]:
        clauses: list[ColumnElement[bool]] = []
        if query.type is not None:
            clauses.append(artifacts.c.type == query.type)
        if query.registry_id is not None:
            clauses.append(artifacts.c.registry_id == query.registry_id)
        if query.search:
            clauses.append(artifacts.c.name.icontains(query.search, autoescape=True))
        if query.status is not None:
            clauses.append(_has_revision(revisions.c.status == query.status))

        def read_page(s: Connection) -> Page[ArtifactRow]:
            visibility_clauses = list(clauses)
            if query.viewer is not None:
                visibility_clauses += (_has_revision(_IS_AVAILABLE), is_open_to(s, query.viewer))
            count_query = select(func.count()).select_from(artifacts)
            total_count = s.execute(count_query.join(registries).where(*visibility_clauses)).scalar_one()
            ordered_query = (
                _select_artifacts()
                .where(*visibility_clauses)
                .order_by(artifacts.c.name, artifacts.c.type, artifacts.c.id)
            )
            page = ordered_query.limit(query.limit).offset(query.offset)
            items = _with_revisions(s, page, available_only=query.viewer is not None)
            return Page(items=items, total_count=total_count)

        page = await self._db.run_read(read_page)
        return replace(page, items=[self._with_opened_credentials(row) for row in page.items])

    async def find(self, ref: str, *, viewer: Viewer | None = None) -> Sequence[ArtifactRow]:
        try:
            condition = artifacts.c.id == UUID(ref)
        except ValueError:
            condition = artifacts.c.name == ref

        def read_artifacts(s: Connection) -> list[ArtifactRow]:
            query = _select_artifacts().where(condition).order_by(artifacts.c.created_at, artifacts.c.id)
            if viewer is not None:
                query = query.where(_has_revision(_IS_AVAILABLE), is_open_to(s, viewer))
            return _with_revisions(s, query, available_only=viewer is not None)

        return [self._with_opened_credentials(row) for row in await self._db.run_read(read_artifacts)]

    async def viewer_ids(self, viewers: Sequence[str]) -> tuple[str, ...]:
        return await self._db.run_read(lambda s: tuple(dict.fromkeys(viewer_id(s, viewer) for viewer in viewers)))

    async def change_artifact(self, artifact_id: ArtifactId, *, viewers: tuple[str, ...] | None) -> None:
        query = update(artifacts).where(artifacts.c.id == artifact_id).values(viewers=viewers)
        await self._db.run_write(lambda s: s.execute(query))

    async def remove_artifact(self, artifact_id: ArtifactId) -> None:
        def delete_artifact(s: Connection) -> None:
            _check_no_files(s, artifacts.c.id == artifact_id)
            s.execute(delete(revisions).where(revisions.c.artifact_id == artifact_id))
            s.execute(delete(artifacts).where(artifacts.c.id == artifact_id))

        await self._db.run_write(delete_artifact)

    async def revisions(self, ids: Collection[RevisionId], *, viewer: Viewer | None = None) -> Sequence[RevisionRow]:
        queries = [_select_revisions().where(revisions.c.id.in_(chunk)) for chunk in chunks(ids)]
        return await self._read_revisions(*queries, viewer=viewer)

    async def revisions_in_progress(self) -> Sequence[RevisionRow]:
        is_in_progress = or_(
            revisions.c.status.in_((RevisionStatus.PULLING, RevisionStatus.PULLED)), revisions.c.residue
        )
        return await self._read_revisions(
            _select_revisions().where(is_in_progress).order_by(revisions.c.status_changed, revisions.c.id)
        )

    async def _read_revisions(self, *queries: Select[Any], viewer: Viewer | None = None) -> list[RevisionRow]:
        def read_rows(s: Connection) -> list[Row[Any]]:
            usable_only = () if viewer is None else (_IS_AVAILABLE, is_open_to(s, viewer))
            return [row for query in queries for row in s.execute(query.where(*usable_only))]

        return [self._with_opened_credentials(_revision_row(row)) for row in await self._db.run_read(read_rows)]

    async def move(
        self, loaded_revision: Revision, *, at: datetime, unless_mounted: bool = False, **values: Any
    ) -> Revision | None:
        new_values = revisions.c
        is_unchanged = and_(new_values.id == loaded_revision.id, new_values.generation == loaded_revision.generation)
        updated_rows = {"generation": loaded_revision.generation + 1, **values}
        if values.get("status", loaded_revision.status) is not loaded_revision.status:
            updated_rows["status_changed"] = at

        def move_revision(s: Connection) -> Revision | None:
            if not s.execute(update(revisions).where(is_unchanged).values(updated_rows)).rowcount:
                return None
            session = self._mounted_by(s, loaded_revision.id) if unless_mounted else None
            if session is not None:
                raise Conflict(f"the session {session!r} mounts it", data={"session": session})
            return Revision(**s.execute(select(revisions).where(new_values.id == loaded_revision.id)).one()._mapping)

        return await self._db.run_write(move_revision)

    def _mounted_by(self, s: Connection, revision_id: RevisionId) -> str | None:
        live_columns = self._live_sessions.c
        mounting_query = (
            select(live_columns.name)
            .join(session_artifacts, session_artifacts.c.session_id == live_columns.id)
            .where(session_artifacts.c.revision_id == revision_id)
        )
        name: str | None = s.execute(mounting_query.limit(1)).scalar()
        return name
