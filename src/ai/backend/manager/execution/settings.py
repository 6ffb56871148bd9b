"""Settings of execution."""

from __future__ import annotations

from pydantic import Field

from ai.backend.infra.settings import Settings


class FileSettings(Settings):
    """Limits of file transfer (spec 03-08)."""

    max_upload_files: int = Field(20, ge=1, description="Files in one upload.")
    max_upload_bytes: int = Field(1_048_576, ge=1, description="Size of one uploaded file, in bytes.")
    max_download_files: int = Field(5, ge=1, description="Files in one download.")
    max_download_bytes: int = Field(67_108_864, ge=1, description="Size of all archives of a download, in bytes.")
