"""Stores the answers to calls with a client token in SQL."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import Column, Connection, LargeBinary, String, Table, delete, func, or_, select, tuple_
from sqlalchemy.exc import IntegrityError

from ai.backend.common.errors import InternalError
from ai.backend.infra.database import GUID, Database, JSONText, UTCDateTime, Whole
from ai.backend.infra.database.columns import required
from ai.backend.infra.database.prepared import Prepared, insertion, parameter, updating
from ai.backend.infra.http.client_tokens import Answer, KnownCall
from ai.backend.manager.db import metadata
from ai.backend.manager.idempotency.store import MAX_KEPT_BYTES, MAX_KEPT_CALLS
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

_IS_CALL = (
    kept_answers.c.access_key == parameter(kept_answers.c.access_key),
    kept_answers.c.token == parameter(kept_answers.c.token),
)
_CALL_QUERY = Prepared(
    select(kept_answers).where(*_IS_CALL, kept_answers.c.begun_at > parameter(kept_answers.c.begun_at, "since"))
)
_CALL_DELETION = Prepared(delete(kept_answers).where(*_IS_CALL))
_CALL_INSERTION = insertion(kept_answers, ("access_key", "token", "fingerprint", "call_id", "begun_at"))
_ANSWER_UPDATE = updating(kept_answers, ("access_key", "token"), ("status", "headers", "body"))
_PRUNE_EVERY_ANSWERS = 50


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
        call_key = {"access_key": access_key, "token": token}
        fingerprint_digests = self._sealer.keyed_digests(fingerprint, "kept_answers.fingerprint")

        def work(conn: Connection) -> KnownCall | None:
            row = _CALL_QUERY.first(conn, {**call_key, "since": since})
            if row is not None:
                answer = None
                if row.status is not None:
                    body = self._open_body(row.body, _associated_data(access_key, token))
                    answer = Answer(status=row.status, headers=row.headers, body=body)
                stored_digest = fingerprint if row.fingerprint in fingerprint_digests else row.fingerprint
                return KnownCall(fingerprint=stored_digest, call_id=row.call_id, answer=answer)
            _CALL_DELETION.execute(conn, call_key)
            _CALL_INSERTION.execute(
                conn, {**call_key, "fingerprint": fingerprint_digests[0], "call_id": call_id, "begun_at": now}
            )
            return None

        try:
            return await self._db.run_write(work)
        except IntegrityError:  # another manager was faster
            return await self._db.run_write(work)

    async def finish(self, access_key: str, token: str, answer: Answer) -> None:
        self._finished += 1
        is_time_to_prune = self._finished % _PRUNE_EVERY_ANSWERS == 0

        def work(conn: Connection) -> None:
            body = self._seal_body(answer.body, _associated_data(access_key, token))
            values = {"new_status": answer.status, "new_headers": dict(answer.headers), "new_body": body}
            _ANSWER_UPDATE.execute(conn, {"access_key": access_key, "token": token, **values})
            if is_time_to_prune:
                _prune(conn)

        await self._db.run_write(work)

    async def forget(self, access_key: str, token: str) -> None:
        await self._db.run_write(lambda conn: _CALL_DELETION.execute(conn, {"access_key": access_key, "token": token}))

    async def purge(self, *, before: datetime) -> None:
        def work(conn: Connection) -> None:
            conn.execute(delete(kept_answers).where(kept_answers.c.begun_at < before))
            _prune(conn)

        await self._db.run_write(work)

    def _seal_body(self, body: bytes | None, associated_data: str) -> bytes | None:
        if body is None or not self._sealer.is_on:
            return body
        return self._sealer.seal(body.decode("latin-1"), associated_data).encode()

    def _open_body(self, stored_body: bytes | None, associated_data: str) -> bytes | None:
        if stored_body is None:
            return None
        try:
            return self._sealer.open(stored_body.decode("latin-1"), associated_data).encode("latin-1")
        except InternalError:
            return None


def _associated_data(access_key: str, token: str) -> str:
    return f"kept_answers.body:{access_key}:{token}"


def _prune(conn: Connection) -> None:
    """Deletes the oldest answers of each access key that exceed the number or the total size that may be kept."""
    columns = kept_answers.c
    newest_first = (columns.begun_at.desc(), columns.token)
    body_size = func.coalesce(func.length(columns.body), 0)
    ranked_rows = (
        select(
            columns.access_key,
            columns.token,
            func.row_number().over(partition_by=columns.access_key, order_by=newest_first).label("rank"),
            func.sum(body_size).over(partition_by=columns.access_key, order_by=newest_first).label("bytes"),
        )
        .where(columns.status.is_not(None))
        .subquery()
    )
    excess_rows = select(ranked_rows.c.access_key, ranked_rows.c.token).where(
        or_(ranked_rows.c.rank > MAX_KEPT_CALLS, ranked_rows.c.bytes > MAX_KEPT_BYTES)
    )
    conn.execute(delete(kept_answers).where(tuple_(columns.access_key, columns.token).in_(excess_rows)))
