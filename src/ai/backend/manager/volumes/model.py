"""Volumes and the operations that are allowed on their hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ai.backend.common.folders import HostPermission

HostRights = Mapping[str, frozenset[HostPermission]]
"""Host -> allowed operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeMount:
    """The file system under a volume, as its proxy reports it."""

    volume: str
    path: str
    mount_point: str
    source: str
    fstype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeHealth:
    """The health of a volume; ``status`` is ``healthy`` or ``unavailable``."""

    status: str
    status_info: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume as its proxy reports it; ``capabilities`` are listed in peer facts 5."""

    host: str
    backend: str
    capabilities: tuple[str, ...] = ()
    path: str = ""
    fsprefix: str = "."
    usage: Mapping[str, int] = field(default_factory=dict)
