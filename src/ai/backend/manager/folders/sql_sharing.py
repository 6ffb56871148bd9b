"""Stores shares, invitations and limits of quota scopes in SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from ai.backend.common.folders import FolderPermission, FolderStatus
from ai.backend.common.ids import FolderId, InvitationId, UserId
from ai.backend.common.volume_paths import QuotaScopeId, QuotaScopeKind
from ai.backend.infra.database import Database
from ai.backend.infra.database.batching import chunks
from ai.backend.infra.database.rows import row_of
from ai.backend.manager.folders.model import Invitation, InvitationState, ScopeLimit, Share
from ai.backend.manager.folders.sql_rows import LIVE_FOLDER, name_taken_error, set_share, uses_name
from ai.backend.manager.folders.tables import folder_invitations, folder_permissions, folders, quota_limits
from ai.backend.manager.identity import tables as identity_tables


class SqlFolderSharing:
    """Stores shares and invitations; part of :class:`ai.backend.manager.folders.sql.SqlFolderStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def share(self, folder_id: FolderId, user_id: UserId, permission: FolderPermission | None) -> bool:
        return await self._db.run_write(lambda s: set_share(s, folder_id, user_id, permission))

    async def shares(self, folder_ids: Collection[FolderId]) -> list[Share]:
        share_columns, users = folder_permissions.c, identity_tables.users.c
        query = select(share_columns.folder_id, share_columns.user_id, share_columns.permission, users.email).join(
            identity_tables.users, users.uuid == share_columns.user_id
        )
        query = query.order_by(share_columns.folder_id, users.email)

        def work(s: Connection) -> list[Share]:
            rows_of_chunks = [
                s.execute(query.where(share_columns.folder_id.in_(chunk))).all() for chunk in chunks(folder_ids)
            ]
            return [Share(**row._mapping) for chunk_rows in rows_of_chunks for row in chunk_rows]

        return await self._db.run_read(work)

    async def invite(self, invitation: Invitation) -> bool:
        try:
            await self._db.execute(insert(folder_invitations), row_of(invitation, without=("folder_name",)))
        except IntegrityError:
            return False
        return True

    async def _select_invitations(self, *where: ColumnElement[bool]) -> list[Invitation]:
        columns = folder_invitations.c
        query = select(folder_invitations, folders.c.name.label("folder_name")).join(folders)
        rows = await self._db.fetch(query.where(*where).order_by(columns.created_at, columns.id))
        return [Invitation(**row._mapping) for row in rows]

    async def invitation(self, invitation_id: InvitationId) -> Invitation | None:
        matches = await self._select_invitations(folder_invitations.c.id == invitation_id)
        return matches[0] if matches else None

    async def invitations(self, *, inviter: str | None = None, invitee: str | None = None) -> Sequence[Invitation]:
        columns = folder_invitations.c
        where = [columns.state == InvitationState.PENDING, LIVE_FOLDER]
        where += [columns.inviter == inviter] if inviter is not None else []
        where += [columns.invitee == invitee] if invitee is not None else []
        return await self._select_invitations(*where)

    async def answer(
        self, invitation_id: InvitationId, state: InvitationState, *, at: datetime, user_id: UserId | None = None
    ) -> bool:
        is_pending = _is_pending(invitation_id)

        def work(s: Connection) -> bool:
            row = s.execute(select(folder_invitations).where(is_pending)).one_or_none()
            if row is None:
                return False
            s.execute(update(folder_invitations).where(is_pending).values(state=state, modified_at=at))
            if state is InvitationState.ACCEPTED and user_id is not None:
                name = s.execute(select(folders.c.name).where(folders.c.id == row.folder_id, LIVE_FOLDER)).scalar()
                if name is None:
                    return False
                if uses_name(s, user_id, name, except_id=row.folder_id):
                    raise name_taken_error(name)
                set_share(s, row.folder_id, user_id, row.permission)
            return True

        return await self._db.run_write(work)

    async def amend(self, invitation_id: InvitationId, permission: FolderPermission, *, at: datetime) -> bool:
        permission_update = update(folder_invitations).where(_is_pending(invitation_id))
        return bool(await self._db.execute(permission_update.values(permission=permission, modified_at=at)))


def _is_pending(invitation_id: InvitationId) -> ColumnElement[bool]:
    columns = folder_invitations.c
    return and_(columns.id == invitation_id, columns.state == InvitationState.PENDING)


class SqlQuotaLimits:
    """Stores limits of quota scopes; part of :class:`ai.backend.manager.folders.sql.SqlFolderStore`."""

    _db: Database

    async def scope_limits(self) -> list[ScopeLimit]:
        has_files = and_(folders.c.status != FolderStatus.DELETE_COMPLETE, folders.c.unmanaged_path.is_(None))
        query = select(folders.c.host, folders.c.quota_scope).where(has_files).distinct()

        def work(s: Connection) -> list[ScopeLimit]:
            return _read_limits(s, [(row.host, QuotaScopeId.parse(row.quota_scope)) for row in s.execute(query)])

        return await self._db.run_read(work)

    async def scope_limit(self, host: str, scope: QuotaScopeId) -> ScopeLimit:
        return (await self._db.run_read(lambda s: _read_limits(s, [(host, scope)])))[0]

    async def set_scope_limit(self, host: str, scope: QuotaScopeId, limit_bytes: int | None) -> None:
        columns, row = quota_limits.c, {"host": host, "quota_scope": str(scope), "limit_bytes": limit_bytes}

        def work(s: Connection) -> None:
            s.execute(delete(quota_limits).where(columns.host == host, columns.quota_scope == str(scope)))
            if limit_bytes is not None:
                s.execute(insert(quota_limits), row)

        await self._db.run_write(work)


def _read_limits(s: Connection, scopes: Sequence[tuple[str, QuotaScopeId]]) -> list[ScopeLimit]:
    """Returns the limit of each host and quota scope: the scope's own limit, or the limit of its owner's policy."""
    own_limits = {(row.host, row.quota_scope): row.limit_bytes for row in s.execute(select(quota_limits))}
    stored_policies = s.execute(select(identity_tables.storage_policies))
    size_of_policy = {(row.kind, row.name): row.max_quota_scope_size for row in stored_policies}
    owner_tables = {
        QuotaScopeKind.USER: (identity_tables.users, identity_tables.users.c.uuid),
        QuotaScopeKind.PROJECT: (identity_tables.groups, identity_tables.groups.c.id),
    }
    policy_of_scope: dict[QuotaScopeId, str] = {}
    for kind, (table, key) in owner_tables.items():
        for chunk in chunks(sorted({scope.id for _, scope in scopes if scope.kind is kind})):
            query = select(key, table.c.resource_policy).where(key.in_(chunk))
            policy_of_scope |= {QuotaScopeId(kind, row[0]): row[1] for row in s.execute(query)}
    limits = []
    for host, scope in scopes:
        own_limit = own_limits.get((host, str(scope)))
        limit_bytes = (
            own_limit if own_limit is not None else size_of_policy.get((scope.kind, policy_of_scope.get(scope)), -1)
        )
        limit = limit_bytes if limit_bytes >= 0 else None
        limits.append(ScopeLimit(host=host, scope=scope, limit_bytes=limit, is_own=own_limit is not None))
    return limits
