"""Notes which tokens of other sites have signed somebody in, among the calls that are done once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from ai.backend.infra.clock import Clock
from ai.backend.manager.idempotency.store import AnswerStore

_PLACE = "sign-in by token"
"""Stands where calls have their access key; it is none."""


@dataclass(eq=False, slots=True)
class SpentTokens:
    """Implements :class:`ai.backend.manager.identity.store.SpentTokens`: a token is spent as a call begins, by the one
    write that tells its first time from all others, and stays for ``life``."""

    _calls: AnswerStore
    _clock: Clock
    life: timedelta

    async def spend(self, digest: str) -> bool:
        now = self._clock.now()
        since = now - self.life
        earlier_call = await self._calls.begin(_PLACE, digest, digest, call_id=uuid4(), now=now, since=since)
        return earlier_call is None
