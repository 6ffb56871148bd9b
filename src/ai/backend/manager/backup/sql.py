"""Changes the rows of a restored database."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select, update

from ai.backend.common.states import SessionStatus
from ai.backend.infra.database import Database
from ai.backend.infra.database.batching import chunks
from ai.backend.manager.sessions.model import STARTED_OVER
from ai.backend.manager.sessions.tables import kernels, sessions

_ATTEMPT_GAP = 1000
"""A number of attempts that no session can have reached between the backup and the loss of the database."""


async def raise_waiting_attempts(database: Database) -> int:
    """Sets the attempt number of each waiting session to one that no agent has seen. Returns the number of sessions.

    The raised attempts do not count as failures, as those of a session that started over.
    """

    def raise_attempts(connection: Connection) -> int:
        waiting_query = select(sessions.c.id, sessions.c.status_data).where(sessions.c.status == SessionStatus.PENDING)
        rows = connection.execute(waiting_query).all()
        update_query = (
            update(sessions).where(sessions.c.id == bindparam("session")).values(status_data=bindparam("data"))
        )
        for chunk in chunks(rows):
            connection.execute(
                update_query, [{"session": row.id, "data": _with_attempt_gap(row.status_data)} for row in chunk]
            )
            connection.execute(
                update(kernels)
                .where(kernels.c.session_id.in_([row.id for row in chunk]))
                .values(attempt=kernels.c.attempt + _ATTEMPT_GAP)
            )
        return len(rows)

    return await database.run_write(raise_attempts)


def _with_attempt_gap(status_data: dict[str, object]) -> dict[str, object]:
    """Returns a session's ``status_data`` after its attempts were raised: the raise does not count as failures."""
    started_over = status_data.get(STARTED_OVER)
    old_counts = started_over if isinstance(started_over, dict) else {}
    raised_counts = {"times": old_counts.get("times", 0), "attempts": old_counts.get("attempts", 0) + _ATTEMPT_GAP}
    return {**status_data, STARTED_OVER: raised_counts}
