"""Records the progress of a build in this user's cache, and reads the record for waiting processes."""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_FILE_NAME = "progress.json"
LOCK_NAME = "build.lock"
LOG_NAME = "build.log"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Describes the last step of a build.

    Attributes:
        started_at: Unix time at which the build began, in seconds.
        error: one line that says why the build failed; empty if it did not.
        is_running: False as well for a build that was killed.
    """

    digest: str
    step: str
    started_at: float
    error: str = ""
    is_running: bool = False

    @property
    def age_s(self) -> float:
        return max(0.0, time.time() - self.started_at)


def write_progress(cache: Path, progress: Progress) -> None:
    """Replaces the progress file. Raises OSError."""
    path = cache / f".{_FILE_NAME}.{os.getpid()}"
    stored_fields = {key: value for key, value in asdict(progress).items() if key != "is_running"}
    path.write_text(json.dumps(stored_fields))
    path.replace(cache / _FILE_NAME)


def read_progress(cache: Path) -> Progress | None:
    """Returns the last step of the last build. Returns None if there was no build, or its file cannot be read."""
    try:
        stored_fields: dict[str, Any] = json.loads((cache / _FILE_NAME).read_text())
        return Progress(
            digest=str(stored_fields["digest"]),
            step=str(stored_fields["step"]),
            started_at=float(stored_fields["started_at"]),
            error=str(stored_fields["error"]),
            is_running=_is_locked(cache / LOCK_NAME),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
