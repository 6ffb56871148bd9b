"""Stores of idempotency: the ports."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from ai.backend.infra.http import client_tokens

KEPT_CALLS = 1_000


KEPT_BYTES = 33_554_432


class AnswerStore(client_tokens.AnswerStore, Protocol):
    """Answers to calls with a client token: of each access key the newest :data:`KEPT_CALLS`, and no more than
    :data:`KEPT_BYTES` of bodies. Calls that are not answered are not counted."""

    async def purge(self, *, before: datetime) -> None:
        """Forget what began before, and whatever is beyond the limits."""
