"""Creates, lists, changes and removes virtual folders (spec 03-08, "Virtual Folders")."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ai.backend.common.errors import (
    BackendError,
    Conflict,
    FolderAlreadyExists,
    Forbidden,
    InvalidInput,
    LimitExceeded,
    NotFound,
)
from ai.backend.common.folders import (
    FolderOwnership,
    FolderPermission,
    FolderStatus,
    HostPermission,
    UsageMode,
    check_folder_name,
    parse_host,
)
from ai.backend.common.ids import DomainName, FolderId, GroupId, TaskId, UserId
from ai.backend.common.states import GroupType
from ai.backend.common.structs import replace
from ai.backend.common.volume_paths import QuotaScopeId, QuotaScopeKind
from ai.backend.core.lifecycle.folder import FolderTrigger
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.manager.access import checks
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.folders.access import ANY_STATUS, FolderFinder
from ai.backend.manager.folders.gateway import FolderGateway
from ai.backend.manager.folders.loop import FolderLoop
from ai.backend.manager.folders.model import (
    CreateFolder,
    Folder,
    FolderAccess,
    FolderKind,
    FolderRow,
    FolderSelection,
    FolderUsage,
)
from ai.backend.manager.folders.mounts import UnmanagedPaths
from ai.backend.manager.folders.quotas import QuotaLoop
from ai.backend.manager.folders.store import FolderStore
from ai.backend.manager.folders.transitions import FolderTransitions
from ai.backend.manager.identity.model import Group, User
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.query.model import Condition, ListQuery, Page
from ai.backend.manager.tasks.service import TaskProgress, TaskService
from ai.backend.manager.volumes.gateway import VolumeGateway
from ai.backend.manager.volumes.model import Volume
from ai.backend.manager.volumes.permissions import CLONE, FolderScope, FolderScopes, require_permission

_NOT_DELETED = Condition(field="status", op="!=", value=FolderStatus.DELETE_COMPLETE.value)
_MAX_CONCURRENT_USAGE_CALLS = 4
"""The number of folders of one query whose usage is read at the same time."""
_ALL_FOLDERS = ListQuery(limit=1_000_000, filter=_NOT_DELETED)


@dataclass(eq=False, slots=True)
class FolderService:
    """Creates, lists, changes and removes virtual folders on behalf of callers. ``ref`` is a name or an id; methods
    raise the errors of :meth:`FolderFinder.one`.
    """

    _store: FolderStore
    _storage: FolderGateway
    _volumes: VolumeGateway
    _identities: IdentityStore
    _finder: FolderFinder
    _scopes: FolderScopes
    _loop: FolderLoop
    _quotas: QuotaLoop
    _tasks: TaskService
    _clock: Clock
    _id_generator: IdGenerator
    _unmanaged: UnmanagedPaths

    # ---- hosts ----

    async def hosts(self, caller: Caller, group_id: GroupId | None = None) -> tuple[str | None, Mapping[str, Volume]]:
        """Returns the default host, and the volumes of the hosts that the caller may use, by host."""
        scope, volumes = await self._scopes.of(caller, group_id), await self._volumes.volumes()
        volume_by_allowed_host = {host: volume for host, volume in sorted(volumes.items()) if scope.allowed(host)}
        default_host = await self._volumes.default_host()
        return default_host if default_host in volume_by_allowed_host else next(
            iter(volume_by_allowed_host), None
        ), volume_by_allowed_host

    async def all_hosts(self, caller: Caller) -> tuple[str | None, Mapping[str, Volume]]:
        """Returns the default host and all volumes to superadmins."""
        checks.require(caller, Operation.SEE_ALL_HOSTS)
        return await self._volumes.default_host(), await self._volumes.volumes()

    # ---- creation ----

    async def create(self, caller: Caller, request: CreateFolder) -> FolderAccess:
        """Creates a folder that the caller owns, or that a group owns if the caller administrates the group. Raises
        InvalidName, FolderAlreadyExists, Forbidden, LimitExceeded, NotFound (group, host), Unavailable.
        """
        name = check_folder_name(request.name)
        group = await self._find_group(caller, request.group) if request.group is not None else None
        if group is not None and group.type is GroupType.MODEL_STORE and request.usage_mode is not UsageMode.MODEL:
            raise InvalidInput("A model store keeps models: say usage mode model.", data={"usage_mode": "not model"})
        host = await self._resolve_host(request.host) if request.host else await self._volumes.default_host()
        if host is None:
            raise NotFound("This cluster has no storage host.", data={"host": "none"})
        scope = await self._scopes.of(caller, group.id if group is not None else None)
        if request.unmanaged_path is not None:
            require_permission(scope.allowed(host), HostPermission.CREATE, host)
            request = replace(request, unmanaged_path=self._unmanaged.check(caller, request.unmanaged_path))
        else:
            await self._check_host(scope, host)
        folder = self._new_folder(caller, name, host, group, _with_limited_size(request, scope))
        await self._apply_quota(folder, scope)
        max_folder_count = scope.max_count
        if group is not None:
            policies = await self._identities.storage_policies(QuotaScopeKind.PROJECT, name=group.resource_policy)
            max_folder_count = policies[0].max_vfolder_count if policies else 0
        await asyncio.shield(self._loop.begin(folder, max_count=max_folder_count))
        return await self.get(caller, str(folder.id))

    async def _apply_quota(self, folder: Folder, scope: FolderScope) -> None:
        """Sends the limit of the quota scope to the storage proxy, before files are written."""
        if folder.unmanaged_path is None and (scope.max_size is not None or folder.group_id is not None):
            await self._quotas.ensure_limit(folder.host, QuotaScopeId.parse(folder.quota_scope))

    def _new_folder(
        self, caller: Caller, name: str, host: str, group: Group | None, request: CreateFolder, **other_fields: Any
    ) -> Folder:
        now = self._clock.now()
        options = ("usage_mode", "permission", "cloneable", "max_size", "unmanaged_path")
        return Folder(
            id=FolderId(self._id_generator.uuid()),
            name=name,
            host=host,
            quota_scope=f"user:{caller.user_id}" if group is None else f"project:{group.id}",
            domain_name=DomainName(caller.domain_name if group is None else group.domain_name),
            ownership_type=FolderOwnership.USER if group is None else FolderOwnership.GROUP,
            user_id=caller.user_id if group is None else None,
            group_id=None if group is None else group.id,
            creator=caller.email,
            created_at=now,
            status_changed=now,
            **{option: getattr(request, option) for option in options},
            **other_fields,
        )

    async def _find_group(self, caller: Caller, ref: str) -> Group:
        scope = checks.scope_of(caller, Operation.CREATE_GROUP_FOLDERS)
        domain_name = None if scope is Scope.ALL else caller.domain_name
        user_id = caller.user_id if scope is Scope.NONE else None
        groups = await self._identities.groups(domain_name=domain_name, user_id=user_id)
        matches = [candidate for candidate in groups if ref in (candidate.name, str(candidate.id), candidate.id.hex)]
        if not matches:
            raise NotFound(f"There is no group {ref[:64]!r} for you.", data={"group": "unknown"})
        if scope is Scope.NONE:
            matches = [candidate for candidate in matches if candidate.id in caller.administered_groups]
        if not matches:
            raise Forbidden("Only administrators make folders of a group.", data={"group": "not allowed"})
        return next((candidate for candidate in matches if candidate.domain_name == caller.domain_name), matches[0])

    async def _resolve_host(self, name: str) -> str:
        """Returns the full name of the storage host whose volume or proxy has this plain name (03-11:540).

        Returns the name itself unless exactly one host matches.
        """
        hosts = await self._volumes.volumes() if ":" not in name else ()
        for part_index in (2, 0):
            matches = [host for host in hosts if host.partition(":")[part_index] == name]
            if len(matches) == 1:
                return matches[0]
        return name

    async def _check_host(self, scope: FolderScope, host: str) -> None:
        parse_host(host)
        require_permission(scope.allowed(host), HostPermission.CREATE, host)
        volumes = await self._volumes.volumes()
        if host not in volumes:
            await self._volumes.volume_health(host)  # raises Unavailable if the proxy is only silent
            raise NotFound(f"There is no storage host {host[:64]!r} now.", data={"host": "unknown"})
        if "vfolder" not in volumes[host].capabilities:
            raise InvalidInput(f"{host} is not for virtual folders.", data={"host": "no vfolder capability"})

    async def clone(self, caller: Caller, ref: str, request: CreateFolder) -> tuple[FolderAccess, TaskId]:
        """Creates a folder of the caller, which a background task fills with the files of another folder.

        Raises:
            Forbidden: the folder is neither cloneable nor of a model store, or clones are blocked on its volume.
            InvalidInput: the target is on another storage proxy, or the source is unmanaged.
        """
        source_access = await self._finder.one(caller, ref)
        source = source_access.folder
        if not (source.cloneable or source_access.is_of_store):
            raise Forbidden(
                f"The folder {source.name!r} is not cloneable; its owner can change that.", data={"cloneable": "no"}
            )
        if source.unmanaged_path is not None:
            raise InvalidInput(f"The files of {source.name!r} are with no storage proxy.", data={"name": "unmanaged"})
        name, host = check_folder_name(request.name), await self._resolve_host(request.host or source.host)
        scope = await self._scopes.of(caller)
        if CLONE in scope.blocked.get(source.host, ()):
            raise Forbidden(f"Nobody may clone folders of {source.host!r}.", data={"host": source.host})
        await self._check_host(scope, host)
        if host.partition(":")[0] != source.key.proxy:
            raise InvalidInput(
                "A folder is cloned onto a volume of the same storage proxy.", data={"target_host": "another proxy"}
            )
        limited_request = _with_limited_size(request, scope)
        if limited_request.max_size and (await self._storage.usage(source.key)).bytes > limited_request.max_size:
            raise LimitExceeded(
                f"{source.name!r} exceeds the {limited_request.max_size} bytes that your folders may have."
            )
        target = self._new_folder(
            caller, name, host, None, limited_request, status=FolderStatus.CLONING, cloned_from=source.id
        )
        await self._apply_quota(target, scope)
        insert_result: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def work(progress: TaskProgress) -> str:
            async def report(done: float, total: float) -> None:
                await progress.update(done, total, f"cloning {source.name} to {name}")

            await self._loop.begin(target, max_count=scope.max_count, progress=report, insert_result=insert_result)
            return f"cloned {source.name} to {name}"

        task_id = await self._tasks.start(caller, f"clone the folder {source.name}", work)
        await insert_result
        access = await self._finder.one(caller, str(target.id), statuses=ANY_STATUS)
        return access, task_id

    # ---- reading ----

    async def list(
        self, caller: Caller, *, lists_all: bool = False, group: str | None = None
    ) -> Sequence[FolderAccess]:
        """Returns the folders that the caller may use, including folders in the trash.

        With ``lists_all``, returns every folder, which only superadmins may list.
        """
        if lists_all and not checks.is_permitted(caller, Operation.LIST_ALL_FOLDERS):
            raise Forbidden("Only superadmins list the folders of all users.", data={"all": "not allowed"})
        accesses = await self._finder.accessible(caller)
        if lists_all:
            own_accesses = {access.folder.id: access for access in accesses}
            rows = (await self._store.page(_ALL_FOLDERS, FolderSelection())).items
            accesses = [own_accesses.get(row.folder.id) or _admin_access(row) for row in rows]
        if group is None:
            return accesses
        if not lists_all:
            accesses = [*accesses, *await self._finder.administered(caller)]
        accesses_with_group = ((folder_access, folder_access.folder.group_id) for folder_access in accesses)
        return [
            folder_access
            for folder_access, group_id in accesses_with_group
            if group_id is None or group in (str(group_id), group_id.hex, folder_access.row.group_name)
        ]

    async def page(
        self,
        caller: Caller,
        query: ListQuery,
        *,
        kind: FolderKind | None = None,
        group_id: GroupId | None = None,
        domain_name: str | None = None,
        owner_id: UserId | None = None,
    ) -> Page[FolderRow]:
        """Returns a page of ``own``, ``invited`` or ``project`` folders, or of all folders that the caller may see.
        Without a filter by status, only live folders are listed.
        """
        selection = FolderSelection(domain_name=domain_name, group_id=group_id, owner_id=owner_id)
        scope = checks.scope_of(caller, Operation.SEE_FOLDERS)
        if kind is None and scope is Scope.ALL:
            return await self._store.page(query, selection)
        if kind is None and scope is Scope.DOMAIN and domain_name in (None, caller.domain_name):
            return await self._store.page(query, replace(selection, domain_name=caller.domain_name))
        groups = (await self._scopes.of(caller)).all_groups
        own_selection = replace(selection, user_id=caller.user_id, groups=groups)
        return await self._store.page(
            query, replace(own_selection, kinds=frozenset({kind})) if kind is not None else own_selection
        )

    async def get(self, caller: Caller, ref: str) -> FolderAccess:
        """Returns the folder of a name or id, including a folder in the trash."""
        return await self._finder.one(caller, ref, statuses=ANY_STATUS)

    async def usage(self, access: FolderAccess) -> FolderUsage:
        """Returns the current usage of a folder. Raises NotFound for a folder at an unmanaged path."""
        if access.folder.unmanaged_path is not None:
            raise NotFound("No storage proxy counts what is in an unmanaged path.")
        return await self._storage.usage(access.folder.key)

    async def usages(self, folders: Sequence[Folder]) -> Mapping[FolderId, FolderUsage]:
        """Returns the current usage of live, managed folders, without folders whose storage proxy does not answer."""
        concurrency_limit, usages = asyncio.Semaphore(_MAX_CONCURRENT_USAGE_CALLS), dict[FolderId, FolderUsage]()

        async def read(folder: Folder) -> None:
            with contextlib.suppress(BackendError):
                async with concurrency_limit:
                    usages[folder.id] = await self._storage.usage(folder.key)

        managed_folders = (folder for folder in folders if folder.status.is_live and folder.unmanaged_path is None)
        await asyncio.gather(*map(read, managed_folders))
        return usages

    # ---- changes ----

    async def rename(self, caller: Caller, ref: str, new_name: str) -> None:
        """Renames a folder. Raises FolderAlreadyExists."""
        access = await self._controlled_folder(caller, ref, HostPermission.MODIFY)
        name = check_folder_name(new_name)
        if name != access.folder.name:
            await self._store.change(access.folder.id, name=name)

    async def update(
        self,
        caller: Caller,
        ref: str,
        *,
        cloneable: bool | None = None,
        permission: FolderPermission | None = None,
        usage_mode: UsageMode | None = None,
    ) -> None:
        """Changes those options of a folder that are not None."""
        access = await self._controlled_folder(caller, ref, HostPermission.MODIFY)
        options = {"cloneable": cloneable, "permission": permission, "usage_mode": usage_mode}
        values = {name: value for name, value in options.items() if value is not None}
        if values:
            await self._store.change(access.folder.id, **values)

    async def _controlled_folder(self, caller: Caller, ref: str, needs: HostPermission, **options: Any) -> FolderAccess:
        return await self._finder.one(caller, ref, to_control=True, needs=needs, **options)

    async def trash(self, caller: Caller, ref: str) -> None:
        """Moves a folder to the trash and frees its name. Raises Conflict if a live session mounts it, or it is being
        cloned."""
        trigger = FolderTrigger.TRASH_REQUESTED
        access = await self._controlled_folder(caller, ref, HostPermission.DELETE, trigger=trigger)
        await self._apply_trigger(caller, access.folder, trigger, unless_used=True)

    async def restore(self, caller: Caller, ref: str) -> None:
        """Restores a folder from the trash. Raises LimitExceeded, and FolderAlreadyExists if its name was taken."""
        trigger = FolderTrigger.RESTORE_REQUESTED
        access = await self._controlled_folder(caller, ref, HostPermission.MODIFY, trigger=trigger)
        is_own_folder = access.folder.user_id == caller.user_id
        max_folder_count = (await self._scopes.of(caller)).max_count if is_own_folder else 0
        await self._apply_trigger(caller, access.folder, trigger, max_count=max_folder_count)

    async def purge(self, caller: Caller, ref: str) -> None:
        """Deletes a folder in the trash for ever; its files are removed in the background."""
        trigger = FolderTrigger.PURGE_REQUESTED
        access = await self._controlled_folder(caller, ref, HostPermission.DELETE, trigger=trigger)
        await self._apply_trigger(caller, access.folder, trigger)

    async def change_owner(self, caller: Caller, ref: str, email: str) -> None:
        """Gives a user's folder to another user, on request of a superadmin. Its files stay in their place and quota
        scope.

        Raises:
            Forbidden: the caller is no superadmin, or the new owner may do nothing on the folder's host.
            NotFound: no such folder or active user.
            Conflict, FolderAlreadyExists, LimitExceeded: as :meth:`FolderStore.hand_over` raises them.
        """
        checks.require(caller, Operation.HAND_OVER_FOLDERS)
        folder = (await self._finder.one(caller, ref)).folder
        user = await self._identities.user(email=email)
        key = user.main_access_key if user is not None else None
        owner = await self._identities.credentials(key) if key is not None else None
        if user is None or owner is None or not user.is_active:
            raise NotFound(f"There is no active user {email[:64]!r}.", data={"user_email": "unknown"})
        scope = await self._scopes.of(owner.caller)
        if folder.user_id != user.uuid:
            if not scope.allowed(folder.host):
                raise Forbidden(f"{user.email} may do nothing on {folder.host!r}.", data={"host": folder.host})
            await self._store.hand_over(folder.id, user, max_count=scope.max_count)

    async def _apply_trigger(self, caller: Caller, folder: Folder, trigger: FolderTrigger, **limits: Any) -> None:
        if not await self._loop.transitions.apply(folder, trigger, cause=caller.stimulus_id, **limits):
            raise Conflict(f"The folder {folder.name!r} was changed meanwhile; look again.")


def _with_limited_size(request: CreateFolder, scope: FolderScope) -> CreateFolder:
    """Returns the request with the size of the new folder set, by default to the largest that the policy allows.

    Raises LimitExceeded if the requested size is larger.
    """
    max_folder_bytes = scope.max_folder_size
    if max_folder_bytes and (request.max_size or 0) > max_folder_bytes:
        raise LimitExceeded(
            f"Your policy allows folders of {max_folder_bytes} bytes.", data={"quota": max_folder_bytes}
        )
    return replace(request, max_size=request.max_size or max_folder_bytes or None)


def _admin_access(row: FolderRow) -> FolderAccess:
    return FolderAccess(
        row=row, permission=FolderPermission.WRITE_DELETE, is_owner=False, controls=True, allowed=frozenset()
    )


class FolderOwnerRemoval:
    """Removes the folders of an owner who is removed; every call may be repeated. Raises Conflict if a live session
    mounts a folder, or it is being cloned.
    """

    def __init__(self, store: FolderStore, transitions: FolderTransitions) -> None:
        self._store = store
        self._transitions = transitions

    async def remove_of_user(self, user_id: UserId, *, heir: User | None) -> None:
        """Removes the folders of a user. Shared folders go to ``heir``, under another name if their name is taken."""
        page = await self._store.page(_ALL_FOLDERS, FolderSelection(owner_id=user_id))
        folders = [row.folder for row in page.items if row.folder.user_id == user_id]
        shared_folder_ids = {
            share.folder_id for share in await self._store.shares([owned_folder.id for owned_folder in folders])
        }
        for folder in folders:
            if heir is not None and folder.id in shared_folder_ids and folder.status is FolderStatus.READY:
                await self._hand_over(folder, heir)
            else:
                await self._remove(folder)

    async def remove_of_group(self, group_id: GroupId) -> None:
        page = await self._store.page(_ALL_FOLDERS, FolderSelection(group_id=group_id))
        for row in page.items:
            await self._remove(row.folder)

    async def _hand_over(self, folder: Folder, heir: User) -> None:
        try:
            await self._store.hand_over(folder.id, heir)
        except FolderAlreadyExists:
            await self._store.change(folder.id, name=f"{folder.name[:50]}-{str(folder.id)[:8]}")
            await self._store.hand_over(folder.id, heir)

    async def _remove(self, folder: Folder) -> None:
        is_moved = await self._transitions.apply(
            folder, FolderTrigger.OWNER_REMOVED, cause="removal of its owner", unless_used=folder.status.is_live
        )
        if not is_moved:
            raise Conflict(f"The folder {folder.name!r} was changed meanwhile; try again.")
