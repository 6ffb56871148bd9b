"""Settings of artifacts."""

from __future__ import annotations

from pydantic import Field, field_validator

from ai.backend.infra.settings import Settings


class ArtifactSettings(Settings):
    """Importing artifacts. Storages are written proxy:storage; a registry may have others."""

    download_storage: str | None = Field(None, description="Where imports are fetched to; unset: as its proxy says.")
    verify_storage: str | None = Field(None, description="Where they are verified; unset: as its proxy says.")
    archive_storage: str | None = Field(None, description="Where they stay; unset: as its proxy says.")
    verify: bool = Field(True, description="Whether contents are compared with what the registry announced.")
    parallel: int = Field(4, ge=1, le=64, description="Imports at a time; others wait.")
    give_up_hours: float = Field(24.0, gt=0, description="How long an import is tried while somebody does not answer.")
    url_s: int = Field(3600, ge=1, le=604_800, description="How long presigned URLs are good, in seconds.")
    mount_wait_s: float = Field(
        20.0, ge=0, description="How long, in seconds, a session's creation waits for a copy that can be mounted."
    )

    @field_validator("download_storage", "verify_storage", "archive_storage")
    @classmethod
    def _are_hosts(cls, host: str | None) -> str | None:
        if host is not None and not all(host.partition(":")):
            raise ValueError("a storage is written proxy:storage")
        return host
