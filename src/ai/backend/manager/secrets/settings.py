"""Settings of the encryption of secrets."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from ai.backend.infra.settings import Settings


class SecretSettings(Settings):
    """Settings of the encryption of secrets in the database."""

    key_file: Path | None = Field(
        None,
        description="Keys that seal the secrets in the database, the same file for every manager of it; "
        "`secrets.key` in the data directory, made at the first start, if unset.",
    )
