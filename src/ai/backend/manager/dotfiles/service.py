"""Stores dotfiles and bootstrap scripts, and selects those of a new session (spec 03-11)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence

from ai.backend.common.errors import InvalidInput, LimitExceeded, NotFound
from ai.backend.common.ids import AccessKey, DomainName, GroupId
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_protected, require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.dotfiles.model import Dotfile, DotfileOwner, DotfileScope, InjectedFiles, merge_dotfiles
from ai.backend.manager.dotfiles.store import DotfileStore
from ai.backend.manager.folders.model import FolderMount
from ai.backend.manager.identity.service import IdentityService

_HOME = "/home/work"
_MAX_PATH_BYTES = 255
_MAX_PATH_DEPTH = 16
_PERMISSION_PATTERN = re.compile(r"[0-7]{3}")
_RESERVED_PATHS = (".ssh/authorized_keys", ".terminfo", ".jupyter", ".tmux.conf")
"""Paths that the platform itself writes, together with everything below these paths."""


def check_dotfile(path: str, permission: str, data: str) -> Dotfile:
    """Returns a dotfile with its path normalized. Raises InvalidInput, whose ``data`` names the field."""
    clean_path = posixpath.normpath(path)
    is_plain_path = path.isprintable() and "\0" not in path and ".." not in path.split("/")
    if (
        not is_plain_path
        or not clean_path.startswith(".")
        or clean_path in (".", "..")
        or clean_path.count("/") >= _MAX_PATH_DEPTH
    ):
        message = "The path of a dotfile begins with a dot and stays in the home directory."
        raise InvalidInput(message, data={"path": "malformed"})
    if len(clean_path.encode()) > _MAX_PATH_BYTES:
        raise InvalidInput(f"The path of a dotfile has {_MAX_PATH_BYTES} bytes at most.", data={"path": "too long"})
    if any(
        clean_path == reserved_path or clean_path.startswith(reserved_path + "/") for reserved_path in _RESERVED_PATHS
    ):
        raise InvalidInput(f"{clean_path!r} is reserved for the platform.", data={"path": "reserved"})
    if not _PERMISSION_PATTERN.fullmatch(permission) or int(permission[0]) & 4 == 0:
        message = "The permission is three octal digits, and its owner may read it."
        raise InvalidInput(message, data={"permission": "malformed"})
    if "\0" in data:
        raise InvalidInput("A dotfile is text without NUL.", data={"data": "malformed"})
    return Dotfile(path=clean_path, permission=permission, data=data)


def check_no_mount_covers(dotfiles: Iterable[Dotfile], mounts: Sequence[FolderMount]) -> None:
    """Raises InvalidInput if a dotfile lies in a mounted folder, or a folder is mounted at or below a dotfile."""
    for dotfile in dotfiles:
        path = f"{_HOME}/{dotfile.path}"
        for mount in mounts:
            if path == mount.target or path.startswith(mount.target + "/") or mount.target.startswith(path + "/"):
                raise InvalidInput(
                    f"The folder {mount.name[:64]!r} cannot be mounted at {mount.target!r}: "
                    f"the dotfile {dotfile.path!r} is there.",
                    data={"config.mounts": f"{mount.name[:64]}: a dotfile is there"},
                )


class DotfileService:
    """Manages the dotfiles and bootstrap scripts of keypairs, groups and domains."""

    def __init__(self, store: DotfileStore, identity: IdentityService, *, max_script_bytes: int) -> None:
        self._store = store
        self._identity = identity
        self._max_script_bytes = max_script_bytes

    async def user_as_owner(self, caller: Caller, owner_access_key: str | None) -> DotfileOwner:
        """Returns the keypair ``owner_access_key``, or by default the caller's keypair, as an owner of dotfiles.

        Raises Forbidden for a key that the caller may not act for.
        """
        owner = await self._identity.resolve_owner(caller, owner_access_key)
        return DotfileOwner(scope=DotfileScope.USER, name=owner.access_key)

    async def group_as_owner(self, caller: Caller, group: str, domain: str | None, *, to_change: bool) -> DotfileOwner:
        """Returns the group of a name or id as an owner of dotfiles. Raises NotFound, or Forbidden if the caller may
        not change the dotfiles of the group.
        """
        visible_groups = await self._identity.groups(caller)
        matches = [
            candidate
            for candidate in visible_groups
            if group in (candidate.name, str(candidate.id)) and domain in (None, candidate.domain_name)
        ]
        if len(matches) > 1:
            matches = [candidate for candidate in matches if candidate.domain_name == caller.domain_name]
        if not matches:
            raise NotFound("There is no such group.", data={"group": "unknown"})
        if to_change:
            group_id = matches[0].id
            require(caller, Operation.CHANGE_SHARED_DOTFILES, domain_name=matches[0].domain_name, group_id=group_id)
        return DotfileOwner(scope=DotfileScope.GROUP, name=str(matches[0].id))

    async def domain_as_owner(self, caller: Caller, domain: str, *, to_change: bool) -> DotfileOwner:
        """Returns a domain as an owner of dotfiles. Raises as :meth:`group_as_owner`."""
        await self._identity.domain(caller, domain)
        if to_change:
            require(caller, Operation.CHANGE_SHARED_DOTFILES, domain_name=domain)
        return DotfileOwner(scope=DotfileScope.DOMAIN, name=domain)

    async def list(self, owner: DotfileOwner) -> Sequence[Dotfile]:
        return await self._store.dotfiles(owner)

    async def get(self, owner: DotfileOwner, path: str) -> Dotfile:
        """Returns a dotfile. Raises NotFound."""
        clean_path = posixpath.normpath(path)
        for dotfile in await self._store.dotfiles(owner):
            if dotfile.path == clean_path:
                return dotfile
        raise NotFound("There is no such dotfile.", data={"path": "unknown"})

    async def put(self, owner: DotfileOwner, path: str, permission: str, data: str, *, is_new: bool) -> None:
        """Adds or replaces a dotfile. Raises InvalidInput, Conflict, NotFound, LimitExceeded."""
        await self._store.put_dotfile(owner, check_dotfile(path, permission, data), is_new=is_new)

    async def delete(self, owner: DotfileOwner, path: str) -> None:
        """Deletes a dotfile. Raises NotFound."""
        if not await self._store.drop_dotfile(owner, posixpath.normpath(path)):
            raise NotFound("There is no such dotfile.", data={"path": "unknown"})

    async def bootstrap_script(self, caller: Caller, owner_access_key: str | None = None) -> str:
        """Returns the bootstrap script for sessions that request no script, or an empty text."""
        owner = await self._identity.resolve_owner(caller, owner_access_key)
        return await self._store.bootstrap_script(owner.access_key)

    async def set_bootstrap_script(self, caller: Caller, script: str, owner_access_key: str | None = None) -> None:
        """Replaces the bootstrap script of a keypair. Raises LimitExceeded, InvalidInput."""
        owner = await self._identity.resolve_owner(caller, owner_access_key)
        if len(script.encode()) > self._max_script_bytes:
            max_bytes = self._max_script_bytes
            raise LimitExceeded(f"A bootstrap script has {max_bytes} bytes at most.", data={"script": "too large"})
        if "\0" in script:
            raise InvalidInput("A bootstrap script is text without NUL.", data={"script": "malformed"})
        await self._store.put_bootstrap_script(owner.access_key, script)

    async def bootstrap_script_of(
        self,
        owner: Caller,
        domain: DomainName,
        group: GroupId,
        requested: str | None,
        mounts: Sequence[FolderMount],
    ) -> str | None:
        """Returns the script that a new session requests, or the owner's script if it requests none. Raises
        InvalidInput if a dotfile and a mount exclude each other.
        """
        if mounts:
            check_no_mount_covers(await self._dotfiles_of(domain, group, owner.access_key, owner), mounts)
        return requested or await self._store.bootstrap_script(owner.access_key) or None

    async def injected_files(self, domain: DomainName, group: GroupId, access_key: AccessKey) -> InjectedFiles:
        """Returns the dotfiles for the kernels of a session, and the user's SSH key. Dotfiles of the user take
        precedence over those of the group, and these over those of the domain.
        """
        credentials = await self._identity.credentials(access_key)
        return InjectedFiles(
            dotfiles=await self._dotfiles_of(domain, group, access_key, credentials.caller if credentials else None),
            ssh_public_key=credentials.ssh_public_key if credentials else None,
        )

    async def _dotfiles_of(
        self, domain: DomainName, group: GroupId, access_key: AccessKey, owner: Caller | None
    ) -> tuple[Dotfile, ...]:
        """Returns the merged dotfiles for a session; superadmins and monitors get only their own dotfiles."""
        owners = [DotfileOwner(scope=DotfileScope.USER, name=access_key)]
        if owner is not None and not is_protected(Operation.CHANGE_SHARED_DOTFILES, owner.role):
            owners.append(DotfileOwner(scope=DotfileScope.DOMAIN, name=domain))
            owners.append(DotfileOwner(scope=DotfileScope.GROUP, name=str(group)))
        return merge_dotfiles(await self._store.dotfiles_of(owners))
