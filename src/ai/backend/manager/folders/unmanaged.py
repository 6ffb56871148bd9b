"""Directories of the nodes that are folders without lying in a volume, where the settings allow it (decision 0100)."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from ai.backend.common.errors import Forbidden
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation


class UnmanagedPaths:
    """The directories that ``folders.unmanaged-roots`` opens; by default none."""

    def __init__(self, roots: Iterable[str] = ()) -> None:
        self._roots = sorted(posixpath.normpath(root) for root in roots)

    def check(self, caller: Caller, path: str) -> str:
        """The path, if a folder may be made of it.

        Raises:
            Forbidden: the caller is no superadmin, or no root is open there.
        """
        if not is_permitted(caller, Operation.USE_UNMANAGED_PATHS):
            raise Forbidden("Only superadmins make folders of unmanaged paths.", data={"unmanaged_path": "not allowed"})
        self.place(path)
        return path

    def place(self, path: str) -> tuple[str, str]:
        """The root that opens a path, and the way from it, empty for the root itself; raises Forbidden."""
        is_plain = path.startswith("/") and path.isprintable() and posixpath.normpath(path) == path
        for root in self._roots if is_plain else ():
            if path == root or path.startswith(root.rstrip("/") + "/"):
                return root, path[len(root) :].lstrip("/")
        raise Forbidden(
            f"{path[:128]!r} is not at or below a directory that folders.unmanaged-roots of the manager names.",
            data={"unmanaged_path": "no unmanaged root"},
        )
