"""The store of answers in SQL."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import Column, Connection, LargeBinary, String, Table, delete, func, insert, or_, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from ai.backend.common.errors import InternalError
from ai.backend.infra.database import GUID, Database, JSONText, UTCDateTime, Whole
from ai.backend.infra.http.client_tokens import Answer, KnownCall
from ai.backend.manager.db.metadata import metadata, required
from ai.backend.manager.idempotency.store import KEPT_BYTES, KEPT_CALLS
from ai.backend.manager.secrets.sealer import Sealer

kept_answers = Table(
    "kept_answers",
    metadata,
    Column("access_key", String(20), primary_key=True),
    Column("token", String(128), primary_key=True),
    required("fingerprint", String(64)),
    required("call_id", GUID),
    required("begun_at", UTCDateTime, index=True),
    Column("status", Whole),
    Column("headers", JSONText),
    Column("body", LargeBinary),
)


_PRUNE_EVERY = 50


class SqlAnswerStore:
    """Implements :class:`ai.backend.manager.idempotency.store.AnswerStore`. Bodies are sealed, since they may contain
    secrets; one that cannot be opened counts as too large to be stored. Fingerprints are keyed digests, since passwords
    in calls could be guessed from plain SHA-256 digests."""

    def __init__(self, database: Database, sealer: Sealer | None = None) -> None:
        self._db = database
        self._sealer = sealer or Sealer()
        self._finished = 0

    async def begin(
        self, access_key: str, token: str, fingerprint: str, *, call_id: UUID, now: datetime, since: datetime
    ) -> KnownCall | None:
        c = kept_answers.c
        own = (c.access_key == access_key, c.token == token)
        digests = self._sealer.keyed_digests(fingerprint, "kept_answers.fingerprint")

        def work(s: Connection) -> KnownCall | None:
            row = s.execute(select(kept_answers).where(*own, c.begun_at > since)).one_or_none()
            if row is not None:
                answer = None
                if row.status is not None:
                    body = self._opened(row.body, _associated_data(access_key, token))
                    answer = Answer(status=row.status, headers=row.headers, body=body)
                stored = fingerprint if row.fingerprint in digests else row.fingerprint
                return KnownCall(fingerprint=stored, call_id=row.call_id, answer=answer)
            s.execute(delete(kept_answers).where(*own))
            values = {"access_key": access_key, "token": token, "fingerprint": digests[0], "call_id": call_id}
            s.execute(insert(kept_answers), {**values, "begun_at": now})
            return None

        try:
            return await self._db.run_write(work)
        except IntegrityError:  # another manager was faster
            return await self._db.run_write(work)

    async def finish(self, access_key: str, token: str, answer: Answer) -> None:
        c = kept_answers.c
        self._finished += 1
        is_time_to_prune = self._finished % _PRUNE_EVERY == 0

        def work(s: Connection) -> None:
            body = self._sealed(answer.body, _associated_data(access_key, token))
            values = {"status": answer.status, "headers": dict(answer.headers), "body": body}
            s.execute(update(kept_answers).where(c.access_key == access_key, c.token == token).values(values))
            if is_time_to_prune:
                _prune(s)

        await self._db.run_write(work)

    async def forget(self, access_key: str, token: str) -> None:
        c = kept_answers.c

        own = delete(kept_answers).where(c.access_key == access_key, c.token == token)
        await self._db.run_write(lambda s: s.execute(own))

    async def purge(self, *, before: datetime) -> None:
        def work(s: Connection) -> None:
            s.execute(delete(kept_answers).where(kept_answers.c.begun_at < before))
            _prune(s)

        await self._db.run_write(work)

    def _sealed(self, body: bytes | None, associated_data: str) -> bytes | None:
        if body is None or not self._sealer.is_on:
            return body
        return self._sealer.seal(body.decode("latin-1"), associated_data).encode()

    def _opened(self, stored: bytes | None, associated_data: str) -> bytes | None:
        if stored is None:
            return None
        try:
            return self._sealer.open(stored.decode("latin-1"), associated_data).encode("latin-1")
        except InternalError:
            return None


def _associated_data(access_key: str, token: str) -> str:
    return f"kept_answers.body:{access_key}:{token}"


def _prune(s: Connection) -> None:
    """Deletes all but the newest answers of each access key, within both limits."""
    c = kept_answers.c
    newest = (c.begun_at.desc(), c.token)
    size = func.coalesce(func.length(c.body), 0)
    ranked = (
        select(
            c.access_key,
            c.token,
            func.row_number().over(partition_by=c.access_key, order_by=newest).label("rank"),
            func.sum(size).over(partition_by=c.access_key, order_by=newest).label("bytes"),
        )
        .where(c.status.is_not(None))
        .subquery()
    )
    excess = select(ranked.c.access_key, ranked.c.token).where(
        or_(ranked.c.rank > KEPT_CALLS, ranked.c.bytes > KEPT_BYTES)
    )
    s.execute(delete(kept_answers).where(tuple_(c.access_key, c.token).in_(excess)))
