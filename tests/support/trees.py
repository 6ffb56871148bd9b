"""The recorded trees of ``tests/data/sysfs``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ai.backend.plugin.sysfs.tree import unpack

TREES = Path(__file__).parent.parent / "data" / "sysfs"


def roots(name: str, place: Path) -> dict[str, Any]:
    """Unpack a recording below ``place``; the settings of a plugin that reads it."""
    unpack((TREES / f"{name}.tree").read_text(encoding="utf-8"), place)
    return {"sysfs_root": place / "sys", "dev_root": place / "dev"}
