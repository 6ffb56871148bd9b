"""Defines volumes and the operations that are allowed on storage hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ai.backend.common.folders import HostPermission

HostRights = Mapping[str, frozenset[HostPermission]]
"""Maps a storage host to the operations that are allowed on it."""


class VolumeMount(msgspec.Struct, frozen=True, kw_only=True):
    """The file system under a volume, as its proxy reports it."""

    volume: str
    path: str
    mount_point: str
    source: str
    fstype: str


class VolumeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a volume; ``status`` is ``healthy`` or ``unavailable``."""

    status: str
    status_info: str | None = None
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """A volume as its proxy reports it; ``capabilities`` are listed in peer facts 5."""

    host: str
    backend: str
    capabilities: tuple[str, ...] = ()
    path: str = ""
    fsprefix: str = "."
    usage: Mapping[str, int] = msgspec.field(default_factory=dict)
