"""The statements of a session's life and the first page of a list beside many finished sessions.

A rate that falls with history is a defect: see docs/explanation/life-of-a-session.md. `HISTORY_ROWS=1000000` is the
size of an installation of some years; on PostgreSQL too where it is installed.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from ai.backend.common.states import SessionStatus
from ai.backend.common.structs import replace
from ai.backend.infra.database import Database
from ai.backend.infra.database.migrate import upgrade
from ai.backend.manager.composition.stores import Stores
from ai.backend.manager.db import MIGRATIONS, SCHEMA_HEAD
from ai.backend.manager.sessions.model import OwnerLimits, Session, SessionQuery
from ai.backend.manager.sessions.tables import kernels, sessions
from bench.figures import Figure, benchmark
from tests.contract.store.builders import AGENT, KEY, ended, event, make_agent, make_session, placed
from tests.support.postgres import PostgresServer, why_not

ROWS = int(os.environ.get("HISTORY_ROWS", "10000"))
ROUNDS = 20
MAX_PAGE_MS = 50.0
MAX_RATIO = 1.5
_NUMBERS = {
    "sqlite": "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})",
    "postgresql": "WITH numbers(n) AS (SELECT generate_series(1, {count}))",
}
_IDS = {
    "sqlite": "printf('%08x-0000-4000-8000-000000000000', n)",
    "postgresql": "lpad(to_hex(n), 8, '0') || '-0000-4000-8000-000000000000'",
}
_TIMES = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', {column}, '-' || n || ' seconds')",
    "postgresql": "{column} - n * interval '1 second'",
}


def copy_rows(connection: Connection, table: Any, template_id: str, count: int) -> None:
    """Inserts as many copies of the template's row, each with an id, a name and a time of its own."""
    kind = connection.dialect.name
    changed = {"id": _IDS[kind], "session_id": _IDS[kind], "name": "'job-' || (n % 1000)"}
    changed |= {name: _TIMES[kind].format(column=name) for name in ("created_at", "terminated_at")}
    names = [column.name for column in table.c]
    selected = ", ".join(changed.get(name, f't."{name}"') for name in names)
    columns = ", ".join(f'"{name}"' for name in names)
    numbers = _NUMBERS[kind].format(count=count)
    connection.execute(
        text(
            f"INSERT INTO {table.name} ({columns}) {numbers} SELECT {selected} FROM {table.name} t, numbers"
            " WHERE t.id = :id"
        ),
        {"id": template_id},
    )


def _fill(connection: Connection, template: Session) -> None:
    for table in (sessions, kernels):
        copy_rows(connection, table, str(template.id), ROWS)
    if connection.dialect.name == "postgresql":  # rows that come one by one have their statistics from autovacuum
        connection.execute(text("ANALYZE"))


async def finished(stores: Stores) -> Session:
    """Stores a session that ran and ended."""
    session = make_session(name="template")
    await stores.sessions.insert(session, events=[])
    await stores.sessions.save([placed(session)])
    scheduled = await stores.sessions.get(session.id)
    assert scheduled is not None
    new = ended(scheduled).new
    change = replace(ended(scheduled), new=replace(new, status=SessionStatus.TERMINATED, terminated_at=new.created_at))
    await stores.sessions.save([change])
    return session


async def _live(stores: Stores, number: int) -> None:
    """Inserts, places and ends a session as a manager does."""
    store, name = stores.sessions, f"life-{number}"
    assert await store.live_named(KEY, name) is None
    session = make_session(name=name)
    await store.insert(session, events=[event(session)], limits=OwnerLimits(max_live=100))
    await store.refreshed([SessionStatus.PENDING], lambda _: None)
    await store.held([AGENT])
    await store.save([placed(session)])
    scheduled = await store.get(session.id)
    assert scheduled is not None
    new = ended(scheduled).new
    await store.save([replace(ended(scheduled), new=replace(new, status=SessionStatus.TERMINATED))])


async def _median_ms(action: Callable[[int], Awaitable[Any]], first_number: int = 0) -> float:
    times = []
    for number in range(first_number, first_number + ROUNDS):
        started = time.perf_counter()
        await action(number)
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


async def _measure(url: str) -> dict[str, list[float]]:
    """Returns the milliseconds of each action, without history and with it."""
    database = Database(url, busy_timeout_s=600)
    await upgrade(database, MIGRATIONS, head=SCHEMA_HEAD)
    stores = Stores.sql(database)
    await stores.agents.put_agent(make_agent())
    template = await finished(stores)
    newest = replace(SessionQuery(limit=20), access_key=KEY)
    figures: dict[str, list[float]] = {"life": [], "first page": [], "first page of all": [], "newest of a name": []}
    for count in (0, ROWS):
        if count:
            await database.run_write(lambda connection: _fill(connection, template))
        figures["life"].append(await _median_ms(lambda number: _live(stores, number), count))
        figures["first page"].append(await _median_ms(lambda _: stores.sessions.search(newest)))
        figures["first page of all"].append(await _median_ms(lambda _: stores.sessions.search(SessionQuery(limit=20))))
        figures["newest of a name"].append(await _median_ms(lambda _: stores.sessions.newest_named(KEY, "job-7")))
    await database.close()
    return figures


@benchmark("history", "a session's life and the first page of a list beside HISTORY_ROWS finished sessions")
def history() -> Sequence[Figure]:
    figures: list[Figure] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = {"sqlite": f"sqlite:///{folder / 'manager.db'}"}
        if why_not() is None:
            server = PostgresServer(Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))))
            server.make()
            server.start()
            stack.callback(server.stop)
            urls["postgresql"] = server.url(server.create())
        for database, url in urls.items():
            for name, (before, after) in asyncio.run(_measure(url)).items():
                sys.stdout.write(f"{database:12}{name:20}{before:10.2f} ms{after:10.2f} ms beside {ROWS}\n")
                ratio = after / before
                figures.append(
                    Figure(
                        name=f"history-{database}-{name.replace(' ', '-')}",
                        value=after,
                        unit="ms",
                        reference=before,
                        reference_is="without history",
                        target=f"a ratio of at most {MAX_RATIO}" if name == "life" else f"at most {MAX_PAGE_MS} ms",
                        holds=ratio <= MAX_RATIO if name == "life" else after <= MAX_PAGE_MS,
                    )
                )
    return figures
