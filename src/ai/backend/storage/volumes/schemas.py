"""Parameters that requests about volumes and folders share."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ai.backend.infra.http.routes import Schema

Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class VolumeParams(Schema, frozen=True, kw_only=True):
    volume: str


class FolderParams(VolumeParams, frozen=True, kw_only=True):
    vfid: str
