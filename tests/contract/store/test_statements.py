"""Prepared statements do on both databases what SQLAlchemy's own execution does."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
import sqlalchemy
from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from ai.backend.common.states import SessionStatus
from ai.backend.infra.database import Database
from ai.backend.infra.database.postgres import PostgresTransactions
from ai.backend.infra.database.prepared import IsOneOf, Prepared, insertion, is_any, parameter, updating
from ai.backend.infra.database.sqlite import SqliteTransactions
from ai.backend.manager.composition.stores import Stores
from ai.backend.manager.sessions.changes import ObservationAck
from ai.backend.manager.sessions.model import OwnerLimits, SessionQuery
from ai.backend.manager.sessions.tables import agent_acks, kernels, sessions
from tests.contract.store.builders import AGENT, KEY, NOW, ended, event, make_agent, make_session, placed
from tests.support.migrated import migrated
from tests.support.postgres import emptied, migrated_template, shared_server

_GROWING = "sessions|kernels|session_events|session_dependencies|kernel_logs"
WHOLE_TABLE = re.compile(rf"SCAN ({_GROWING})\b|Seq Scan on ({_GROWING})\b")
"""Matches a query plan that reads the whole of a table that grows with every session."""


class StatementContract:
    """Override ``database`` with one of the newest schema."""

    @pytest.fixture
    def database(self) -> Database:
        raise NotImplementedError

    @pytest.fixture
    async def stores(self, database: Database) -> Stores:
        stores = Stores.sql(database)
        await stores.agents.put_agent(make_agent())
        return stores

    async def test_rows_are_those_of_sqlalchemy(self, database: Database, stores: Stores) -> None:
        session = make_session()
        await stores.sessions.insert(session, events=[])
        await stores.sessions.save([placed(session)])
        for table in (sessions, kernels):
            expected = await database.fetch(select(table))
            (row,) = await database.fetch(Prepared(select(table)))
            assert dict(row._mapping) == dict(expected[0]._mapping)

    async def test_membership_in_a_list(self, database: Database, stores: Stores) -> None:
        all_sessions = [make_session(name=f"session-{number}") for number in range(3)]
        for session in all_sessions:
            await stores.sessions.insert(session, events=[])
        statement = Prepared(select(sessions.c.id).where(IsOneOf(sessions.c.id, "ids")))
        for chosen in ([], all_sessions[:2]):
            rows = await database.fetch(statement, {"ids": [session.id for session in chosen]})
            assert {row.id for row in rows} == {session.id for session in chosen}
        many = [*(uuid4() for _ in range(5_000)), all_sessions[2].id]
        assert [row.id for row in await database.fetch(statement, {"ids": many})] == [all_sessions[2].id]

    async def test_the_total_of_a_page_counts_so_many_after_it(
        self, stores: Stores, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ai.backend.manager.sessions.sql.MAX_COUNTED", 3)
        for number in range(10):
            await stores.sessions.insert(make_session(name=f"session-{number}"), events=[])
        for offset, total in ((0, 5), (2, 7), (6, 10), (8, 10)):
            page = await stores.sessions.search(SessionQuery(limit=2, offset=offset))
            assert (len(page.items), page.total_count) == (2, total)

    async def test_fixed_values(self, database: Database, stores: Stores) -> None:
        session = make_session()
        await stores.sessions.insert(session, events=[])
        for statuses, expected in (({"PENDING", "RUNNING"}, [KEY]), ({"RUNNING"}, [])):
            statement = Prepared(select(sessions.c.access_key).where(is_any(sessions.c.status, statuses)))
            assert [row.access_key for row in await database.fetch(statement)] == expected

    async def test_an_update_returns_the_number_of_rows(self, database: Database) -> None:
        row = {"agent_id": "i-1", "epoch": 1, "seq": 2}
        await database.run_write(lambda conn: insertion(agent_acks).execute(conn, row))
        statement = updating(agent_acks, ("agent_id", "epoch"), ("seq",))

        def work(conn: Connection) -> list[int]:
            rows = [{"agent_id": "i-1", "epoch": epoch, "new_seq": 9} for epoch in (1, 7)]
            return [statement.execute(conn, row) for row in rows]

        assert await database.run_write(work) == [1, 0]
        values = {"agent_id": "i-1"}
        query = Prepared(select(agent_acks.c.seq).where(agent_acks.c.agent_id == parameter(agent_acks.c.agent_id)))
        assert [row.seq for row in await database.fetch(query, values)] == [9]

    async def test_a_violation_is_the_error_of_sqlalchemy_and_writes_nothing(self, database: Database) -> None:
        row = {"agent_id": "i-1", "epoch": 1, "seq": 2}

        def work(conn: Connection) -> None:
            insertion(agent_acks).execute(conn, {**row, "agent_id": "i-2"})
            insertion(agent_acks).execute(conn, row, row)

        with pytest.raises(IntegrityError):
            await database.run_write(work)
        assert await database.fetch(select(agent_acks)) == []

    async def test_no_statement_of_a_session_s_life_reads_a_whole_table(
        self, database: Database, stores: Stores
    ) -> None:
        statements: list[tuple[str, Any]] = []
        with self.recording(database, statements):
            await live(stores)
        assert len(statements) > 30
        plans = {text: await self.plan(database, text, parameters) for text, parameters in statements}
        assert {text: plan for text, plan in plans.items() if WHOLE_TABLE.search(plan)} == {}

    def recording(
        self, database: Database, statements: list[tuple[str, Any]]
    ) -> contextlib.AbstractContextManager[None]:
        """Collects statements with their parameters until the block ends."""
        raise NotImplementedError

    async def plan(self, database: Database, text: str, parameters: Any) -> str:
        raise NotImplementedError


async def live(stores: Stores) -> None:
    """Calls what a session's life and a first page need."""
    store, limits = stores.sessions, OwnerLimits(max_live=10, max_pending=5)
    session = make_session()
    await store.insert(session, events=[event(session)], limits=limits)
    change = placed(session)
    await store.save([change], ack=ObservationAck(agent_id=AGENT, epoch=1, seq=1))
    statuses = [SessionStatus.PENDING, SessionStatus.SCHEDULED]
    await store.refreshed(statuses, lambda _: None)
    await store.by_status(statuses)
    await store.get_many([session.id])
    await store.of_kernels([session.main.id])
    await store.on_agent(AGENT)
    await store.held([AGENT])
    await store.networks()
    await store.workloads()
    await store.dependents(session.id)
    for ref in (session.name, "mi", "nothing"):
        await store.find_live(KEY, ref)
    await store.newest_named(KEY, session.name)
    await store.count_live([KEY])
    await store.live_statuses()
    await store.occupied(access_key=KEY)
    await store.acked(AGENT)
    await store.events_after(0)
    await store.events_of(session.id, limit=10)
    await store.last_event_id()
    await store.due_callbacks(NOW, limit=10)
    await store.bump({session.id: 1}, {session.main.id: {}})
    await store.search(SessionQuery(access_key=KEY, limit=20))
    await store.search(SessionQuery(access_key=KEY, statuses=(SessionStatus.RUNNING,), limit=20))
    running = await store.get(session.id)
    assert running is not None
    await store.save([ended(running)], ack=ObservationAck(agent_id=AGENT, epoch=1, seq=2))


