"""Migrates layout 2, where all folders of a volume lie side by side, to layout 3 with quota scopes.

Layout 2 is the one of the published storage proxy before quota scopes (peer facts 5, "legacy vfolder"). Whose a folder
is stands nowhere on the volume: somebody who knows says it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ai.backend.common.errors import InvalidInput
from ai.backend.common.volume_paths import VFolderId
from ai.backend.volume.vfs.layout import VERSION, Layout

_OLDER = ("2", None)


def migrate(layout: Layout, folders: Iterable[VFolderId]) -> list[str]:
    """Move folders into their scopes, each by one rename.

    May be repeated, also after a death, and with more folders: the volume has the new layout when none is left.

    Returns:
        The ids (32 hex digits) of folders that are still where they were.

    Raises:
        InvalidInput: the volume has neither layout.
    """
    version = layout.root / "version.txt"
    version_text = version.read_text().strip() if version.exists() else None
    if version_text == VERSION:
        return []
    if version_text not in _OLDER or not layout.root.is_dir():
        raise InvalidInput(f"{layout.root} is no volume of layout 2, but of {version_text!r}.")
    for folder in folders:
        old, new = _old_place(layout.root, folder.id.hex), layout.folder(folder)
        if old.is_dir() and not new.exists():
            layout.made_scope(folder.scope, has_version=version_text is not None)
            new.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            old.rename(new)
            for parent in (old.parent, old.parent.parent):
                with suppress(OSError):
                    parent.rmdir()
    remaining = ["".join(path.parts[-3:]) for path in layout.folders(layout.root)]
    if not remaining:
        temporary = version.with_suffix(".tmp")
        temporary.write_text(VERSION + "\n")
        os.sync()
        temporary.replace(version)
    return sorted(remaining)


def _old_place(root: Path, text: str) -> Path:
    return root / text[:2] / text[2:4] / text[4:]
