"""Which folders a session mounts, where, and whether it may (spec 03-01 "Storage Management", 03-07 ``mounts``)."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ai.backend.common.errors import BackendError, Conflict, InvalidInput, NotFound
from ai.backend.common.folders import FolderPermission, FolderStatus, HostPermission
from ai.backend.common.volume_paths import FolderPath
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.folders.access import FolderFinder
from ai.backend.manager.folders.gateway import FolderGateway
from ai.backend.manager.folders.model import FolderAccess, FolderMount
from ai.backend.manager.folders.unmanaged import UnmanagedPaths

HOME = "/home/work"
MAX_MOUNTS = 64
BENEATH = "/./"
"""Between a folder's directory and a path in it, see MountSpec."""
_CLOSED = frozenset(
    {"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/opt/backend.ai", "/opt/kernel", "/proc", "/root"}
    | {"/home/config", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var"}
)
_HOLDERS = ("/tmp", "/run", "/var")
"""Not at these, but below them."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    ref: str
    subpath: str
    target: str
    permission: FolderPermission | None


def check_target(ref: str, target: str) -> str:
    """An absolute path in the session; a relative one is below its home.

    Raises:
        InvalidInput: nothing can be mounted there.
    """
    path = posixpath.normpath(posixpath.join(HOME, target))
    # normpath keeps two leading slashes
    path = "/" + path.lstrip("/")
    is_closed = any(
        path == closed or closed.startswith(path + "/") or (path.startswith(closed + "/") and closed not in _HOLDERS)
        for closed in _CLOSED
    )
    if ".." in target.split("/") or "\0" in target or not target.isprintable():
        raise _refused(ref, f"{target[:128]!r} is not a plain path", "malformed target")
    if path in ("/", HOME, "/home") or is_closed:
        raise _refused(ref, f"nothing can be mounted at {path!r}", "closed target")
    return path


def _refused(ref: str, why: str, short: str) -> InvalidInput:
    return InvalidInput(
        f"The folder {ref[:64]!r} cannot be mounted: {why}.", data={"config.mounts": f"{ref[:64]}: {short}"}
    )


def read_mounts(mounts: Sequence[str], mount_map: Mapping[str, str], options: Mapping[str, Any]) -> list[_Wanted]:
    """What the request asks for: ``name``, ``name/path/in/it``, ``name:alias``; aliases in ``mount_map`` and
    permissions in ``mount_options`` under what stands before the colon.

    Raises:
        InvalidInput: an alias or option for a folder that is not mounted, a bad path, or the same twice.
    """
    if len(mounts) > MAX_MOUNTS:
        raise InvalidInput(f"A session mounts {MAX_MOUNTS} folders at most.", data={"config.mounts": "too many"})
    wanted: dict[str, str] = {}
    for text in mounts:
        what, _, alias = text.partition(":")
        if what in wanted:
            raise _refused(what, "it is named twice", "twice")
        wanted[what] = mount_map.get(text) or mount_map.get(what) or alias
    for what in (*mount_map, *options):
        if what not in wanted and what not in mounts:
            raise _refused(what, "it has an alias or options, but is not among the mounts", "not in mounts")
    found = []
    for what, alias in wanted.items():
        option = options.get(what)
        permission = option.get("permission") if option else None
        ref, _, subpath = what.partition("/")
        with _naming(ref):
            parts = FolderPath.parse(subpath).parts
        target = check_target(what, alias) if alias else ""
        found.append(_Wanted(ref, "/".join(parts), target, FolderPermission(permission) if permission else None))
    return found


def check_apart(mounts: Sequence[FolderMount]) -> None:
    """Raises InvalidInput if one would be mounted at or inside of another."""
    ordered = sorted(mounts, key=lambda m: m.target.split("/"))
    for upper, lower in pairwise(ordered):
        if lower.target == upper.target or lower.target.startswith(upper.target + "/"):
            raise _refused(lower.name, f"{lower.target!r} is inside of {upper.name!r}", f"inside of {upper.name}")


@contextmanager
def _naming(ref: str) -> Iterator[None]:
    """Let every error name the folder; what is not there or not ready is a fault of the request."""
    try:
        yield
    except BackendError as e:
        if "cannot be mounted" in e.message:
            raise
        kind = InvalidInput if isinstance(e, NotFound | Conflict) else type(e)
        message = f"The folder {ref[:64]!r} cannot be mounted: {e.message}"
        raise kind(message, data={"config.mounts": f"{ref[:64]}: {e.code}"}) from None


class MountResolver:
    """Turns names into directories at the creation of a session: what cannot be mounted fails it, with its name."""

    def __init__(self, storage: FolderGateway, finder: FolderFinder, unmanaged: UnmanagedPaths) -> None:
        self._storage = storage
        self._finder = finder
        self._unmanaged = unmanaged

    async def resolve(
        self, owner: Caller, mounts: Sequence[str], mount_map: Mapping[str, str], options: Mapping[str, Any]
    ) -> tuple[FolderMount, ...]:
        """The mounts of a session of ``owner``, with their folders whose name begins with a dot.

        Raises:
            InvalidInput, Forbidden, Unavailable: the message names the folder.
        """
        found = []
        for wanted in read_mounts(mounts, mount_map, options):
            with _naming(wanted.ref):
                access = await self._finder.one(owner, wanted.ref, needs=HostPermission.MOUNT)
                found.append(await self._mount(access, wanted))
        taken = {mount.folder_id for mount in found}
        automatic = [a for a in await self._automatic(owner) if a.folder.id not in taken]
        for access in automatic:
            with _naming(access.folder.name):
                found.append(await self._mount(access, _Wanted(access.folder.name, "", "", None)))
        check_apart(found)
        return tuple(found)

    async def _automatic(self, owner: Caller) -> list[FolderAccess]:
        return [
            a
            for a in await self._finder.accessible(owner)
            if a.folder.name.startswith(".")
            and a.folder.user_id == owner.user_id
            and a.folder.status is FolderStatus.READY
            and HostPermission.MOUNT in a.allowed
        ]

    async def _mount(self, access: FolderAccess, wanted: _Wanted) -> FolderMount:
        folder = access.folder
        permission = wanted.permission or access.permission
        if permission.writes and not access.permission.writes:
            raise _refused(wanted.ref, "you may only read it, so mount it with permission ro", "read-only")
        if folder.unmanaged_path is not None:
            source, below = self._unmanaged.place(folder.unmanaged_path)
            below = posixpath.join(below, wanted.subpath).rstrip("/")
        else:
            source, below = await self._storage.mount_path(folder.key), wanted.subpath
            if below:
                await self._storage.mount_path(folder.key, below)  # it must be there
        if below:
            source += BENEATH + below
        return FolderMount(
            folder_id=folder.id,
            name=folder.name,
            source=source,
            target=wanted.target or check_target(wanted.ref, folder.name),
            read_only=not permission.writes,
        )
