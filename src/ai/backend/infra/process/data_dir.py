"""The data directory of a user's installation."""

from __future__ import annotations

import os
from pathlib import Path


def default_data_dir() -> Path:
    """Returns ``$XDG_DATA_HOME/backend.ai``, by default ``~/.local/share/backend.ai``."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "backend.ai"
