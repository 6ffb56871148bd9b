"""Builds the queries and row conversions that the SQL stores of folders share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, bindparam, delete, func, insert, or_, select
from sqlalchemy.exc import IntegrityError

from ai.backend.common.errors import FolderAlreadyExists, LimitExceeded
from ai.backend.common.folders import DELETED_FOLDER_STATUSES, FolderPermission, FolderStatus
from ai.backend.common.ids import FolderId, GroupId, UserId
from ai.backend.infra.database import GUID
from ai.backend.infra.database.prepared import IsOneOf, Prepared, is_any
from ai.backend.manager.folders.model import Folder, FolderRow
from ai.backend.manager.folders.tables import folder_permissions, folders
from ai.backend.manager.identity import tables as identity_tables

FOLDER_FIELDS = tuple(field for field in Folder.__struct_fields__)
LIVE_FOLDER = ~is_any(folders.c.status, DELETED_FOLDER_STATUSES)


def name_taken_error(name: str) -> FolderAlreadyExists:
    return FolderAlreadyExists(f"There is a folder {name!r} already.", data={"name": "taken"})


@contextmanager
def require_unique_name(name: str) -> Iterator[None]:
    """Raises FolderAlreadyExists if a statement in the block would give two live folders the same name."""
    try:
        yield
    except IntegrityError:
        raise name_taken_error(name) from None


def _select_folders() -> Select[Any]:
    """Selects folders with the owner, the group, and the share of the user ``me``."""
    user_param = bindparam("me", type_=GUID())
    is_shared = and_(folder_permissions.c.folder_id == folders.c.id, folder_permissions.c.user_id == user_param)
    return (
        select(
            *(folders.c[name] for name in FOLDER_FIELDS),
            identity_tables.users.c.email.label("owner_email"),
            identity_tables.users.c.role.label("owner_role"),
            identity_tables.groups.c.name.label("group_name"),
            folder_permissions.c.permission.label("granted"),
        )
        .outerjoin(identity_tables.users, identity_tables.users.c.uuid == folders.c.user_id)
        .outerjoin(identity_tables.groups, identity_tables.groups.c.id == folders.c.group_id)
        .outerjoin(folder_permissions, is_shared)
    )


def _select_accessible() -> Select[Any]:
    """Selects the folders of the user ``me``, of the groups ``groups``, and folders shared with the user."""
    columns = folders.c
    is_accessible = or_(
        columns.user_id == bindparam("me", type_=GUID()),
        IsOneOf(columns.group_id, "groups"),
        folder_permissions.c.permission.is_not(None),
    )
    query = FOLDER_ROWS.where(is_accessible, columns.status != FolderStatus.DELETE_COMPLETE)
    return query.order_by(columns.created_at, columns.id)


def _select_dotted() -> Select[Any]:
    """Selects one live folder of the user ``me`` whose name begins with a dot."""
    is_own = folders.c.user_id == bindparam("me", type_=GUID())
    return select(folders.c.id).where(is_own, func.substr(folders.c.name, 1, 1) == ".", LIVE_FOLDER).limit(1)


def _select_same_name() -> Select[Any]:
    """Selects a live folder named ``name`` that the user ``me`` owns or shares, except the folder ``but``."""
    columns, user_param = folders.c, bindparam("me", type_=GUID())
    shared_folder_ids = select(folder_permissions.c.folder_id).where(folder_permissions.c.user_id == user_param)
    has_name = and_(columns.name == bindparam("name"), columns.id != bindparam("but", type_=GUID()), LIVE_FOLDER)
    return (
        select(columns.id)
        .where(has_name, or_(columns.user_id == user_param, columns.id.in_(shared_folder_ids)))
        .limit(1)
    )


# Every request about a folder executes these, so they are built once.
FOLDER_ROWS = _select_folders()
FOLDER_BY_ID = Prepared(FOLDER_ROWS.where(folders.c.id == bindparam("id", type_=GUID())))
ACCESSIBLE_QUERY = Prepared(_select_accessible())
ACCESSIBLE_BY_NAME_QUERY = Prepared(_select_accessible().where(folders.c.name == bindparam("name")))
DOTTED_QUERY = Prepared(_select_dotted())
_SAME_NAME_QUERY = Prepared(_select_same_name())


def folder_of(row: Row[Any]) -> Folder:
    return Folder(**{name: row._mapping[name] for name in FOLDER_FIELDS})


def folder_row_of(row: Row[Any]) -> FolderRow:
    joined_columns = ("owner_email", "owner_role", "group_name", "granted")
    return FolderRow(folder=folder_of(row), **{name: row._mapping[name] for name in joined_columns})


def uses_name(s: Connection, user_id: UserId, name: str, *, except_id: FolderId) -> bool:
    """Returns True if the user owns or shares a live folder of this name other than the folder ``except_id``."""
    return _SAME_NAME_QUERY.first(s, {"me": user_id, "name": name, "but": except_id}) is not None


def check_count(s: Connection, user_id: UserId | None, group_id: GroupId | None, max_count: int) -> None:
    """Raises LimitExceeded if an owner has more than ``max_count`` live folders (0: no limit)."""
    if not max_count:
        return
    is_owned = folders.c.user_id == user_id if user_id is not None else folders.c.group_id == group_id
    if s.execute(select(func.count()).select_from(folders).where(is_owned, LIVE_FOLDER)).scalar_one() > max_count:
        raise LimitExceeded(f"Your policy allows {max_count} folders.", data={"max_vfolder_count": max_count})


def set_share(s: Connection, folder_id: FolderId, user_id: UserId, permission: FolderPermission | None) -> bool:
    columns = folder_permissions.c
    removed_row = s.execute(
        delete(folder_permissions).where(columns.folder_id == folder_id, columns.user_id == user_id)
    ).rowcount
    if permission is not None:
        row = {"folder_id": folder_id, "user_id": user_id, "permission": permission}
        s.execute(insert(folder_permissions), row)
    return bool(removed_row)
