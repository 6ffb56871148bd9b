"""The layout of files on a volume (peer facts 5, "Path").

    version.txt                             3
    <scope uuid, 32 hex>/                   a quota scope
        .limit                              its limit in bytes, as text
        .uploads/  .clones/  .trash/        what is not visible yet, or not any more
        <hex[0:2]>/<hex[2:4]>/<hex[4:]>/    a folder

What is hidden lies inside the scope, so that moving it into a folder stays within one project quota. Sessions
mount folders, so they see nothing of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ai.backend.common.errors import InvalidInput, QuotaScopeNotFound, Unavailable
from ai.backend.common.volume_paths import QuotaScopeId, VFolderId

VERSION = "3"
_HIDDEN = (".uploads", ".clones", ".trash")
_FOREIGN = frozenset({"version.txt", "lost+found"})


class Layout:
    """Computes paths below a mount point. ``owner`` gets users' files, ``make_scope`` creates a scope's directory."""

    def __init__(
        self, root: Path, owner: tuple[int, int] | None, make_scope: Callable[[Path], None] | None = None
    ) -> None:
        self.root = root
        self._make_scope = make_scope or _make_directory
        self.owner = owner if os.geteuid() == 0 else None

    def scope(self, scope: QuotaScopeId) -> Path:
        return self.root / scope.id.hex

    def made_scope(self, scope: QuotaScopeId, *, has_version: bool = True) -> Path:
        """Return the trash, created with all that deleting needs, since the disk may be full later."""
        path = self.scope(scope)
        if not path.is_dir():
            if has_version:
                self.check_presence()
            self._make_scope(path)
            for what in _HIDDEN:
                (path / what).mkdir(mode=0o700, exist_ok=True)
        return path

    def existing_scope(self, scope: QuotaScopeId) -> Path:
        path = self.scope(scope)
        if not path.is_dir():
            self.check_presence()
            raise QuotaScopeNotFound(data={"qsid": str(scope)})
        return path

    def folder(self, folder: VFolderId) -> Path:
        text = folder.id.hex
        return self.scope(folder.scope) / text[:2] / text[2:4] / text[4:]

    def limit(self, scope: QuotaScopeId) -> Path:
        return self.scope(scope) / ".limit"

    def hidden(self, scope: QuotaScopeId, what: str) -> Path:
        """Return ``.uploads`` or ``.clones`` of a scope, created if absent."""
        path = self.made_scope(scope) / what
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def trash(self, scope: Path) -> Path:
        path = scope / ".trash"
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def scopes(self) -> list[Path]:
        """Yield the directories of all scopes."""
        return [p for p in self.root.iterdir() if len(p.name) == 32 and _is_hex(p.name) and p.is_dir()]

    def folders(self, scope: Path) -> list[Path]:
        """Yield the paths of all folders in a scope."""
        return [
            folder
            for first in _hex_directories(scope, 2)
            for second in _hex_directories(first, 2)
            for folder in _hex_directories(second, 28)
        ]

    def give(self, fd: int) -> None:
        """Give a new file to its owner."""
        if self.owner is not None:
            os.fchown(fd, *self.owner)

    def check_presence(self) -> None:
        """Check that the volume is mounted, before a file is created or reported missing: without it, it looks empty.

        Raises:
            Unavailable: the volume is not in its place.
        """
        if not (self.root / "version.txt").exists():
            raise Unavailable("The volume is not in its place.")

    def prepare(self) -> None:
        """Check the version, or initialise an empty volume.

        Raises:
            InvalidInput: the place cannot be used, holds another version, or something else altogether.
        """
        version = self.root / "version.txt"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            layout = version.read_text().strip() if version.exists() else None
            if layout is None:
                strangers = sorted(p.name for p in self.root.iterdir() if p.name not in _FOREIGN)
                if strangers:
                    raise InvalidInput(
                        f"{self.root} holds {strangers[0]!r} but no version.txt, so it is no volume; name an empty"
                        " directory."
                    )
                version.write_text(VERSION + "\n")
            elif layout != VERSION:
                way = (
                    "`backend.ai storage migrate-volume` moves it" if layout == "2" else f"this version knows {VERSION}"
                )
                raise InvalidInput(f"{self.root} is a volume of layout {layout!r}; {way}.")
        except OSError as e:
            raise InvalidInput(f"The volume {self.root} cannot be used: {e.strerror}.") from None


def _make_directory(path: Path) -> None:
    path.mkdir(mode=0o755, exist_ok=True)


def _is_hex(text: str) -> bool:
    return all(c in "0123456789abcdef" for c in text)


def _hex_directories(path: Path, length: int) -> list[Path]:
    try:
        return [p for p in path.iterdir() if len(p.name) == length and _is_hex(p.name) and p.is_dir()]
    except FileNotFoundError:
        return []
