"""Declares the store of answers to calls with a client token."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from ai.backend.infra.http import client_tokens

MAX_KEPT_CALLS = 1_000
MAX_KEPT_BYTES = 33_554_432


class AnswerStore(client_tokens.AnswerStore, Protocol):
    """Stores the answers to calls with a client token, so that a repeated call gets the same answer.

    Keeps, for each access key, the newest :data:`MAX_KEPT_CALLS` answers and at most :data:`MAX_KEPT_BYTES` of bodies.
    Calls without an answer are not counted.
    """

    async def purge(self, *, before: datetime) -> None:
        """Deletes calls that began before a time, and answers beyond the limits of each access key."""
