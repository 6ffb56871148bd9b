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
BENEATH = "/./"
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
        path == closed
        or closed.startswith(path + "/")
        or (path.startswith(closed + "/") and closed not in _TARGETS_OPEN_BELOW)
        for closed in _CLOSED_TARGETS
    )
    if ".." in target.split("/") or "\0" in target or not target.isprintable():
        raise _mount_refused(ref, f"{target[:128]!r} is not a plain path", "malformed target")
    if path in ("/", HOME, "/home") or is_closed:
        raise _mount_refused(ref, f"nothing can be mounted at {path!r}", "closed target")
    return path


def _mount_refused(ref: str, reason: str, code: str) -> InvalidInput:
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
    for text in mounts:
        name, _, alias = text.partition(":")
        if name in aliases:
            raise _mount_refused(name, "it is named twice", "twice")
        aliases[name] = mount_map.get(text) or mount_map.get(name) or alias
    for name in (*mount_map, *options):
        if name not in aliases and name not in mounts:
            raise _mount_refused(name, "it has an alias or options, but is not among the mounts", "not in mounts")
    requests = []
    for name, alias in aliases.items():
        option = options.get(name)
        ref, _, subpath = name.partition("/")
        with _with_folder_name(ref):
            parts = FolderPath.parse(subpath).parts
        target = check_target(name, alias) if alias else ""
        permission = FolderPermission(option["permission"]) if option and option.get("permission") else None
        requests.append(_MountRequest(ref, "/".join(parts), target, permission))
    return requests


def check_mounts_are_apart(mounts: Sequence[FolderMount]) -> None:
    """Raises InvalidInput if the target of a mount is equal to, or inside of, the target of another mount."""
    ordered = sorted(mounts, key=lambda mount: mount.target.split("/"))
    for upper, lower in pairwise(ordered):
        if lower.target == upper.target or lower.target.startswith(upper.target + "/"):
            raise _mount_refused(lower.name, f"{lower.target!r} is inside of {upper.name!r}", f"inside of {upper.name}")


@contextmanager
def _with_folder_name(ref: str) -> Iterator[None]:
    """Adds the name of the folder to the errors of a block; a missing or unready folder becomes InvalidInput."""
    try:
        yield
    except BackendError as e:
        if "cannot be mounted" in e.message:
            raise
        kind = InvalidInput if isinstance(e, NotFound | Conflict) else type(e)
        message = f"The folder {ref[:64]!r} cannot be mounted: {e.message}"
        raise kind(message, data={"config.mounts": f"{ref[:64]}: {e.code}"}) from None


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
        self.place(path)
        return path

    def place(self, path: str) -> tuple[str, str]:
        """Returns the root above a path, and the path relative to the root (empty for the root itself). Raises
        Forbidden.
        """
        is_plain = path.startswith("/") and path.isprintable() and posixpath.normpath(path) == path
        for root in self._roots if is_plain else ():
            if path == root or path.startswith(root.rstrip("/") + "/"):
                return root, path[len(root) :].lstrip("/")
        raise Forbidden(
            f"{path[:128]!r} is not at or below a directory that folders.unmanaged-roots of the manager names.",
            data={"unmanaged_path": "no unmanaged root"},
        )


class MountResolver:
    """Finds the directories of the folders that a new session mounts."""

    def __init__(self, storage: FolderGateway, finder: FolderFinder, unmanaged: UnmanagedPaths) -> None:
        self._storage = storage
        self._finder = finder
        self._unmanaged = unmanaged

    async def resolve(
        self, owner: Caller, mounts: Sequence[str], mount_map: Mapping[str, str], options: Mapping[str, Any]
    ) -> tuple[FolderMount, ...]:
        """Returns the mounts of a session: the requested folders, and the owner's folders whose names begin with a dot.
        Raises InvalidInput, Forbidden and Unavailable, which name the folder.
        """
        resolved = []
        for request in read_mounts(mounts, mount_map, options):
            with _with_folder_name(request.ref):
                access = await self._finder.one(owner, request.ref, needs=HostPermission.MOUNT)
                resolved.append(await self._mount(access, request))
        explicit = {mount.folder_id for mount in resolved}
        for access in await self._finder.automatic(owner):
            if access.folder.id not in explicit:
                with _with_folder_name(access.folder.name):
                    resolved.append(await self._mount(access, _MountRequest(access.folder.name, "", "", None)))
        check_mounts_are_apart(resolved)
        return tuple(resolved)

    async def _mount(self, access: FolderAccess, request: _MountRequest) -> FolderMount:
        folder = access.folder
        permission = request.permission or access.permission
        if permission.allows_writing and not access.permission.allows_writing:
            raise _mount_refused(request.ref, "you may only read it, so mount it with permission ro", "read-only")
        if folder.unmanaged_path is not None:
            source, below = self._unmanaged.place(folder.unmanaged_path)
            below = posixpath.join(below, request.subpath).rstrip("/")
        else:
            source, below = await self._storage.mount_path(folder.key), request.subpath
            if below:
                await self._storage.mount_path(folder.key, below)  # raises if it does not exist
        if below:
            source += BENEATH + below
        return FolderMount(
            folder_id=folder.id,
            name=folder.name,
            source=source,
            target=request.target or check_target(request.ref, folder.name),
            read_only=not permission.allows_writing,
        )
