"""Requests and replies of volumes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ai.backend.common.volume_paths import VFolderId
from ai.backend.infra.http.routes import Schema
from ai.backend.plugin.volume import AbstractVolume
from ai.backend.storage.volumes.registry import Volumes

Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class VolumeParams(Schema, frozen=True, kw_only=True):
    volume: str


class FolderParams(VolumeParams, frozen=True, kw_only=True):
    vfid: str


class _Api:
    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes

    def _place(self, params: FolderParams) -> tuple[AbstractVolume, VFolderId]:
        return self._volumes.get(params.volume), VFolderId.parse(params.vfid)
