"""Parameters of requests about volumes, quota scopes and folders."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ai.backend.infra.http.routes import Schema

Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class SomeVolumeParams(Schema, frozen=True, kw_only=True):
    volume: str | None = None


class VolumeParams(Schema, frozen=True, kw_only=True):
    volume: str


class FolderParams(VolumeParams, frozen=True, kw_only=True):
    vfid: str


class ScopeParams(VolumeParams, frozen=True, kw_only=True):
    qsid: str


class QuotaOptions(Schema, frozen=True, kw_only=True):
    limit_bytes: Bytes | None = None


class ScopeBody(ScopeParams, frozen=True, kw_only=True):
    options: QuotaOptions | None = None
