"""Data dir of process."""

from __future__ import annotations

import os
from pathlib import Path


def default_data_dir() -> Path:
    """``$XDG_DATA_HOME/backend.ai``, which is ``~/.local/share/backend.ai`` unless set otherwise."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "backend.ai"
