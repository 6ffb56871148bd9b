"""Artifacts in SQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, and_, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from ai.backend.common.artifacts import RevisionStatus
from ai.backend.common.errors import Conflict, InvalidInput, NotFound
from ai.backend.common.ids import ArtifactId, RegistryId, RevisionId
from ai.backend.infra.database import Database
from ai.backend.infra.database.batching import chunks
from ai.backend.manager.artifacts import sql_scans
from ai.backend.manager.artifacts.model import (
    Artifact,
    ArtifactQuery,
    ArtifactRegistry,
    ArtifactRow,
    FoundArtifact,
    Revision,
    RevisionRow,
)
from ai.backend.manager.artifacts.tables import artifacts, registries, revisions, session_artifacts
from ai.backend.manager.folders.model import FolderMount, MountKind
from ai.backend.manager.query.model import Page
from ai.backend.manager.secrets.sealer import Sealer, opened_credentials, sealed_credentials

_USABLE = revisions.c.status == RevisionStatus.AVAILABLE
_HAS_FILES = or_(revisions.c.status != RevisionStatus.SCANNED, revisions.c.residue)
R = TypeVar("R", ArtifactRow, RevisionRow)


def _of(kind: type[Any], row: Row[Any], prefix: str) -> Any:
    return kind(**{f.name: row._mapping[f"{prefix}_{f.name}"] for f in fields(kind)})


def _columns(table: Table, prefix: str) -> list[ColumnElement[Any]]:
    return [column.label(f"{prefix}_{column.name}") for column in table.c]


def _artifacts() -> Select[Any]:
    return select(*_columns(artifacts, "a"), *_columns(registries, "g")).join(
        registries, registries.c.id == artifacts.c.registry_id
    )


def _rows() -> Select[Any]:
    return (
        select(*_columns(revisions, "r"), *_columns(artifacts, "a"), *_columns(registries, "g"))
        .join(artifacts, artifacts.c.id == revisions.c.artifact_id)
        .join(registries, registries.c.id == artifacts.c.registry_id)
    )


def _revision_row(row: Row[Any]) -> RevisionRow:
    return RevisionRow(
        revision=_of(Revision, row, "r"), artifact=_of(Artifact, row, "a"), registry=_of(ArtifactRegistry, row, "g")
    )


def _with_revisions(s: Connection, query: Select[Any], *, available_only: bool) -> list[ArtifactRow]:
    rows = s.execute(query).all()
    of_artifacts = revisions.c.artifact_id.in_([row.a_id for row in rows])
    revisions_query = select(revisions).where(of_artifacts, *([_USABLE] if available_only else []))
    by_artifact: dict[UUID, list[Revision]] = {}
    for row in s.execute(revisions_query.order_by(revisions.c.created_at.desc(), revisions.c.version)):
        by_artifact.setdefault(row.artifact_id, []).append(Revision(**row._mapping))
    return [
        ArtifactRow(
            artifact=_of(Artifact, row, "a"),
            registry=_of(ArtifactRegistry, row, "g"),
            revisions=by_artifact.get(row.a_id, ()),
        )
        for row in rows
    ]


def _with_revision(*where: ColumnElement[bool]) -> ColumnElement[bool]:
    return select(revisions.c.id).where(revisions.c.artifact_id == artifacts.c.id, *where).exists()


def _check_no_files(s: Connection, *where: ColumnElement[bool]) -> None:
    """Raises Conflict while a matching revision has files or is being imported."""
    row = s.execute(_rows().where(_HAS_FILES, *where).limit(1)).one_or_none()
    if row is not None:
        match = _revision_row(row)
        status = match.revision.status
        state = "being cleaned up" if status is RevisionStatus.SCANNED else status
        raise Conflict(f"{match.ref} is {state}: clean it up first.")


def link_artifacts(s: Connection, session_id: UUID, mounts: Sequence[FolderMount], at: datetime) -> None:
    """Records the revisions that a session mounts, in the transaction that inserts the session. Raises InvalidInput: a
    revision is no longer available."""
    for mount in {m.folder_id: m for m in mounts if m.kind is MountKind.ARTIFACT}.values():
        usable = and_(revisions.c.id == mount.folder_id, _USABLE)
        if s.execute(update(revisions).where(usable).values(last_used=at)).rowcount != 1:
            raise InvalidInput(
                f"The artifact {mount.name!r} cannot be mounted: it is not available any more.",
                data={"config.mounts": f"gone: {mount.name}"},
            )
        s.execute(insert(session_artifacts), {"session_id": session_id, "revision_id": mount.folder_id})


class SqlArtifactStore:
    """Implements :class:`ai.backend.manager.artifacts.store.ArtifactStore`. ``live_sessions`` selects ``id`` and
    ``name`` of the sessions that are not final."""

    def __init__(self, database: Database, live_sessions: Select[Any], sealer: Sealer | None = None) -> None:
        self._db = database
        self._live_sessions = live_sessions.subquery()
        self._sealer = sealer or Sealer()

    def _opened(self, row: R) -> R:
        registry = row.registry
        credentials = opened_credentials(self._sealer, registry.id, registry.credentials)
        return replace(row, registry=replace(registry, credentials=credentials))

    # ---- registries ----

    async def registries(self) -> Sequence[ArtifactRegistry]:
        def work(s: Connection) -> list[ArtifactRegistry]:
            return [ArtifactRegistry(**row._mapping) for row in s.execute(select(registries).order_by("name"))]

        return [
            replace(r, credentials=opened_credentials(self._sealer, r.id, r.credentials))
            for r in await self._db.run_read(work)
        ]

    async def add_registry(self, registry: ArtifactRegistry) -> None:
        sealed = sealed_credentials(self._sealer, registry.id, registry.credentials)

        def work(s: Connection) -> None:
            s.execute(insert(registries), {**asdict(registry), "credentials": sealed})

        try:
            await self._db.run_write(work)
        except IntegrityError:
            raise Conflict(f"There is a registry {registry.name!r} already.", data={"name": "taken"}) from None

    async def change_registry(self, registry_id: RegistryId, **values: Any) -> None:
        if "credentials" in values:
            values["credentials"] = sealed_credentials(self._sealer, registry_id, values["credentials"])

        def work(s: Connection) -> None:
            s.execute(update(registries).where(registries.c.id == registry_id).values(values))

        await self._db.run_write(work)

    async def remove_registry(self, registry_id: RegistryId) -> None:
        def work(s: Connection) -> None:
            _check_no_files(s, artifacts.c.registry_id == registry_id)
            artifact_ids = select(artifacts.c.id).where(artifacts.c.registry_id == registry_id)
            s.execute(delete(revisions).where(revisions.c.artifact_id.in_(artifact_ids)))
            s.execute(delete(artifacts).where(artifacts.c.registry_id == registry_id))
            s.execute(delete(registries).where(registries.c.id == registry_id))

        await self._db.run_write(work)

    # ---- scans ----

    async def record(
        self, registry_id: RegistryId, scanned: Sequence[FoundArtifact], *, at: datetime, new_id: Callable[[], UUID]
    ) -> tuple[int, int]:
        def work(s: Connection) -> tuple[int, int]:
            if s.execute(select(registries.c.id).where(registries.c.id == registry_id)).scalar() is None:
                raise NotFound("The registry was removed meanwhile.", data={"registry": "gone"})
            return sql_scans.record(s, registry_id, scanned, at, new_id)

        return await self._db.run_write(work)

    # ---- artifacts ----

    async def page(self, query: ArtifactQuery) -> Page[ArtifactRow]:
        where: list[ColumnElement[bool]] = []
        if query.type is not None:
            where.append(artifacts.c.type == query.type)
        if query.registry_id is not None:
            where.append(artifacts.c.registry_id == query.registry_id)
        if query.search:
            where.append(artifacts.c.name.icontains(query.search, autoescape=True))
        if query.status is not None:
            where.append(_with_revision(revisions.c.status == query.status))
        if query.available_only:
            where.append(_with_revision(_USABLE))

        def work(s: Connection) -> Page[ArtifactRow]:
            total = s.execute(select(func.count()).select_from(artifacts).where(*where)).scalar_one()
            ordered = _artifacts().where(*where).order_by(artifacts.c.name, artifacts.c.type, artifacts.c.id)
            page = ordered.limit(query.limit).offset(query.offset)
            return Page(items=_with_revisions(s, page, available_only=query.available_only), total_count=total)

        page = await self._db.run_read(work)
        return replace(page, items=[self._opened(row) for row in page.items])

    async def find(self, ref: str, *, available_only: bool = False) -> Sequence[ArtifactRow]:
        try:
            named = artifacts.c.id == UUID(ref)
        except ValueError:
            named = artifacts.c.name == ref
        query = _artifacts().where(named).order_by(artifacts.c.created_at, artifacts.c.id)
        if available_only:
            query = query.where(_with_revision(_USABLE))

        def work(s: Connection) -> list[ArtifactRow]:
            return _with_revisions(s, query, available_only=available_only)

        return [self._opened(row) for row in await self._db.run_read(work)]

    async def remove_artifact(self, artifact_id: ArtifactId) -> None:
        def work(s: Connection) -> None:
            _check_no_files(s, artifacts.c.id == artifact_id)
            s.execute(delete(revisions).where(revisions.c.artifact_id == artifact_id))
            s.execute(delete(artifacts).where(artifacts.c.id == artifact_id))

        await self._db.run_write(work)

    # ---- revisions ----

    async def revisions(self, ids: Collection[RevisionId]) -> Sequence[RevisionRow]:
        def work(s: Connection) -> list[RevisionRow]:
            rows: list[RevisionRow] = []
            for chunk in chunks(ids):
                rows += [_revision_row(row) for row in s.execute(_rows().where(revisions.c.id.in_(chunk)))]
            return rows

        return [self._opened(row) for row in await self._db.run_read(work)]

    async def under_way(self) -> Sequence[RevisionRow]:
        moving = or_(revisions.c.status.in_((RevisionStatus.PULLING, RevisionStatus.PULLED)), revisions.c.residue)
        query = _rows().where(moving).order_by(revisions.c.status_changed, revisions.c.id)

        def work(s: Connection) -> list[RevisionRow]:
            return [_revision_row(row) for row in s.execute(query)]

        return [self._opened(row) for row in await self._db.run_read(work)]

    async def move(
        self, seen: Revision, *, at: datetime, unless_mounted: bool = False, **values: Any
    ) -> Revision | None:
        c = revisions.c
        same = and_(c.id == seen.id, c.generation == seen.generation)
        changed = {"generation": seen.generation + 1, **values}
        if values.get("status", seen.status) is not seen.status:
            changed["status_changed"] = at

        def work(s: Connection) -> Revision | None:
            if not s.execute(update(revisions).where(same).values(changed)).rowcount:
                return None
            session = self._mounted_by(s, seen.id) if unless_mounted else None
            if session is not None:
                raise Conflict(f"the session {session!r} mounts it", data={"session": session})
            return Revision(**s.execute(select(revisions).where(c.id == seen.id)).one()._mapping)

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
