"""Checks the folder mounts of a session and finds their directories (spec 03-01 "Storage Management", 03-07
``mounts``).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import msgspec

from ai.backend.common.errors import BackendError, Conflict, Forbidden, InvalidInput, NotFound
from ai.backend.common.folders import FolderPermission, HostPermission
from ai.backend.common.volume_paths import FolderPath
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.folders.access import FolderFinder
from ai.backend.manager.folders.gateway import FolderGateway
from ai.backend.manager.folders.model import FolderAccess, FolderMount

HOME = "/home/work"
MAX_MOUNTS = 64
SUBPATH_MARK = "/./"
"""The text between a folder's directory and a path inside the folder, see MountSpec."""
_CLOSED_TARGETS = frozenset(
    {"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/opt/backend.ai", "/opt/kernel", "/proc", "/root"}
    | {"/home/config", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var"}
)
_TARGETS_OPEN_BELOW = ("/tmp", "/run", "/var")
"""Directories that cannot be mount targets themselves, although directories inside them can."""


class _MountRequest(msgspec.Struct, frozen=True):
    ref: str
    subpath: str
    target: str
    permission: FolderPermission | None


def check_target(ref: str, target: str) -> str:
    """Returns the absolute path of a mount target; a relative target lies in the session's home. Raises InvalidInput
    for a closed path.
    """
    path = "/" + posixpath.normpath(posixpath.join(HOME, target)).lstrip("/")  # normpath keeps two leading slashes
    is_closed = any(
        path == closed_path
        or closed_path.startswith(path + "/")
        or (path.startswith(closed_path + "/") and closed_path not in _TARGETS_OPEN_BELOW)
        for closed_path in _CLOSED_TARGETS
    )
    if ".." in target.split("/") or "\0" in target or not target.isprintable():
        raise _mount_error(ref, f"{target[:128]!r} is not a plain path", "malformed target")
    if path in ("/", HOME, "/home") or is_closed:
        raise _mount_error(ref, f"nothing can be mounted at {path!r}", "closed target")
    return path


def _mount_error(ref: str, reason: str, code: str) -> InvalidInput:
    return InvalidInput(
        f"The folder {ref[:64]!r} cannot be mounted: {reason}.", data={"config.mounts": f"{ref[:64]}: {code}"}
    )


def read_mounts(mounts: Sequence[str], mount_map: Mapping[str, str], options: Mapping[str, Any]) -> list[_MountRequest]:
    """Parses the mounts of a request, which are written ``name``, ``name/path/in/it`` or ``name:alias``. ``mount_map``
    has aliases and ``options`` permissions, keyed by the text before the colon.

    Raises:
        InvalidInput: an alias or option for a folder that is not mounted, a bad path, or the same twice.
    """
    if len(mounts) > MAX_MOUNTS:
        raise InvalidInput(f"A session mounts {MAX_MOUNTS} folders at most.", data={"config.mounts": "too many"})
    aliases: dict[str, str] = {}
    for mount_text in mounts:
        name, _, alias = mount_text.partition(":")
        if name in aliases:
            raise _mount_error(name, "it is named twice", "twice")
        aliases[name] = mount_map.get(mount_text) or mount_map.get(name) or alias
    for name in (*mount_map, *options):
        if name not in aliases and name not in mounts:
            raise _mount_error(name, "it has an alias or options, but is not among the mounts", "not in mounts")
    requests = []
    for name, alias in aliases.items():
        option = options.get(name)
        ref, _, subpath = name.partition("/")
        with _with_folder_name(ref):
            subpath_parts = FolderPath.parse(subpath).parts
        target_path = check_target(name, alias) if alias else ""
        permission = FolderPermission(option["permission"]) if option and option.get("permission") else None
        requests.append(_MountRequest(ref, "/".join(subpath_parts), target_path, permission))
    return requests


def check_mounts_are_apart(mounts: Sequence[FolderMount]) -> None:
    """Raises InvalidInput if the target of a mount is equal to, or inside of, the target of another mount."""
    mounts_by_target = sorted(mounts, key=lambda mount: mount.target.split("/"))
    for outer_mount, inner_mount in pairwise(mounts_by_target):
        if inner_mount.target == outer_mount.target or inner_mount.target.startswith(outer_mount.target + "/"):
            raise _mount_error(
                inner_mount.name,
                f"{inner_mount.target!r} is inside of {outer_mount.name!r}",
                f"inside of {outer_mount.name}",
            )


@contextmanager
def _with_folder_name(ref: str) -> Iterator[None]:
    """Adds the name of the folder to the errors of a block; a missing or unready folder becomes InvalidInput."""
    try:
        yield
    except BackendError as e:
        if "cannot be mounted" in e.message:
            raise
        error_class = InvalidInput if isinstance(e, NotFound | Conflict) else type(e)
        message = f"The folder {ref[:64]!r} cannot be mounted: {e.message}"
        raise error_class(message, data={"config.mounts": f"{ref[:64]}: {e.code}"}) from None


class UnmanagedPaths:
    """Checks that paths outside of volumes lie below a root of ``folders.unmanaged-roots``, which is
    empty by default.
    """

    def __init__(self, roots: Iterable[str] = ()) -> None:
        self._roots = sorted(posixpath.normpath(root) for root in roots)

    def check(self, caller: Caller, path: str) -> str:
        """Returns an unmanaged path if the caller may create a folder of this path. Raises Forbidden."""
        if not is_permitted(caller, Operation.USE_UNMANAGED_PATHS):
            raise Forbidden("Only superadmins make folders of unmanaged paths.", data={"unmanaged_path": "not allowed"})
        self.split_root(path)
        return path

    def split_root(self, path: str) -> tuple[str, str]:
        """Returns the root at or above an unmanaged path, and the path relative to that root.

        The relative path is empty for the root itself. Raises Forbidden for a path below no root.
        """
        is_plain_path = path.startswith("/") and path.isprintable() and posixpath.normpath(path) == path
        for root in self._roots if is_plain_path else ():
            if path == root or path.startswith(root.rstrip("/") + "/"):
                return root, path[len(root) :].lstrip("/")
        raise Forbidden(
            f"{path[:128]!r} is not at or below a directory that folders.unmanaged-roots of the manager names.",
            data={"unmanaged_path": "no unmanaged root"},
        )


def _check_writable(access: FolderAccess, ref: str) -> None:
    if not access.permission.allows_writing:
        raise _mount_error(ref, "you may only read it, so mount it with permission ro", "read-only")


class MountResolver:
    """Finds the directories of the folders that a new session mounts."""

    def __init__(self, storage: FolderGateway, finder: FolderFinder, unmanaged_paths: UnmanagedPaths) -> None:
        self._storage = storage
        self._finder = finder
        self._unmanaged = unmanaged_paths

    async def resolve(
        self, owner: Caller, mounts: Sequence[str], mount_map: Mapping[str, str], options: Mapping[str, Any]
    ) -> tuple[FolderMount, ...]:
        """Returns the mounts of a session: the requested folders, and the owner's folders whose names begin with a dot.
        Raises InvalidInput, Forbidden and Unavailable, which name the folder.
        """
        resolved_mounts = []
        for request in read_mounts(mounts, mount_map, options):
            with _with_folder_name(request.ref):
                access = await self._finder.one(owner, request.ref, needs=HostPermission.MOUNT)
                resolved_mounts.append(await self._mount(access, request))
        requested_folder_ids = {mount.folder_id for mount in resolved_mounts}
        for access in await self._finder.automounted(owner):
            if access.folder.id not in requested_folder_ids:
                with _with_folder_name(access.folder.name):
                    resolved_mounts.append(await self._mount(access, _MountRequest(access.folder.name, "", "", None)))
        check_mounts_are_apart(resolved_mounts)
        return tuple(resolved_mounts)

    async def check(self, owner: Caller, mount: FolderMount) -> None:
        """Checks that the owner may still mount a folder as an earlier session did. Raises as :meth:`resolve`."""
        with _with_folder_name(mount.name):
            access = await self._finder.one(owner, str(mount.folder_id), needs=HostPermission.MOUNT)
            if not mount.read_only:
                _check_writable(access, mount.name)

    async def _mount(self, access: FolderAccess, request: _MountRequest) -> FolderMount:
        folder = access.folder
        permission = request.permission or access.permission
        if permission.allows_writing:
            _check_writable(access, request.ref)
        if folder.unmanaged_path is not None:
            source_path, relative_path = self._unmanaged.split_root(folder.unmanaged_path)
            relative_path = posixpath.join(relative_path, request.subpath).rstrip("/")
        else:
            source_path, relative_path = await self._storage.mount_path(folder.key), request.subpath
            if relative_path:
                await self._storage.mount_path(folder.key, relative_path)  # raises if it does not exist
        if relative_path:
            source_path += SUBPATH_MARK + relative_path
        return FolderMount(
            folder_id=folder.id,
            name=folder.name,
            source=source_path,
            target=request.target or check_target(request.ref, folder.name),
            read_only=not permission.allows_writing,
        )
