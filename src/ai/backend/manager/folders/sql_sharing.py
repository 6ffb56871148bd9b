"""Shares and invitations in SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, insert, select, update
from sqlalchemy.exc import IntegrityError

from ai.backend.common.folders import FolderPermission
from ai.backend.common.ids import FolderId, InvitationId, UserId
from ai.backend.infra.database import Database
from ai.backend.infra.database.batching import chunks
from ai.backend.manager.folders.model import Invitation, InvitationState, Share
from ai.backend.manager.folders.sql_rows import LIVE_FOLDER, name_taken, set_share, uses_name
from ai.backend.manager.folders.tables import folder_invitations, folder_permissions, folders
from ai.backend.manager.identity import tables as identity_tables

_INVITATION_FIELDS = tuple(f.name for f in fields(Invitation) if f.name != "folder_name")


class SqlFolderSharing:
    """Stores shares and invitations; part of :class:`ai.backend.manager.folders.sql.SqlFolderStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def share(self, folder_id: FolderId, user_id: UserId, permission: FolderPermission | None) -> bool:
        def work(s: Connection) -> bool:
            return set_share(s, folder_id, user_id, permission)

        return await self._db.run_write(work)

    async def shares(self, folder_ids: Collection[FolderId]) -> list[Share]:
        c = folder_permissions.c
        query = select(c.folder_id, c.user_id, c.permission, identity_tables.users.c.email).join(
            identity_tables.users, identity_tables.users.c.uuid == c.user_id
        )

        def work(s: Connection) -> list[Share]:
            shares: list[Share] = []
            for chunk in chunks(folder_ids):
                part = query.where(c.folder_id.in_(chunk)).order_by(c.folder_id, identity_tables.users.c.email)
                shares += [Share(**row._mapping) for row in s.execute(part)]
            return shares

        return await self._db.run_read(work)

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
        matches = await self._invitations(folder_invitations.c.id == invitation_id)
        return matches[0] if matches else None

    async def invitations(self, *, inviter: str | None = None, invitee: str | None = None) -> Sequence[Invitation]:
        c = folder_invitations.c
        where = [c.state == InvitationState.PENDING, LIVE_FOLDER]
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
                name = s.execute(select(folders.c.name).where(folders.c.id == row.folder_id, LIVE_FOLDER)).scalar()
                if name is None:
                    return False
                if uses_name(s, user_id, name, but=row.folder_id):
                    raise name_taken(name)
                set_share(s, row.folder_id, user_id, row.permission)
            return True

        return await self._db.run_write(work)

    async def amend(self, invitation_id: InvitationId, permission: FolderPermission, *, at: datetime) -> bool:
        c = folder_invitations.c
        pending = and_(c.id == invitation_id, c.state == InvitationState.PENDING)

        def work(s: Connection) -> bool:
            values = {"permission": permission, "modified_at": at}
            return bool(s.execute(update(folder_invitations).where(pending).values(values)).rowcount)

        return await self._db.run_write(work)
