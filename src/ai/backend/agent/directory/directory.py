"""The agent's data directory."""

from __future__ import annotations

import fcntl
import logging
import secrets
from pathlib import Path
from typing import IO

from ai.backend.common.errors import Conflict
from ai.backend.infra.atomic_write import write_atomically

log = logging.getLogger(__name__)


_SECRET_BYTES = 32


class DataDirectory:
    """The agent's exclusive hold of its directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[bytes] | None = None

    def open(self) -> None:
        """Create and lock it.

        Raises:
            Conflict: another agent uses it.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (self.path / "agent.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise Conflict(f"another agent uses {self.path}") from None
        self._lock = lock

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def next_epoch(self) -> int:
        """A number larger than at any start before."""
        path = self.path / "epoch"
        try:
            previous = int(path.read_text())
        except (FileNotFoundError, ValueError):
            previous = 0
        write_atomically(path, str(previous + 1).encode())
        return previous + 1

    def secret(self) -> bytes:
        """Made at the first start, and known to this agent alone."""
        path = self.path / "secret"
        try:
            known = path.read_bytes()
        except FileNotFoundError:
            known = b""
        if len(known) != _SECRET_BYTES:
            known = secrets.token_bytes(_SECRET_BYTES)
            write_atomically(path, known)
            path.chmod(0o600)
        return known
