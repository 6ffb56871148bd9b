"""Settings of fetching images for devices: the table ``[artifacts]``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from ai.backend.plugin.settings import Settings, Size

_GIB = 1 << 30


class ArtifactAccountSettings(Settings):
    """The table ``[artifacts.accounts."HOST"]``: an account at a container registry."""

    username: str = Field(min_length=1, description="Name of the account.")
    password_file: Path = Field(description="File with its password or token.")


class ArtifactSettings(Settings):
    """The table ``[artifacts]``: the hosts from which images of devices are fetched, and limits of stored images."""

    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="Hosts, addresses or *.domain that https and oci images come from, at any address; empty: every"
        " host with a public address.",
    )
    ca_file: Path | None = Field(None, description="Certificates that sign those of the hosts, besides the system's.")
    max_size: Size = Field(4 * _GIB, gt=0, description="Bytes of the largest image.")
    cache_size: Size = Field(
        16 * _GIB, ge=0, description="Bytes of images that are kept; those used last stay, and the newest always."
    )
    timeout: float = Field(900.0, gt=0, description="In seconds, for one attempt; the next one goes on where it ended.")
    accounts: dict[str, ArtifactAccountSettings] = Field(
        default_factory=dict, description="Accounts at container registries, by HOST or HOST:PORT."
    )
