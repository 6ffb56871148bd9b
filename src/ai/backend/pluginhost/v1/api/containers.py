"""Names of ``ai.backend.agent.types`` that v1 plugins use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ai.backend.pluginhost.v1.api.types import ContainerId, MountTypes

__all__ = ["Container", "MountInfo"]


@dataclass
class MountInfo:
    """A host path to be shown in the container."""

    mode: MountTypes
    src_path: Path
    dst_path: Path


@dataclass(kw_only=True)
class Container:
    """The argument of ``restore_from_container`` in the published agent; this agent makes none."""

    id: ContainerId
    status: str = ""
    image: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Sequence[Any] = ()
    backend_obj: Any = None
