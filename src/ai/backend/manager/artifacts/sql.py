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
    """Returns the SQL value that keeps a column of available revisions, and takes the scan's value
    for other revisions.
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
    s: Connection, registry_id: RegistryId, scanned: Sequence[ScannedArtifact], at: datetime, new_id: Callable[[], UUID]
) -> tuple[int, int]:
    """Writes a page of a scan and returns the numbers of new artifacts and revisions; the last of duplicates counts."""
    page = {(artifact.type, artifact.name): artifact for artifact in scanned}
    names = sorted({name for _, name in page})
    query = select(_ARTIFACT.id, _ARTIFACT.type, _ARTIFACT.name).where(
        _ARTIFACT.registry_id == registry_id, _ARTIFACT.name.in_(names)
    )
    ids = {(row.type, row.name): row.id for row in s.execute(query) if (row.type, row.name) in page}
    created, changed = [], []
    for key, artifact in page.items():
        values = row_of(artifact, without=["revisions"]) | {"extra": dict(artifact.extra), "scanned_at": at}
        if key in ids:
            del values["type"], values["name"]
            changed.append(_update_parameters(id=ids[key], **values))
        else:
            ids[key] = new_id()
            created.append(row_of(Artifact(id=ids[key], registry_id=registry_id, created_at=at, **values)))
    if created:
        s.execute(insert(artifacts), created)
    if changed:
        s.execute(_UPDATE_ARTIFACT, changed)
    scanned_revisions = {
        (ids[key], revision.version): revision for key, artifact in page.items() for revision in artifact.revisions
    }
    return len(created), _record_revisions(s, scanned_revisions, at, new_id)


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
    existing = {(row.artifact_id, row.version): row.id for row in s.execute(query)}
    created, changed = [], []
    for (artifact_id, version), revision in scanned_revisions.items():
        values = row_of(revision, without=["version"]) | {"source": dict(revision.source)}
        if (artifact_id, version) in existing:
            changed.append(_update_parameters(id=existing[artifact_id, version], **values))
        else:
            values |= {"id": RevisionId(new_id()), "artifact_id": artifact_id, "version": version}
            created.append(row_of(Revision(status_changed=at, created_at=at, **values)))
    if created:
        s.execute(insert(revisions), created)
    if changed:
        s.execute(_UPDATE_REVISION, changed)
    return len(created)


_IS_AVAILABLE = revisions.c.status == RevisionStatus.AVAILABLE
_HAS_FILES = or_(revisions.c.status != RevisionStatus.SCANNED, revisions.c.residue)
R = TypeVar("R", ArtifactRow, RevisionRow)


_FIELDS: Mapping[type[Any], Sequence[str]] = {
    Revision: Revision.__struct_fields__,
    Artifact: Artifact.__struct_fields__,
    ArtifactRegistry: [each.name for each in fields(ArtifactRegistry)],
}


def _model(kind: type[Any], row: Row[Any], prefix: str) -> Any:
    return kind(**{name: row._mapping[f"{prefix}_{name}"] for name in _FIELDS[kind]})


def _labelled(table: Table, prefix: str) -> list[ColumnElement[Any]]:
    return [column.label(f"{prefix}_{column.name}") for column in table.c]


def _artifacts() -> Select[Any]:
    return select(*_labelled(artifacts, "a"), *_labelled(registries, "g")).join(
        registries, registries.c.id == artifacts.c.registry_id
    )


def _revisions() -> Select[Any]:
    return (
        select(*_labelled(revisions, "r"), *_labelled(artifacts, "a"), *_labelled(registries, "g"))
        .join(artifacts, artifacts.c.id == revisions.c.artifact_id)
        .join(registries, registries.c.id == artifacts.c.registry_id)
    )


def _revision_row(row: Row[Any]) -> RevisionRow:
    return RevisionRow(
        revision=_model(Revision, row, "r"),
        artifact=_model(Artifact, row, "a"),
        registry=_model(ArtifactRegistry, row, "g"),
    )


def _with_revisions(s: Connection, query: Select[Any], *, available_only: bool) -> list[ArtifactRow]:
    rows = s.execute(query).all()
    of_artifacts = revisions.c.artifact_id.in_([row.a_id for row in rows])
    revisions_query = select(revisions).where(of_artifacts, *([_IS_AVAILABLE] if available_only else []))
    by_artifact: dict[UUID, list[Revision]] = {}
    for row in s.execute(revisions_query.order_by(revisions.c.created_at.desc(), revisions.c.version)):
        by_artifact.setdefault(row.artifact_id, []).append(Revision(**row._mapping))
    return [
        ArtifactRow(
            artifact=_model(Artifact, row, "a"),
            registry=_model(ArtifactRegistry, row, "g"),
            revisions=by_artifact.get(row.a_id, ()),
        )
        for row in rows
    ]


def _with_revision(*where: ColumnElement[bool]) -> ColumnElement[bool]:
    return select(revisions.c.id).where(revisions.c.artifact_id == artifacts.c.id, *where).exists()


def _check_no_files(s: Connection, *where: ColumnElement[bool]) -> None:
    """Raises Conflict if a revision that meets the conditions has files or is being imported."""
    row = s.execute(_revisions().where(_HAS_FILES, *where).limit(1)).one_or_none()
    if row is not None:
        match = _revision_row(row)
        status = match.revision.status
        state = "being cleaned up" if status is RevisionStatus.SCANNED else status
        raise Conflict(f"{match.ref} is {state}: clean it up first.")


def link_artifacts(s: Connection, session_id: UUID, mounts: Sequence[FolderMount], at: datetime) -> None:
    """Records the revisions that a new session mounts, in the transaction that inserts the session. Raises
    InvalidInput: a revision is no longer available.
    """
    for mount in {mount.folder_id: mount for mount in mounts if mount.kind is MountKind.ARTIFACT}.values():
        usable = and_(revisions.c.id == mount.folder_id, _IS_AVAILABLE)
        if s.execute(update(revisions).where(usable).values(last_used=at)).rowcount != 1:
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
        def work(s: Connection) -> Sequence[Row[Any]]:
            where = () if viewer is None else (has_viewer(registries.c.viewers, names_of(s, viewer)),)
            return s.execute(select(registries).where(*where).order_by("name")).all()

        rows = await self._db.run_read(work)
        return [self._opened_registry(ArtifactRegistry(**row._mapping)) for row in rows]

    async def add_registry(self, registry: ArtifactRegistry) -> None:
        sealed = seal_credentials(self._sealer, registry.id, registry.credentials)
        row = {**asdict(registry), "credentials": sealed}
        await self._db.run_write(lambda s: add_row(s, registries, row, "registry"))

    async def change_registry(self, registry_id: RegistryId, **values: Any) -> None:
        if "credentials" in values:
            values["credentials"] = seal_credentials(self._sealer, registry_id, values["credentials"])
        query = update(registries).where(registries.c.id == registry_id).values(values)
        await self._db.run_write(lambda s: s.execute(query))

    async def remove_registry(self, registry_id: RegistryId) -> None:
        def work(s: Connection) -> None:
            _check_no_files(s, artifacts.c.registry_id == registry_id)
            artifact_ids = select(artifacts.c.id).where(artifacts.c.registry_id == registry_id)
            s.execute(delete(revisions).where(revisions.c.artifact_id.in_(artifact_ids)))
            s.execute(delete(artifacts).where(artifacts.c.registry_id == registry_id))
            s.execute(delete(registries).where(registries.c.id == registry_id))

        await self._db.run_write(work)

    async def record(
        self, registry_id: RegistryId, scanned: Sequence[ScannedArtifact], *, at: datetime, new_id: Callable[[], UUID]
    ) -> tuple[int, int]:
        def work(s: Connection) -> tuple[int, int]:
            if s.execute(select(registries.c.id).where(registries.c.id == registry_id)).scalar() is None:
                raise NotFound("The registry was removed meanwhile.", data={"registry": "gone"})
            return _record_scan(s, registry_id, scanned, at, new_id)

        return await self._db.run_write(work)

    async def page(self, query: ArtifactQuery) -> Page[ArtifactRow]:
        clauses: list[ColumnElement[bool]] = []
        if query.type is not None:
            clauses.append(artifacts.c.type == query.type)
        if query.registry_id is not None:
            clauses.append(artifacts.c.registry_id == query.registry_id)
        if query.search:
            clauses.append(artifacts.c.name.icontains(query.search, autoescape=True))
        if query.status is not None:
            clauses.append(_with_revision(revisions.c.status == query.status))

        def work(s: Connection) -> Page[ArtifactRow]:
            visible = list(clauses)
            if query.viewer is not None:
                visible += (_with_revision(_IS_AVAILABLE), is_open_to(s, query.viewer))
            counted = select(func.count()).select_from(artifacts)
            total = s.execute(counted.join(registries).where(*visible)).scalar_one()
            ordered = _artifacts().where(*visible).order_by(artifacts.c.name, artifacts.c.type, artifacts.c.id)
            page = ordered.limit(query.limit).offset(query.offset)
            items = _with_revisions(s, page, available_only=query.viewer is not None)
            return Page(items=items, total_count=total)

        page = await self._db.run_read(work)
        return replace(page, items=[self._with_opened_credentials(row) for row in page.items])

    async def find(self, ref: str, *, viewer: Viewer | None = None) -> Sequence[ArtifactRow]:
        try:
            condition = artifacts.c.id == UUID(ref)
        except ValueError:
            condition = artifacts.c.name == ref

        def work(s: Connection) -> list[ArtifactRow]:
            query = _artifacts().where(condition).order_by(artifacts.c.created_at, artifacts.c.id)
            if viewer is not None:
                query = query.where(_with_revision(_IS_AVAILABLE), is_open_to(s, viewer))
            return _with_revisions(s, query, available_only=viewer is not None)

        return [self._with_opened_credentials(row) for row in await self._db.run_read(work)]

    async def viewer_ids(self, viewers: Sequence[str]) -> tuple[str, ...]:
        return await self._db.run_read(lambda s: tuple(dict.fromkeys(viewer_id(s, viewer) for viewer in viewers)))

    async def change_artifact(self, artifact_id: ArtifactId, *, viewers: tuple[str, ...] | None) -> None:
        query = update(artifacts).where(artifacts.c.id == artifact_id).values(viewers=viewers)
        await self._db.run_write(lambda s: s.execute(query))

    async def remove_artifact(self, artifact_id: ArtifactId) -> None:
        def work(s: Connection) -> None:
            _check_no_files(s, artifacts.c.id == artifact_id)
            s.execute(delete(revisions).where(revisions.c.artifact_id == artifact_id))
            s.execute(delete(artifacts).where(artifacts.c.id == artifact_id))

        await self._db.run_write(work)

    async def revisions(self, ids: Collection[RevisionId], *, viewer: Viewer | None = None) -> Sequence[RevisionRow]:
        queries = [_revisions().where(revisions.c.id.in_(chunk)) for chunk in chunks(ids)]
        return await self._read_revisions(*queries, viewer=viewer)

    async def under_way(self) -> Sequence[RevisionRow]:
        is_moving = or_(revisions.c.status.in_((RevisionStatus.PULLING, RevisionStatus.PULLED)), revisions.c.residue)
        return await self._read_revisions(
            _revisions().where(is_moving).order_by(revisions.c.status_changed, revisions.c.id)
        )

    async def _read_revisions(self, *queries: Select[Any], viewer: Viewer | None = None) -> list[RevisionRow]:
        def work(s: Connection) -> list[Row[Any]]:
            usable = () if viewer is None else (_IS_AVAILABLE, is_open_to(s, viewer))
            return [row for query in queries for row in s.execute(query.where(*usable))]

        return [self._with_opened_credentials(_revision_row(row)) for row in await self._db.run_read(work)]

    async def move(
        self, seen: Revision, *, at: datetime, unless_mounted: bool = False, **values: Any
    ) -> Revision | None:
        columns = revisions.c
        is_unchanged = and_(columns.id == seen.id, columns.generation == seen.generation)
        changed = {"generation": seen.generation + 1, **values}
        if values.get("status", seen.status) is not seen.status:
            changed["status_changed"] = at

        def work(s: Connection) -> Revision | None:
            if not s.execute(update(revisions).where(is_unchanged).values(changed)).rowcount:
                return None
            session = self._mounted_by(s, seen.id) if unless_mounted else None
            if session is not None:
                raise Conflict(f"the session {session!r} mounts it", data={"session": session})
            return Revision(**s.execute(select(revisions).where(columns.id == seen.id)).one()._mapping)

        return await self._db.run_write(work)

    def _mounted_by(self, s: Connection, revision_id: RevisionId) -> str | None:
        live = self._live_sessions.c
        mounting = (
            select(live.name)
            .join(session_artifacts, session_artifacts.c.session_id == live.id)
            .where(session_artifacts.c.revision_id == revision_id)
        )
        name: str | None = s.execute(mounting.limit(1)).scalar()
        return name
