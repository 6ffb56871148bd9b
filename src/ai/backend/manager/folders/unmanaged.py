"""Folders whose directory lies on the nodes outside of volumes, where the settings allow it (decision 0100)."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from ai.backend.common.errors import Forbidden
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation


class UnmanagedPaths:
    """Checks paths against ``folders.unmanaged-roots``, which is empty by default."""

    def __init__(self, roots: Iterable[str] = ()) -> None:
        self._roots = sorted(posixpath.normpath(root) for root in roots)

    def check(self, caller: Caller, path: str) -> str:
        """Returns the path if a folder may be created of it.

        Raises:
            Forbidden: the caller is no superadmin, or the path is below no root.
        """
        if not is_permitted(caller, Operation.USE_UNMANAGED_PATHS):
            raise Forbidden("Only superadmins make folders of unmanaged paths.", data={"unmanaged_path": "not allowed"})
        self.place(path)
        return path

    def place(self, path: str) -> tuple[str, str]:
        """Returns the root of a path and the path relative to it, empty for the root. Raises Forbidden."""
        is_plain = path.startswith("/") and path.isprintable() and posixpath.normpath(path) == path
        for root in self._roots if is_plain else ():
            if path == root or path.startswith(root.rstrip("/") + "/"):
                return root, path[len(root) :].lstrip("/")
        raise Forbidden(
            f"{path[:128]!r} is not at or below a directory that folders.unmanaged-roots of the manager names.",
            data={"unmanaged_path": "no unmanaged root"},
        )
