"""Requests about storage hosts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ai.backend.infra.http.fields import Word
from ai.backend.infra.http.routes import Schema

_Option = Annotated[str, Meta(max_length=4_096)]


class HostQuery(Schema, frozen=True):
    folder_host: Word


class FstabQuery(Schema, frozen=True):
    agent_id: Word | None = None


class MountBody(Schema, frozen=True):
    """Names a file system to mount or unmount, as the published client sends it."""

    name: Word
    fs_location: _Option | None = None
    options: _Option | None = None
    edit_fstab: bool = False
