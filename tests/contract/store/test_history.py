"""Old history moves to files: each row once, and none that somebody needs, also when the process is killed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select

from ai.backend.common.errors import Unavailable
from ai.backend.common.ids import UserId
from ai.backend.common.states import SessionStatus
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.claim import ClaimTrigger
from ai.backend.infra.database import Database
from ai.backend.manager.logs.model import AuditRecord
from ai.backend.manager.logs.sql import SqlAuditStore
from ai.backend.manager.maintenance import history as history_module
from ai.backend.manager.maintenance.history import History
from ai.backend.manager.maintenance.parquet import ParquetArchive
from ai.backend.manager.maintenance.sql_history import SqlHistoryStore
from ai.backend.manager.maintenance.store import HistoryKind, Rows
from ai.backend.manager.sessions.claims.model import advance
from ai.backend.manager.sessions.claims.sql import write_claims
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.sql import SqlSessionStore
from ai.backend.manager.sessions.tables import claim_spans, sessions
from tests.contract.store.builders import NOW, ended, event, make_session, placed
from tests.contract.store.test_claims import allocated, make_claim
from tests.support.migrated import migrated
from tests.support.postgres import emptied, migrated_template, shared_server

pq = pytest.importorskip("pyarrow.parquet")
DAY = timedelta(days=1)
CUTOFF = NOW + 10 * DAY


class Killed(Exception):
    """Stands for the death of the process at one point."""


@dataclass
class Kept:
    database: Database
    sessions: SqlSessionStore
    audit: SqlAuditStore
    store: SqlHistoryStore
    archive: ParquetArchive

    @property
    def history(self) -> History:
        return History(self.store, self.archive)

    async def add(self, name: str, *, at: datetime = NOW, end: datetime | None = NOW, **changes: Any) -> Session:
        """Stores a session that was created at a time, and ended at another one unless that is None."""
        session = make_session(name, at=at, **changes)
        await self.sessions.insert(session, events=[event(session)])
        if end is not None:
            await self.sessions.save([placed(session)])
            scheduled = await self.sessions.get(session.id)
            assert scheduled is not None
            change = ended(scheduled, at=end)
            new = replace(change.new, status=SessionStatus.TERMINATED, terminated_at=end)
            await self.sessions.save([replace(change, new=new)])
        return session

    async def names(self) -> set[str]:
        rows = await self.database.fetch(select(sessions.c.name))
        return {row.name for row in rows}

    def archived(self, table: str) -> list[dict[str, Any]]:
        files = sorted((self.archive.folder / table).glob("*.parquet"))
        return [row for path in files for row in pq.read_table(path).to_pylist()]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kept]:
    monkeypatch.setattr(history_module, "BATCH_ROWS", 2)
    url = f"sqlite:///{migrated(tmp_path / 'manager.db')}"
    if request.param == "postgres":
        url = shared_server().url(emptied(shared_server(), migrated_template()))
    database = Database(url)
    store = SqlHistoryStore(database)
    archive = ParquetArchive(tmp_path / "archive", store.columns)
    yield Kept(database, SqlSessionStore(database), SqlAuditStore(database), store, archive)
    await database.close()


async def test_ended_sessions_move_with_their_kernels_and_events(kept: Kept) -> None:
    old = [await kept.add(f"old-{number}", at=NOW + number * timedelta(hours=1), size=2) for number in range(5)]
    await kept.add("ended-lately", end=CUTOFF + DAY)
    await kept.add("lives", end=None)
    removed = await kept.history.remove(HistoryKind.SESSIONS, before=CUTOFF)
    assert removed["sessions"] == 5
    assert await kept.names() == {"ended-lately", "lives"}
    rows = kept.archived("sessions")
    assert {row["name"] for row in rows} == {session.name for session in old}
    first = next(row for row in rows if row["name"] == "old-0")
    assert first["id"] == str(old[0].id)
    assert first["created_at"] == NOW, "the time with its microseconds and zone"
    assert json.loads(first["requested_slots"]) == {"cpu": "2", "cuda.shares": "0.3"}
    assert not {"environ", "bootstrap_script", "callback_url", "network"} & first.keys(), "secrets stay out"
    assert len(kept.archived("kernels")) == 10
    assert {row["session_id"] for row in kept.archived("session_events")} == {str(session.id) for session in old}
    modes = {path.stat().st_mode & 0o777 for path in kept.archive.folder.rglob("*.parquet")}
    assert modes == {0o600}
    assert kept.archive.folder.stat().st_mode & 0o777 == 0o700
    assert await kept.history.remove(HistoryKind.SESSIONS, before=CUTOFF) == {}, "a second time has nothing to do"


async def test_sessions_that_others_need_stay(kept: Kept) -> None:
    needed = await kept.add("needed")
    await kept.add("waits", end=None, dependencies=(needed.id,))
    array, finished_array = uuid4(), uuid4()
    for number, (array_id, end) in enumerate(
        [(array, NOW), (array, None), (finished_array, NOW), (finished_array, NOW)]
    ):
        await kept.add(f"e{number}", end=end, array_id=array_id, array_name="a", array_index=number)
    await kept.add("of-young-array", array_id=(young := uuid4()), array_name="b", array_index=0)
    await kept.add("young", end=CUTOFF + DAY, array_id=young, array_name="b", array_index=1)
    await kept.history.remove(HistoryKind.SESSIONS, before=CUTOFF)
    assert await kept.names() == {"needed", "waits", "e0", "e1", "of-young-array", "young"}
    assert {row["name"] for row in kept.archived("sessions")} == {"e2", "e3"}


async def test_audit_records_move_in_their_order(kept: Kept) -> None:
    records = [
        AuditRecord(
            at=NOW + number * DAY,
            request_id=f"r{number}",
            user_id=UserId(uuid4()),
            access_key=None,
            operation="session.create",
            object_type="session",
            object_id=None,
            outcome="ok",
            detail={"n": number},
        )
        for number in range(8)
    ]
    await kept.audit.append(records)
    removed = await kept.history.remove(HistoryKind.AUDIT, before=NOW + 5 * DAY)
    assert removed["records"] == 5
    rows = kept.archived("audit_logs")
    assert sorted(row["request_id"] for row in rows) == [f"r{number}" for number in range(5)]
    assert json.loads(rows[0]["detail"])["n"] in range(5)
    assert [record.request_id for record in await kept.audit.recent(9)] == ["r7", "r6", "r5"]


async def test_the_periods_of_claims_move_when_reports_of_usage_have_had_them(kept: Kept) -> None:
    """Each end of an allocation leaves a row, so a claim that is used in turn for years left them for ever."""
    for number in range(5):
        claim = make_claim(f"claim-{number}")
        await kept.sessions.insert_claim(claim, max_claims=None)
        placed_change = allocated(claim)
        placed_claim = replace(placed_change.new, version=2)
        left = advance(placed_claim, ClaimTrigger.LEFT, now=NOW + (number + 1) * DAY)
        assert left is not None
        for change in (placed_change, left):
            await kept.database.run_write(partial(write_claims, changes=[change]))
    removed = await kept.history.remove(HistoryKind.CLAIM_SPANS, before=NOW + 3 * DAY)
    assert removed == {"claim spans": 2}
    rows = kept.archived("claim_spans")
    assert [row["terminated_at"] for row in rows] == [NOW + DAY, NOW + 2 * DAY]
    assert json.loads(rows[0]["slots"]) == {"cuda.shares": "0.5"}
    stayed = await kept.database.fetch(select(claim_spans.c.terminated_at).order_by(claim_spans.c.id))
    assert [row.terminated_at for row in stayed] == [NOW + days * DAY for days in (3, 4, 5)]
    assert await kept.history.remove(HistoryKind.CLAIM_SPANS, before=NOW + 3 * DAY) == {}


@pytest.mark.parametrize("point", ["before the files", "between the files", "before the deletion", "after it"])
async def test_a_process_that_was_killed_leaves_each_row_in_one_place(
    kept: Kept, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        await kept.add(f"old-{number}", at=NOW + number * timedelta(hours=1))
    history = kept.history
    with monkeypatch.context() as broken:
        _die_at(point, kept, broken)
        with pytest.raises(Killed):
            await history.remove(HistoryKind.SESSIONS, before=CUTOFF)
    in_files = {row["name"] for row in kept.archived("sessions")}
    assert in_files | await kept.names() == {f"old-{number}" for number in range(5)}, "no row is lost meanwhile"
    await kept.add("another-old-one", at=NOW - DAY, end=NOW)  # changes what the first batch would be
    await kept.history.remove(HistoryKind.SESSIONS, before=CUTOFF)
    archived = [row["name"] for row in kept.archived("sessions")]
    assert sorted(archived) == sorted([*(f"old-{number}" for number in range(5)), "another-old-one"])
    assert await kept.names() == set()
    assert not list(kept.archive.folder.glob("*.json"))


def _die_at(point: str, kept: Kept, broken: pytest.MonkeyPatch) -> None:
    write, remove = kept.archive.write, kept.store.remove
    written: list[str] = []

    def dying_write(table: str, name: str, rows: Rows) -> Path:
        if point == "before the files" or (point == "between the files" and written):
            raise Killed
        written.append(table)
        return write(table, name, rows)

    async def dying_remove(kind: HistoryKind, ids: Any) -> Any:
        if point == "after it":
            await remove(kind, ids)
        raise Killed

    if "files" in point:
        broken.setattr(kept.archive, "write", dying_write)
    else:
        broken.setattr(kept.store, "remove", dying_remove)


async def test_a_full_disk_deletes_nothing(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    await kept.add("old")

    def full(*_: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept.archive, "write", full)
    with pytest.raises(Unavailable, match=r"No space left on device\. Nothing of it was deleted"):
        await kept.history.remove(HistoryKind.SESSIONS, before=CUTOFF)
    assert await kept.names() == {"old"}


async def test_without_an_archive_history_is_deleted(kept: Kept) -> None:
    await kept.add("old")
    removed = await History(kept.store, None).remove(HistoryKind.SESSIONS, before=CUTOFF)
    assert removed["sessions"] == 1
    assert await kept.names() == set()
