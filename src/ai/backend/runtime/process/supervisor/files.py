"""Writes files of workloads atomically."""

from __future__ import annotations

import json
import os
from typing import Any


def write_json(name: str, content: dict[str, Any], *, durable: bool = False) -> None:
    """Replaces a file of the workload's directory atomically."""
    with open(name + ".tmp", "w", encoding="utf-8") as file:  # no pathlib here: memory
        json.dump(content, file)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(name + ".tmp", name)  # as above
