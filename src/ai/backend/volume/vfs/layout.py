"""Computes the paths of files on a volume (peer facts 5, "Path").

    version.txt                             3
    <scope uuid, 32 hex>/                   a quota scope
        .limit                              its limit in bytes, as text
        .uploads/  .clones/  .trash/        unpublished and deleted files
        <hex[0:2]>/<hex[2:4]>/<hex[4:]>/    a folder

Hidden directories lie inside the scope, so that moving files into a folder stays within one project quota. Sessions
mount folders, so they do not see them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ai.backend.common.errors import InvalidInput, QuotaScopeNotFound, Unavailable
from ai.backend.common.volume_paths import QuotaScopeId, VFolderId

LAYOUT_VERSION = "3"
_HIDDEN_DIRECTORIES = (".uploads", ".clones", ".trash")
_IGNORED_NAMES = frozenset({"version.txt", "lost+found"})
_HEX_DIGITS = frozenset("0123456789abcdef")


class Layout:
    """Computes the paths of scopes and folders below a volume's mount point, and creates the directories of scopes.

    ``owner`` gets users' files, ``make_scope`` creates a scope's directory.
    """

    def __init__(
        self, root: Path, owner: tuple[int, int] | None, make_scope: Callable[[Path], None] | None = None
    ) -> None:
        self.root = root
        self._make_scope = make_scope
        self.owner = owner if os.geteuid() == 0 else None

    def scope(self, scope: QuotaScopeId) -> Path:
        return self.root / scope.id.hex

    def ensure_scope(self, scope: QuotaScopeId, *, has_version: bool = True) -> Path:
        """Returns the directory of a quota scope, and creates it if it is absent.

        Creates it with all directories that deleting needs, since the disk may be full later.
        """
        path = self.scope(scope)
        if not path.is_dir():
            if has_version:
                self.check_presence()
            (self._make_scope or _make_directory)(path)
            for directory_name in _HIDDEN_DIRECTORIES:
                (path / directory_name).mkdir(mode=0o700, exist_ok=True)
        return path

    def existing_scope(self, scope: QuotaScopeId) -> Path:
        path = self.scope(scope)
        if not path.is_dir():
            self.check_presence()
            raise QuotaScopeNotFound(data={"qsid": str(scope)})
        return path

    def folder(self, folder: VFolderId) -> Path:
        folder_hex = folder.id.hex
        return self.scope(folder.scope) / folder_hex[:2] / folder_hex[2:4] / folder_hex[4:]

    def limit_file(self, scope: QuotaScopeId) -> Path:
        return self.scope(scope) / ".limit"

    def hidden_directory(self, scope: QuotaScopeId, directory_name: str) -> Path:
        """Returns the directory ``.uploads`` or ``.clones`` of a scope, and creates it if it is absent."""
        return self._private_directory(self.ensure_scope(scope) / directory_name)

    def trash(self, scope: Path) -> Path:
        return self._private_directory(scope / ".trash")

    @staticmethod
    def _private_directory(path: Path) -> Path:
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def scopes(self) -> list[Path]:
        """Returns the directories of all scopes."""
        return _hex_directories(self.root, 32)

    def folders(self, scope: Path) -> list[Path]:
        """Returns the paths of all folders in a scope."""
        first_dirs = _hex_directories(scope, 2)
        second_dirs = [second_dir for first_dir in first_dirs for second_dir in _hex_directories(first_dir, 2)]
        return [folder for second_dir in second_dirs for folder in _hex_directories(second_dir, 28)]

    def give_to_owner(self, fd: int) -> None:
        """Makes the layout's ``owner`` the owner of a new file."""
        if self.owner is not None:
            os.fchown(fd, *self.owner)

    def check_presence(self) -> None:
        """Raises Unavailable if the volume is not mounted: an empty mount point looks like a volume without files."""
        if not (self.root / "version.txt").exists():
            raise Unavailable("The volume is not in its place.")

    def prepare(self) -> None:
        """Checks that the volume has this layout's version, or initialises an empty volume.

        Raises InvalidInput: the place cannot be used, or holds another version or other files.
        """
        version_path = self.root / "version.txt"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            layout_version = version_path.read_text().strip() if version_path.exists() else None
            if layout_version is None:
                other_names = sorted(entry.name for entry in self.root.iterdir() if entry.name not in _IGNORED_NAMES)
                if other_names:
                    raise InvalidInput(
                        f"{self.root} holds {other_names[0]!r} but no version.txt, so it is no volume; name an empty"
                        " directory."
                    )
                version_path.write_text(LAYOUT_VERSION + "\n")
            elif layout_version != LAYOUT_VERSION:
                migration_hint = f"this version knows {LAYOUT_VERSION}"
                if layout_version == "2":
                    migration_hint = "`backend.ai storage migrate-volume` moves it"
                raise InvalidInput(f"{self.root} is a volume of layout {layout_version!r}; {migration_hint}.")
        except OSError as e:
            raise InvalidInput(f"The volume {self.root} cannot be used: {e.strerror}.") from None


def _make_directory(path: Path) -> None:
    path.mkdir(mode=0o755, exist_ok=True)


def _hex_directories(path: Path, length: int) -> list[Path]:
    """Returns the directories whose names are ``length`` hexadecimal digits; none if ``path`` does not exist."""
    try:
        return [
            directory
            for directory in path.iterdir()
            if len(directory.name) == length and not set(directory.name) - _HEX_DIGITS and directory.is_dir()
        ]
    except FileNotFoundError:
        return []
