"""The store of answers in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from ai.backend.infra.http.client_tokens import Answer, KnownCall
from ai.backend.manager.db.fence import check_fence
from ai.backend.manager.idempotency.store import KEPT_BYTES, KEPT_CALLS


@dataclass(frozen=True, slots=True)
class _Row:
    begun_at: datetime
    call: KnownCall


class MemoryAnswerStore:
    """Implements :class:`ai.backend.manager.idempotency.store.AnswerStore`."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Row] = {}

    async def begin(
        self, access_key: str, token: str, fingerprint: str, *, call_id: UUID, now: datetime, since: datetime
    ) -> KnownCall | None:
        row = self._rows.get((access_key, token))
        if row is not None and row.begun_at > since:
            return row.call
        begun = KnownCall(fingerprint=fingerprint, call_id=call_id, answer=None)
        self._rows[access_key, token] = _Row(now, begun)
        return None

    async def finish(self, access_key: str, token: str, answer: Answer) -> None:
        row = self._rows.get((access_key, token))
        if row is not None:
            self._rows[access_key, token] = replace(row, call=replace(row.call, answer=answer))
        self._prune(access_key)

    async def forget(self, access_key: str, token: str) -> None:
        self._rows.pop((access_key, token), None)

    async def purge(self, *, before: datetime) -> None:
        check_fence()
        self._rows = {key: row for key, row in self._rows.items() if row.begun_at >= before}
        for access_key in {key[0] for key in self._rows}:
            self._prune(access_key)

    def _prune(self, access_key: str) -> None:
        rows = [(row.begun_at, key) for key, row in self._rows.items() if key[0] == access_key and row.call.answer]
        total = 0
        for rank, (_, key) in enumerate(sorted(rows, reverse=True), start=1):
            answer = self._rows[key].call.answer
            total += len(answer.body or b"") if answer is not None else 0
            if rank > KEPT_CALLS or total > KEPT_BYTES:
                del self._rows[key]
