"""Migrates layout 2, where all folders of a volume are siblings, to layout 3 with quota scopes.

Layout 2 is that of the published storage proxy before quota scopes (peer facts 5, "legacy vfolder"). It does not store
the owners of folders, so the caller names them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from ai.backend.common.errors import InvalidInput
from ai.backend.common.volume_paths import VFolderId
from ai.backend.volume.vfs.layout import LAYOUT_VERSION, Layout


def migrate(layout: Layout, folders: Iterable[VFolderId]) -> list[str]:
    """Moves folders of a volume of layout 2 into their quota scopes, and returns the ids of the folders that remain.

    Each is moved by one rename. The ids have 32 hex digits.

    May be repeated, also after a crash, and with more folders: the volume has the new layout when none remains. Raises
    InvalidInput: the volume has neither layout.
    """
    version_path = layout.root / "version.txt"
    version_text = version_path.read_text().strip() if version_path.exists() else None
    if version_text == LAYOUT_VERSION:
        return []
    if version_text not in ("2", None) or not layout.root.is_dir():
        raise InvalidInput(f"{layout.root} is no volume of layout 2, but of {version_text!r}.")
    for folder in folders:
        folder_hex = folder.id.hex
        old_path, new_path = layout.root / folder_hex[:2] / folder_hex[2:4] / folder_hex[4:], layout.folder(folder)
        if old_path.is_dir() and not new_path.exists():
            layout.ensure_scope(folder.scope, has_version=version_text is not None)
            new_path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            old_path.rename(new_path)
            for parent in (old_path.parent, old_path.parent.parent):
                with suppress(OSError):
                    parent.rmdir()
    remaining_ids = ["".join(path.parts[-3:]) for path in layout.folders(layout.root)]
    if not remaining_ids:
        temporary_path = version_path.with_suffix(".tmp")
        temporary_path.write_text(LAYOUT_VERSION + "\n")
        os.sync()
        temporary_path.replace(version_path)
    return sorted(remaining_ids)
