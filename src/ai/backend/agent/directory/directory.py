"""The agent's data directory."""

from __future__ import annotations

import fcntl
import secrets
from pathlib import Path
from typing import IO

from ai.backend.common.errors import Conflict
from ai.backend.infra.files import write_atomically

_SECRET_BYTES = 32


class DataDirectory:
    """Locks the data directory for one agent, and stores the agent's epoch and secret in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[bytes] | None = None

    def open(self) -> None:
        """Create and lock the directory.

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
        """Return a number that is larger than at any earlier start, and store it."""
        path = self.path / "epoch"
        try:
            previous = int(path.read_text())
        except (FileNotFoundError, ValueError):
            previous = 0
        write_atomically(path, str(previous + 1).encode())
        return previous + 1

    def secret(self) -> bytes:
        """Return the agent's secret, which is generated at the first start."""
        path = self.path / "secret"
        try:
            secret = path.read_bytes()
        except FileNotFoundError:
            secret = b""
        if len(secret) != _SECRET_BYTES:
            secret = secrets.token_bytes(_SECRET_BYTES)
            write_atomically(path, secret)
            path.chmod(0o600)
        return secret
