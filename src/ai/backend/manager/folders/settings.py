"""Settings of folders."""

from __future__ import annotations

from pydantic import Field

from ai.backend.infra.settings import Settings


class FolderSettings(Settings):
    """Virtual folders."""

    trash_days: float = Field(
        30.0, ge=0, description="How long a deleted folder can be restored, in days; then it is removed. 0: for ever."
    )
    unmanaged_roots: list[str] = Field(
        [],
        description="Directories of the nodes at or below which superadmins may make folders of unmanaged paths.",
    )
