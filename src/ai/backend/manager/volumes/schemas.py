"""Requests and replies of volumes."""

from __future__ import annotations

from ai.backend.infra.http.routes import Schema
from ai.backend.manager.folders.schemas import Path, Word


class HostQuery(Schema, frozen=True):
    folder_host: Word


class FstabQuery(Schema, frozen=True):
    agent_id: Word | None = None


class MountBody(Schema, frozen=True):
    """What the published client sends to mount and unmount file systems."""

    name: Word
    fs_location: Path | None = None
    options: Path | None = None
    edit_fstab: bool = False
