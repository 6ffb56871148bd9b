"""Stores virtual folders in SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, delete, func, insert, or_, select, update

from ai.backend.common.errors import Conflict, InvalidInput
from ai.backend.common.folders import FolderStatus
from ai.backend.common.ids import FolderId, GroupId, UserId
from ai.backend.core.lifecycle.folder import FolderTrigger, step
from ai.backend.infra.database import Database
from ai.backend.infra.database.rows import row_of
from ai.backend.manager.folders import sql_rows as r
from ai.backend.manager.folders.model import (
    Folder,
    FolderKind,
    FolderMount,
    FolderRow,
    FolderSelection,
    InvitationState,
    MountKind,
)
from ai.backend.manager.folders.sql_sharing import SqlFolderSharing, SqlQuotaLimits
from ai.backend.manager.folders.tables import folder_invitations, folder_permissions, folders, session_folders
from ai.backend.manager.identity.model import User
from ai.backend.manager.query.model import Filter, Junction, ListQuery, Page
from ai.backend.manager.query.sql import compile_filter, compile_order


def _filters_status(query_filter: Filter | None) -> bool:
    if isinstance(query_filter, Junction):
        return any(_filters_status(term) for term in query_filter.terms)
    return query_filter is not None and query_filter.field == "status"


def _selection_clauses(selection: FolderSelection) -> list[ColumnElement[bool]]:
    columns = folders.c
    clauses: list[ColumnElement[bool]] = []
    if selection.user_id is not None:
        shared_folder_ids = select(folder_permissions.c.folder_id).where(
            folder_permissions.c.user_id == selection.user_id
        )
        clause_of_kind: dict[FolderKind, ColumnElement[bool]] = {
            "own": columns.user_id == selection.user_id,
            "invited": and_(columns.user_id != selection.user_id, columns.id.in_(shared_folder_ids)),
            "project": columns.group_id.in_(selection.groups),
        }
        clauses.append(or_(*(clause_of_kind[kind] for kind in sorted(selection.kinds))))
    if selection.domain_name is not None:
        clauses.append(columns.domain_name == selection.domain_name)
    if selection.group_id is not None:
        clauses.append(columns.group_id == selection.group_id)
    if selection.owner_id is not None:
        clauses.append(columns.user_id == selection.owner_id)
    return clauses


def link_mounts(s: Connection, session_id: UUID, mounts: Sequence[FolderMount], at: datetime) -> None:
    """Records the folders that a new session mounts, in the transaction that inserts the session. Raises InvalidInput
    if one is no longer ready.
    """
    for mount in {mount.folder_id: mount for mount in mounts if mount.kind is MountKind.FOLDER}.values():
        is_ready = and_(folders.c.id == mount.folder_id, folders.c.status == FolderStatus.READY)
        if s.execute(update(folders).where(is_ready).values(last_used=at)).rowcount != 1:
            raise InvalidInput(
                f"The folder {mount.name!r} cannot be mounted: it is not there any more.",
                data={"config.mounts": f"gone: {mount.name}"},
            )
        s.execute(insert(session_folders), {"session_id": session_id, "folder_id": mount.folder_id})


class SqlFolderStore(SqlFolderSharing, SqlQuotaLimits):
    """Implements :class:`ai.backend.manager.folders.store.FolderStore` in SQL. ``live_sessions`` selects the id and
    name of live sessions.
    """

    def __init__(self, database: Database, live_sessions: Select[Any]) -> None:
        super().__init__(database)
        self._live_sessions = live_sessions.subquery()

    def _check_unused(self, s: Connection, folder: Row[Any]) -> None:
        """Raises Conflict if a live session mounts the folder or the folder is being cloned."""
        live_sessions, columns = self._live_sessions.c, folders.c
        mounting_sessions = select(live_sessions.name).join(
            session_folders, session_folders.c.session_id == live_sessions.id
        )
        session_name = s.execute(mounting_sessions.where(session_folders.c.folder_id == folder.id).limit(1)).scalar()
        clone_query = select(columns.name).where(
            columns.cloned_from == folder.id, columns.status == FolderStatus.CLONING
        )
        clone_name = s.execute(clone_query.limit(1)).scalar()
        if session_name is not None or clone_name is not None:
            usage_text = (
                f"the session {session_name!r} mounts it"
                if session_name is not None
                else f"it is being cloned as {clone_name!r}"
            )
            raise Conflict(f"The folder {folder.name!r} is in use: {usage_text}.", data={"name": folder.name})

    async def insert(self, folder: Folder, *, max_count: int = 0) -> None:
        def work(s: Connection) -> None:
            if folder.user_id is not None and r.uses_name(s, folder.user_id, folder.name, except_id=folder.id):
                raise r.name_taken_error(folder.name)
            with r.require_unique_name(folder.name):
                s.execute(insert(folders), row_of(folder))
            r.check_count(s, folder.user_id, folder.group_id, max_count)

        await self._db.run_write(work)

    async def get(self, folder_id: FolderId, *, user_id: UserId | None = None) -> FolderRow | None:
        rows = await self._db.fetch(r.FOLDER_BY_ID, {"me": user_id, "id": folder_id})
        return r.folder_row_of(rows[0]) if rows else None

    async def accessible(
        self, user_id: UserId, group_ids: Collection[GroupId], *, name: str | None = None
    ) -> list[FolderRow]:
        parameters = {"me": user_id, "groups": list(group_ids), "name": name}
        rows = await self._db.fetch(r.ACCESSIBLE_QUERY if name is None else r.ACCESSIBLE_BY_NAME_QUERY, parameters)
        return [r.folder_row_of(row) for row in rows]

    async def has_dotted(self, user_id: UserId) -> bool:
        return bool(await self._db.fetch(r.DOTTED_QUERY, {"me": user_id}))

    async def page(self, query: ListQuery, selection: FolderSelection) -> Page[FolderRow]:
        clauses = [*compile_filter(folders, query.filter), *_selection_clauses(selection)]
        if not _filters_status(query.filter):
            clauses.append(r.LIVE_FOLDER)
        order = compile_order(folders, query.order, (folders.c.created_at.desc(), folders.c.id.asc()))

        def work(s: Connection) -> Page[FolderRow]:
            total = s.execute(select(func.count()).select_from(folders).where(*clauses)).scalar_one()
            page = r.FOLDER_ROWS.where(*clauses).order_by(*order).limit(query.limit).offset(query.offset)
            rows = s.execute(page, {"me": selection.user_id})
            return Page(items=[r.folder_row_of(row) for row in rows], total_count=total)

        return await self._db.run_read(work)

    async def by_status(self, statuses: Collection[FolderStatus]) -> list[Folder]:
        query = select(folders).where(folders.c.status.in_(statuses)).order_by(folders.c.created_at, folders.c.id)
        return [r.folder_of(row) for row in await self._db.fetch(query)]

    async def expire(self, before: datetime, *, at: datetime, info: str) -> int:
        trash_status, trigger = FolderStatus.DELETE_PENDING, FolderTrigger.EXPIRED
        is_expired = and_(folders.c.status == trash_status, folders.c.status_changed < before)
        values = {"status": step(trash_status, trigger)[0], "status_changed": at, "status_info": info}
        return await self._db.execute(update(folders).where(is_expired).values(values))

    async def hand_over(self, folder_id: FolderId, new_owner: User, *, max_count: int = 0) -> None:
        columns = folder_invitations.c
        is_pending_invitation = and_(
            columns.folder_id == folder_id, columns.invitee == new_owner.email, columns.state == InvitationState.PENDING
        )

        def work(s: Connection) -> None:
            row = s.execute(select(folders).where(folders.c.id == folder_id).with_for_update()).one_or_none()
            if row is None or row.user_id is None or row.status is not FolderStatus.READY:
                raise Conflict("Only a user's folder that is ready can change hands.", data={"vfolder": "not ready"})
            self._check_unused(s, row)
            if r.uses_name(s, new_owner.uuid, row.name, except_id=folder_id):
                raise r.name_taken_error(row.name)
            values = {"user_id": new_owner.uuid, "domain_name": new_owner.domain_name}
            with r.require_unique_name(row.name):
                s.execute(update(folders).where(folders.c.id == folder_id).values(values))
            r.set_share(s, folder_id, new_owner.uuid, None)
            s.execute(delete(folder_invitations).where(is_pending_invitation))
            r.check_count(s, new_owner.uuid, None, max_count)

        await self._db.run_write(work)

    async def move(
        self,
        folder_id: FolderId,
        allowed_statuses: Collection[FolderStatus],
        new_status: FolderStatus,
        *,
        at: datetime,
        info: str | None = None,
        unless_used: bool = False,
        max_count: int = 0,
    ) -> bool:
        values: dict[str, Any] = {"status": new_status, "status_changed": at, "status_info": info}
        if new_status is not FolderStatus.CLONING:
            values["cloned_from"] = None
        is_restoration = new_status.is_live and not all(status.is_live for status in allowed_statuses)
        status_update = (
            update(folders).where(folders.c.id == folder_id, folders.c.status.in_(allowed_statuses)).values(values)
        )

        def work(s: Connection) -> bool:
            if not unless_used and not is_restoration:
                return s.execute(status_update).rowcount == 1
            row = s.execute(select(folders).where(folders.c.id == folder_id).with_for_update()).one_or_none()
            if row is None or row.status not in allowed_statuses:
                return False
            if unless_used:
                self._check_unused(s, row)
            if (
                is_restoration
                and row.user_id is not None
                and r.uses_name(s, row.user_id, row.name, except_id=folder_id)
            ):
                raise r.name_taken_error(row.name)
            with r.require_unique_name(row.name):
                s.execute(status_update)
            r.check_count(s, row.user_id, row.group_id, max_count)
            return True

        return await self._db.run_write(work)

    async def change(self, folder_id: FolderId, **values: Any) -> None:
        name = values.get("name")

        def work(s: Connection) -> None:
            owner = s.execute(select(folders.c.user_id).where(folders.c.id == folder_id)).scalar()
            if name is not None and owner is not None and r.uses_name(s, owner, name, except_id=folder_id):
                raise r.name_taken_error(name)
            with r.require_unique_name(str(name)):
                s.execute(update(folders).where(folders.c.id == folder_id).values(values))

        await self._db.run_write(work)
