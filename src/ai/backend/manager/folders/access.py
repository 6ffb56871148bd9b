"""Finds folders for a caller and checks what the caller may do with them."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection
from typing import Any

from ai.backend.common.errors import Conflict, FolderNotFound, Forbidden
from ai.backend.common.folders import FolderPermission, FolderStatus, HostPermission, parse_folder_id
from ai.backend.common.ids import FolderId
from ai.backend.core.lifecycle.folder import FolderTrigger, describe_status, sources_of
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.folders.model import FolderAccess, FolderRow
from ai.backend.manager.folders.store import FolderStore
from ai.backend.manager.folders.transitions import FolderTransitions
from ai.backend.manager.volumes.permissions import FolderScope, FolderScopes, require_permission

READY_STATUSES = frozenset({FolderStatus.READY})
ANY_STATUS = frozenset(FolderStatus) - {FolderStatus.DELETE_COMPLETE}


def access_of(caller: Caller, scope: FolderScope, row: FolderRow) -> FolderAccess | None:
    """Returns the caller's access to a folder, or None if the caller has no access. Pure."""
    folder = row.folder
    owner: dict[str, Any] = {
        "domain_name": folder.domain_name,
        "owner_role": row.owner_role,
        "group_id": folder.group_id,
    }
    is_admin = is_permitted(caller, Operation.CHANGE_FOLDERS, **owner)
    is_visible = is_permitted(caller, Operation.SEE_FOLDERS, **owner)
    is_of_own_group, is_of_model_store = folder.group_id in scope.groups, folder.group_id in scope.stores
    is_owner = folder.user_id == caller.user_id or (is_of_own_group and is_admin)
    permission = row.granted or (folder.permission if is_of_own_group else None)
    if permission is None and (is_visible or is_of_model_store):
        permission = FolderPermission.READ_ONLY
    if is_owner or is_admin:
        permission = FolderPermission.WRITE_DELETE
    if permission is None:
        return None
    return FolderAccess(
        row=row,
        permission=permission,
        is_owner=is_owner,
        controls=is_owner or is_admin,
        is_of_store=is_of_model_store,
        allowed=scope.allowed(folder.host, folder.group_id),
    )


