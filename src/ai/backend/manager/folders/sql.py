"""Virtual folders in SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from ai.backend.common.errors import Conflict, InvalidInput
from ai.backend.common.folders import FolderPermission, FolderStatus
from ai.backend.common.ids import FolderId, GroupId, InvitationId, UserId
from ai.backend.common.volume_paths import QuotaScopeId
from ai.backend.core.lifecycle.folder import FolderTrigger, step
from ai.backend.infra.database import Database
from ai.backend.infra.database.batching import chunks
from ai.backend.manager.folders.model import (
    Folder,
    FolderKind,
    FolderMount,
    FolderRow,
    FolderSelection,
    Invitation,
    InvitationState,
    MountKind,
    ScopeLimit,
    Share,
)
from ai.backend.manager.folders.sql_quotas import _limits
from ai.backend.manager.folders.sql_rows import (
    _ACCESSIBLE,
    _ACCESSIBLE_BY_NAME,
    _BY_ID,
    _FIELDS,
    _LIVE_FOLDER,
    _ROWS,
    _check_count,
    _folder,
    _folder_row,
    _set_share,
    _taken,
    _uses,
)
from ai.backend.manager.folders.sql_sharing import _INVITATION_FIELDS
from ai.backend.manager.folders.tables import (
    folder_invitations,
    folder_permissions,
    folders,
    quota_limits,
    session_folders,
)
from ai.backend.manager.identity import tables as identity_tables
from ai.backend.manager.identity.model import User
from ai.backend.manager.query.model import Filter, Junction, ListQuery, Page
from ai.backend.manager.query.sql import compile_filter, compile_order
from ai.backend.manager.sessions import tables as sessions_tables


def _users_of(s: Connection, folder_id: FolderId) -> str | None:
    """What needs the folder now, in words."""
    mounting = (
        select(sessions_tables.sessions.c.name)
        .join(session_folders, session_folders.c.session_id == sessions_tables.sessions.c.id)
        .where(session_folders.c.folder_id == folder_id, sessions_tables.LIVE)
        .limit(1)
    )
    name = s.execute(mounting).scalar()
    if name is not None:
        return f"the session {name!r} mounts it"
    clone = select(folders.c.name).where(folders.c.cloned_from == folder_id, folders.c.status == FolderStatus.CLONING)
    name = s.execute(clone.limit(1)).scalar()
    return f"it is being cloned as {name!r}" if name is not None else None


def _speaks_of_status(wanted: Filter | None) -> bool:
    if isinstance(wanted, Junction):
        return any(_speaks_of_status(term) for term in wanted.terms)
    return wanted is not None and wanted.field == "status"


def _selected(wanted: FolderSelection) -> list[ColumnElement[bool]]:
    c = folders.c
    where: list[ColumnElement[bool]] = []
    if wanted.user_id is not None:
        shared = select(folder_permissions.c.folder_id).where(folder_permissions.c.user_id == wanted.user_id)
        kinds: dict[FolderKind, ColumnElement[bool]] = {
            "own": c.user_id == wanted.user_id,
            "invited": and_(c.user_id != wanted.user_id, c.id.in_(shared)),
            "project": c.group_id.in_(wanted.groups),
        }
        where.append(or_(*(kinds[kind] for kind in sorted(wanted.kinds))))
    if wanted.domain_name is not None:
        where.append(c.domain_name == wanted.domain_name)
    if wanted.group_id is not None:
        where.append(or_(c.group_id.is_(None), c.group_id == wanted.group_id))
    if wanted.owner_id is not None:
        where.append(c.user_id == wanted.owner_id)
    return where


def link_mounts(s: Connection, session_id: UUID, mounts: Sequence[FolderMount], at: datetime) -> None:
    """Note, in the transaction that inserts a session, which folders it mounts.

    Raises:
        InvalidInput: one of them is not ready any more.
    """
    for mount in {m.folder_id: m for m in mounts if m.kind is MountKind.FOLDER}.values():
        ready = and_(folders.c.id == mount.folder_id, folders.c.status == FolderStatus.READY)
        if s.execute(update(folders).where(ready).values(last_used=at)).rowcount != 1:
            raise InvalidInput(
                f"The folder {mount.name!r} cannot be mounted: it is not there any more.",
                data={"config.mounts": f"gone: {mount.name}"},
            )
        s.execute(insert(session_folders), {"session_id": session_id, "folder_id": mount.folder_id})


class SqlFolderStore:
    """Implements :class:`ai.backend.manager.folders.store.FolderStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    # ---- folders ----

    async def insert(self, folder: Folder, *, max_count: int = 0) -> None:
        def work(s: Connection) -> None:
            if folder.user_id is not None and _uses(s, folder.user_id, folder.name, but=folder.id):
                raise _taken(folder.name)
            s.execute(insert(folders), {name: getattr(folder, name) for name in _FIELDS})
            _check_count(s, folder.user_id, folder.group_id, max_count)

        try:
            await self._db.run_write(work)
        except IntegrityError:
            raise _taken(folder.name) from None

    async def get(self, folder_id: FolderId, *, user_id: UserId | None = None) -> FolderRow | None:
        def work(s: Connection) -> FolderRow | None:
            row = s.execute(_BY_ID, {"me": user_id, "id": folder_id}).one_or_none()
            return _folder_row(row) if row is not None else None

        return await self._db.run_read(work)

    async def accessible(
        self, user_id: UserId, group_ids: Collection[GroupId], *, name: str | None = None
    ) -> list[FolderRow]:
        given = {"me": user_id, "groups": list(group_ids), "name": name}
        query = _ACCESSIBLE if name is None else _ACCESSIBLE_BY_NAME

        def work(s: Connection) -> list[FolderRow]:
            return [_folder_row(row) for row in s.execute(query, given)]

        return await self._db.run_read(work)

    async def page(self, query: ListQuery, selection: FolderSelection) -> Page[FolderRow]:
        where: list[ColumnElement[bool]] = [*compile_filter(folders, query.filter), *_selected(selection)]
        if not _speaks_of_status(query.filter):
            where.append(_LIVE_FOLDER)
        order = compile_order(folders, query.order, (folders.c.created_at.desc(), folders.c.id.asc()))

        def work(s: Connection) -> Page[FolderRow]:
            total = s.execute(select(func.count()).select_from(folders).where(*where)).scalar_one()
            page = _ROWS.where(*where).order_by(*order).limit(query.limit).offset(query.offset)
            rows = s.execute(page, {"me": selection.user_id})
            return Page(items=[_folder_row(row) for row in rows], total_count=total)

        return await self._db.run_read(work)

    async def by_status(self, statuses: Collection[FolderStatus]) -> list[Folder]:
        query = select(folders).where(folders.c.status.in_(statuses)).order_by(folders.c.created_at, folders.c.id)

        def work(s: Connection) -> list[Folder]:
            return [_folder(row) for row in s.execute(query)]

        return await self._db.run_read(work)

    async def expire(self, before: datetime, *, at: datetime, info: str) -> int:
        trashed, trigger = FolderStatus.DELETE_PENDING, FolderTrigger.EXPIRED
        old = and_(folders.c.status == trashed, folders.c.status_changed < before)
        values = {"status": step(trashed, trigger)[0], "status_changed": at, "status_info": info}

        def work(s: Connection) -> int:
            return s.execute(update(folders).where(old).values(values)).rowcount

        return await self._db.run_write(work)

    async def hand_over(self, folder_id: FolderId, to: User, *, unless_used: bool = True, max_count: int = 0) -> None:
        names: list[str] = []

        def work(s: Connection) -> None:
            row = s.execute(select(folders).where(folders.c.id == folder_id).with_for_update()).one_or_none()
            if row is None or row.user_id is None or row.status is not FolderStatus.READY:
                raise Conflict("Only a user's folder that is ready can change hands.", data={"vfolder": "not ready"})
            names.append(row.name)
            user = _users_of(s, folder_id) if unless_used else None
            if user is not None:
                raise Conflict(f"The folder {row.name!r} is in use: {user}.", data={"name": row.name})
            if _uses(s, to.uuid, row.name, but=folder_id):
                raise _taken(row.name)
            values = {"user_id": to.uuid, "domain_name": to.domain_name}
            s.execute(update(folders).where(folders.c.id == folder_id).values(values))
            _set_share(s, folder_id, to.uuid, None)
            c = folder_invitations.c
            s.execute(
                delete(folder_invitations).where(
                    c.folder_id == folder_id, c.invitee == to.email, c.state == InvitationState.PENDING
                )
            )
            _check_count(s, to.uuid, None, max_count)

        try:
            await self._db.run_write(work)
        except IntegrityError:
            raise _taken(names[0]) from None

    async def move(
        self,
        folder_id: FolderId,
        allowed: Collection[FolderStatus],
        to: FolderStatus,
        *,
        at: datetime,
        info: str | None = None,
        unless_used: bool = False,
        max_count: int = 0,
    ) -> bool:
        values: dict[str, Any] = {"status": to, "status_changed": at, "status_info": info}
        if to is not FolderStatus.CLONING:
            values["cloned_from"] = None
        names: list[str] = []
        comes_back = to.is_live and not all(status.is_live for status in allowed)
        change = update(folders).where(folders.c.id == folder_id, folders.c.status.in_(allowed)).values(values)

        def work(s: Connection) -> bool:
            if unless_used or comes_back:
                row = s.execute(select(folders).where(folders.c.id == folder_id).with_for_update()).one_or_none()
                if row is None or row.status not in allowed:
                    return False
                user = _users_of(s, folder_id) if unless_used else None
                if user is not None:
                    raise Conflict(f"The folder {row.name!r} is in use: {user}.", data={"name": row.name})
                names.append(row.name)
                if comes_back and row.user_id is not None and _uses(s, row.user_id, row.name, but=folder_id):
                    raise _taken(row.name)
                s.execute(change)
                _check_count(s, row.user_id, row.group_id, max_count)
                return True
            return s.execute(change).rowcount == 1

        try:
            return await self._db.run_write(work)
        except IntegrityError:
            raise _taken(names[0]) from None

    async def change(self, folder_id: FolderId, **values: Any) -> None:
        def work(s: Connection) -> None:
            name = values.get("name")
            if name is not None:
                owner = s.execute(select(folders.c.user_id).where(folders.c.id == folder_id)).scalar()
                if owner is not None and _uses(s, owner, name, but=folder_id):
                    raise _taken(name)
            s.execute(update(folders).where(folders.c.id == folder_id).values(values))

        try:
            await self._db.run_write(work)
        except IntegrityError:
            raise _taken(str(values.get("name"))) from None

    # ---- quota scopes ----

    async def scope_limits(self) -> list[ScopeLimit]:
        kept = and_(folders.c.status != FolderStatus.DELETE_COMPLETE, folders.c.unmanaged_path.is_(None))
        query = select(folders.c.host, folders.c.quota_scope).where(kept).distinct()

        def work(s: Connection) -> list[ScopeLimit]:
            return _limits(s, [(row.host, QuotaScopeId.parse(row.quota_scope)) for row in s.execute(query)])

        return await self._db.run_read(work)

    async def scope_limit(self, host: str, scope: QuotaScopeId) -> ScopeLimit:
        return (await self._db.run_read(lambda s: _limits(s, [(host, scope)])))[0]

    async def set_scope_limit(self, host: str, scope: QuotaScopeId, limit_bytes: int | None) -> None:
        c = quota_limits.c

        def work(s: Connection) -> None:
            s.execute(delete(quota_limits).where(c.host == host, c.quota_scope == str(scope)))
            if limit_bytes is not None:
                row = {"host": host, "quota_scope": str(scope), "limit_bytes": limit_bytes}
                s.execute(insert(quota_limits), row)

        await self._db.run_write(work)

    # ---- shares ----

    async def share(self, folder_id: FolderId, user_id: UserId, permission: FolderPermission | None) -> bool:
        def work(s: Connection) -> bool:
            return _set_share(s, folder_id, user_id, permission)

        return await self._db.run_write(work)

    async def shares(self, folder_ids: Collection[FolderId]) -> list[Share]:
        c = folder_permissions.c
        query = select(c.folder_id, c.user_id, c.permission, identity_tables.users.c.email).join(
            identity_tables.users, identity_tables.users.c.uuid == c.user_id
        )

        def work(s: Connection) -> list[Share]:
            found: list[Share] = []
            for some in chunks(folder_ids):
                part = query.where(c.folder_id.in_(some)).order_by(c.folder_id, identity_tables.users.c.email)
                found += [Share(**row._mapping) for row in s.execute(part)]
            return found

        return await self._db.run_read(work)

    # ---- invitations ----

    async def invite(self, invitation: Invitation) -> bool:
        row = {name: getattr(invitation, name) for name in _INVITATION_FIELDS}

        def work(s: Connection) -> None:
            s.execute(insert(folder_invitations), row)

        try:
            await self._db.run_write(work)
        except IntegrityError:
            return False
        return True

    async def _invitations(self, *where: ColumnElement[bool]) -> list[Invitation]:
        c = folder_invitations.c
        query = select(folder_invitations, folders.c.name.label("folder_name")).join(
            folders, folders.c.id == c.folder_id
        )
        query = query.where(*where).order_by(c.created_at, c.id)

        def work(s: Connection) -> list[Invitation]:
            return [Invitation(**row._mapping) for row in s.execute(query)]

        return await self._db.run_read(work)

    async def invitation(self, invitation_id: InvitationId) -> Invitation | None:
        found = await self._invitations(folder_invitations.c.id == invitation_id)
        return found[0] if found else None

    async def invitations(self, *, inviter: str | None = None, invitee: str | None = None) -> Sequence[Invitation]:
        c = folder_invitations.c
        where = [c.state == InvitationState.PENDING, _LIVE_FOLDER]
        where += [c.inviter == inviter] if inviter is not None else []
        where += [c.invitee == invitee] if invitee is not None else []
        return await self._invitations(*where)

    async def answer(
        self, invitation_id: InvitationId, state: InvitationState, *, at: datetime, user_id: UserId | None = None
    ) -> bool:
        c = folder_invitations.c
        pending = and_(c.id == invitation_id, c.state == InvitationState.PENDING)

        def work(s: Connection) -> bool:
            row = s.execute(select(folder_invitations).where(pending)).one_or_none()
            if row is None:
                return False
            s.execute(update(folder_invitations).where(pending).values(state=state, modified_at=at))
            if state is InvitationState.ACCEPTED and user_id is not None:
                name = s.execute(select(folders.c.name).where(folders.c.id == row.folder_id, _LIVE_FOLDER)).scalar()
                if name is None:
                    return False
                if _uses(s, user_id, name, but=row.folder_id):
                    raise _taken(name)
                _set_share(s, row.folder_id, user_id, row.permission)
            return True

        return await self._db.run_write(work)

    async def amend(self, invitation_id: InvitationId, permission: FolderPermission, *, at: datetime) -> bool:
        c = folder_invitations.c
        pending = and_(c.id == invitation_id, c.state == InvitationState.PENDING)

        def work(s: Connection) -> bool:
            values = {"permission": permission, "modified_at": at}
            return bool(s.execute(update(folder_invitations).where(pending).values(values)).rowcount)

        return await self._db.run_write(work)
