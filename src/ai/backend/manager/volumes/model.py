"""Values of volumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ai.backend.common.folders import HostPermission

HostRights = Mapping[str, frozenset[HostPermission]]
"""Host -> what may be done there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeMount:
    """What a volume lies on, as its proxy sees it."""

    volume: str
    path: str
    mount_point: str
    source: str
    fstype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeHealth:
    """``status`` is ``healthy`` or ``unavailable``."""

    status: str
    status_info: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume as its proxy tells of it. ``capabilities`` are those of peer facts 5."""

    host: str
    backend: str
    capabilities: tuple[str, ...] = ()
    path: str = ""
    fsprefix: str = "."
    usage: Mapping[str, int] = field(default_factory=dict)