class FolderFinder:
    """Finds folders by name or id, among the folders that a caller may use.

    A name matches the caller's own folders first, then those shared with them, then those of their groups, then those
    of model stores, then those of groups that they only administrate.
    """

    def __init__(self, store: FolderStore, scopes: FolderScopes, transitions: FolderTransitions) -> None:
        self._store = store
        self._scopes = scopes
        self._transitions = transitions

    async def accessible(
        self, caller: Caller, *, name: str | None = None, scope: FolderScope | None = None
    ) -> list[FolderAccess]:
        """Returns the folders that the caller owns, shares or may use as a member of a group, oldest first."""
        scope = scope or await self._scopes.of(caller)
        rows = await self._store.accessible(caller.user_id, scope.all_groups, name=name)
        return [access for row in rows if (access := access_of(caller, scope, row)) is not None]

    async def automounted(self, owner: Caller) -> list[FolderAccess]:
        """Returns the ready folders that the owner owns and may mount and whose names begin with a dot,
        oldest first.
        """
        if not await self._store.has_dotted(owner.user_id):
            return []  # few users have one, and each session asks
        return [
            access
            for access in await self.accessible(owner)
            if access.folder.name.startswith(".")
            and access.folder.user_id == owner.user_id
            and access.folder.status is FolderStatus.READY
            and HostPermission.MOUNT in access.allowed
        ]

    async def administered(self, caller: Caller, *, name: str | None = None) -> list[FolderAccess]:
        """Returns the folders of groups that the caller administrates but is no member of, oldest first."""
        scope = await self._scopes.of(caller)
        other_groups = await self._scopes.administered_groups(caller) - scope.all_groups
        rows = await self._store.accessible(caller.user_id, other_groups, name=name) if other_groups else []
        rows = [row for row in rows if row.folder.group_id in other_groups]
        scopes = {group: await self._scopes.of(caller, group) for group in {row.folder.group_id for row in rows}}
        accesses = (access_of(caller, scopes[row.folder.group_id], row) for row in rows)
        return [access for access in accesses if access is not None]

    async def _access_by_id(self, caller: Caller, folder_id: FolderId) -> list[FolderAccess]:
        row = await self._store.get(folder_id, user_id=caller.user_id)
        access = access_of(caller, await self._scopes.of(caller, row.folder.group_id), row) if row is not None else None
        return [access] if access is not None else []

    async def one(
        self,
        caller: Caller,
        ref: str,
        *,
        statuses: Collection[FolderStatus] = READY_STATUSES,
        trigger: FolderTrigger | None = None,
        to_write: bool = False,
        to_control: bool = False,
        needs: HostPermission | None = None,
    ) -> FolderAccess:
        """Returns the folder whose name or id is ``ref``, if the caller may use the folder in its present status.

        The status must be one of ``statuses``, or with a ``trigger`` one of the statuses that admit the trigger.

        Raises:
            FolderNotFound: no folder that the caller may use.
            InvalidTransition: the trigger does not move its status.
            Conflict: its status is not in ``statuses``, or several folders have the name.
            Forbidden: the caller may not write or control it, or lacks the permission ``needs`` on its host.
        """
        folder_id = parse_folder_id(ref)
        statuses = sources_of(trigger) if trigger is not None else statuses
        if folder_id is not None:
            matches = await self._access_by_id(caller, folder_id)
        else:
            name = unicodedata.normalize("NFC", ref)
            matches = _pick_best(caller, await self.accessible(caller, name=name), statuses)
            matches = matches or _pick_best(caller, await self.administered(caller, name=name), statuses)
        if not matches or matches[0].folder.status not in ANY_STATUS:
            raise FolderNotFound(f"There is no virtual folder {ref[:64]!r}.")
        if len(matches) > 1:
            matching_ids = [str(access.folder.id) for access in matches]
            raise Conflict(f"Several folders are called {ref[:64]!r}: use an id.", data={"matches": matching_ids})
        access = matches[0]
        if trigger is not None:
            self._transitions.check(access.folder, trigger, cause=caller.stimulus_id)
        elif access.folder.status not in statuses:
            status = access.folder.status
            raise Conflict(describe_status(access.folder.name, status), data={"status": status.value})
        if to_control and not access.controls:
            raise Forbidden(f"Only the owner of {access.folder.name!r} may do this.")
        if to_write and not access.permission.allows_writing:
            raise Forbidden(f"You may only read {access.folder.name!r}.", data={"permission": access.permission.value})
        if needs is not None:
            require_permission(access.allowed, needs, access.folder.host)
        return access


def _pick_best(caller: Caller, matches: list[FolderAccess], statuses: Collection[FolderStatus]) -> list[FolderAccess]:
    """Returns those of the folders with one name that rank highest by status and owner.

    Folders in one of ``statuses`` come first, then live folders. Among these, own folders come before shared ones, and
    shared ones before group folders. Of several in the trash, only the folder that was deleted last is returned.
    """

    def rank(access: FolderAccess) -> tuple[bool, bool, int]:
        folder = access.folder
        owner_rank = (
            0 if folder.user_id == caller.user_id else 1 if folder.user_id is not None else 2 + access.is_of_store
        )
        return folder.status not in statuses, not folder.status.is_live, owner_rank

    best_rank = min((rank(access) for access in matches), default=None)
    best_matches = [access for access in matches if rank(access) == best_rank]
    # Of several in the trash, the one that was deleted last.
    if len(best_matches) > 1 and not best_matches[0].folder.status.is_live:
        return [max(best_matches, key=lambda a: a.folder.status_changed)]
    return best_matches
