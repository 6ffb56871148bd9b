"""The real time and the real chance."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime
from uuid import UUID, uuid4

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class SystemClock:
    """Implements :class:`ai.backend.manager.ports.world.Clock`."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class SystemMinter:
    """Implements :class:`ai.backend.manager.ports.world.Minter`."""

    def uuid(self) -> UUID:
        return uuid4()

    def token(self, length: int) -> str:
        return "".join(secrets.choice(_ALPHABET) for _ in range(length))