class TestSqlite(StatementContract):
    @pytest.fixture
    async def database(self, tmp_path: Path) -> AsyncIterator[Database]:
        database = Database(f"sqlite:///{migrated(tmp_path / 'manager.db')}")
        yield database
        await database.close()

    @contextlib.contextmanager
    def recording(self, database: Database, statements: list[tuple[str, Any]]) -> Iterator[None]:
        def record(text: str) -> None:
            if text.startswith(("SELECT", "UPDATE", "DELETE")):
                statements.append((text, ()))

        transactions = database._transactions
        assert isinstance(transactions, SqliteTransactions)
        opened = [connection.connection for connection in transactions._connections if connection.connection]
        drivers = [cast("Any", connection.connection.dbapi_connection) for connection in opened]
        for driver in drivers:
            driver.set_trace_callback(record)
        yield
        for driver in drivers:
            driver.set_trace_callback(None)

    async def plan(self, database: Database, text: str, parameters: Any) -> str:
        def explain(connection: Connection) -> str:
            driver = cast("Any", connection.connection.dbapi_connection)
            return "; ".join(row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {text}"))

        return await database.run_read(explain)


@pytest.mark.needs("postgres")
class TestPostgres(StatementContract):
    @pytest.fixture
    async def database(self) -> AsyncIterator[Database]:
        server = shared_server()
        database = Database(server.url(emptied(server, migrated_template())))
        yield database
        await database.close()

    @contextlib.contextmanager
    def recording(self, database: Database, statements: list[tuple[str, Any]]) -> Iterator[None]:
        def record(_: object, __: object, text: str, parameters: Any, *___: object) -> None:
            if text.startswith(("SELECT", "UPDATE", "DELETE")) and not isinstance(parameters, list):
                statements.append((text, parameters))

        transactions = database._transactions
        assert isinstance(transactions, PostgresTransactions)
        engine = transactions._engine.sync_engine
        sqlalchemy.event.listen(engine, "before_cursor_execute", record)
        yield
        sqlalchemy.event.remove(engine, "before_cursor_execute", record)

    async def plan(self, database: Database, text: str, parameters: Any) -> str:
        def explain(connection: Connection) -> str:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # an empty table would always be read whole
            return "; ".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN {text}", parameters))

        return await database.run_read(explain)
