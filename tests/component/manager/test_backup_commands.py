"""`backend.ai mgr backup` and `restore` on real databases, while others write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Select, func, select

from ai.backend.common.states import SessionStatus
from ai.backend.infra.config_store import SQLiteConfigStore
from ai.backend.infra.database import Database
from ai.backend.manager.composition.stores import Stores
from ai.backend.manager.db import metadata
from ai.backend.manager.main import main
from ai.backend.manager.sessions.model import STARTED_OVER
from ai.backend.manager.sessions.tables import kernels, sessions
from tests.contract.store.builders import make_agent, make_session, placed
from tests.support.migrated import migrated
from tests.support.postgres import migrated_template, shared_server

KEY = "0123456789abcdef" * 4


class Site:
    """A manager's folder with its settings, and a database of one running and one waiting session."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        folder.mkdir(exist_ok=True)
        (folder / "manager.toml").write_text(f'data-dir = "{folder}"\n[database]\nurl = "{url}"\n')
        self.key = folder.parent / "backup.key"
        self.key.write_text(KEY + "\n")
        self.key.chmod(0o600)

    def mgr(self, *words: str) -> str:
        result = CliRunner().invoke(main, ["--config", str(self.folder / "manager.toml"), *words])
        if result.exit_code:
            raise AssertionError(result.output)
        return result.output

    def back_up(self, file: Path) -> str:
        return self.mgr("backup", str(file), "--key-file", str(self.key))

    def restore(self, file: Path, *options: str) -> str:
        return self.mgr("restore", str(file), "--key-file", str(self.key), *options)

    async def fill(self) -> None:
        database = Database(self.url)
        stores = Stores.sql(database)
        await stores.agents.put_agent(make_agent())
        for name in ("runs", "waits"):
            session = make_session(name=name)
            await stores.sessions.insert(session, events=[])
            if name == "runs":
                await stores.sessions.save([placed(session)])
        await SQLiteConfigStore(database).setup()
        await database.close()

    async def rows(self) -> dict[str, tuple[str, int, int]]:
        database = Database(self.url)
        query = select(sessions.c.name, sessions.c.status, kernels.c.attempt, sessions.c.status_data).join_from(
            sessions, kernels, kernels.c.session_id == sessions.c.id
        )
        try:
            return {
                row.name: (row.status, row.attempt, row.status_data.get(STARTED_OVER, {}).get("attempts", 0))
                for row in await database.fetch(query)
                if not row.name.startswith("more")
            }
        finally:
            await database.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
def new_site(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, bool], Site]:
    """Makes sites, with tables or with an empty database."""

    def make(name: str, has_tables: bool) -> Site:
        if request.param == "sqlite":
            (tmp_path / name).mkdir()
            path = tmp_path / name / "manager.db"
            if has_tables:
                migrated(path)
            return Site(tmp_path / name, f"sqlite:///{path}")
        server = shared_server()
        database = server.create(template=migrated_template()) if has_tables else server.create()
        return Site(tmp_path / name, server.url(database))

    return make


@contextmanager
def _writing(url: str) -> Iterator[list[int]]:
    """Writes sessions with their kernels as another manager does; the list has their number."""
    stop, written = threading.Event(), [0]

    async def write() -> None:
        database = Database(url)
        stores = Stores.sql(database)
        while not stop.is_set():
            await stores.sessions.insert(make_session(name=f"more-{written[0]}"), events=[])
            written[0] += 1
        await database.close()

    thread = threading.Thread(target=lambda: asyncio.run(write()))
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join()


async def test_a_backup_while_another_process_writes_is_restored(
    new_site: Callable[[str, bool], Site], tmp_path: Path
) -> None:
    site, file = new_site("site", True), tmp_path / "backup"
    await site.fill()
    await asyncio.to_thread(site.mgr, "etcd", "put", "volumes/local", "x")
    before = await site.rows()
    with _writing(site.url) as written:
        while written[0] < 20:  # noqa: ASYNC110  # the other thread has no event of this loop
            await asyncio.sleep(0.01)
        least = written[0]
        said = await asyncio.to_thread(site.back_up, file)
        assert "has the database" in said
    new = new_site("new", False)
    assert "is back" in await asyncio.to_thread(new.restore, file)
    after = await new.rows()
    assert after["runs"] == before["runs"] == (SessionStatus.SCHEDULED, 1, 0)
    assert before["waits"] == (SessionStatus.PENDING, 0, 0)
    assert after["waits"] == (SessionStatus.PENDING, 1000, 1000)
    database = Database(new.url)
    (copied,) = await database.fetch(select(func.count()).select_from(sessions).where(sessions.c.name.like("more%")))
    (orphans,) = await database.fetch(
        select(func.count()).select_from(kernels).where(kernels.c.session_id.not_in(select(sessions.c.id)))
    )
    await database.close()
    assert copied[0] >= least
    assert orphans[0] == 0
    assert (await asyncio.to_thread(new.mgr, "etcd", "get", "volumes/local")).strip() == "x"
    assert (new.folder / "secrets.key").read_text() == (site.folder / "secrets.key").read_text()
    with pytest.raises(AssertionError, match=r"tables|exists"):
        await asyncio.to_thread(new.restore, file)
    assert await asyncio.to_thread(new.restore, file, "--print-settings") == (site.folder / "manager.toml").read_text()


def test_there_must_be_a_database(tmp_path: Path) -> None:
    site = Site(tmp_path / "none", f"sqlite:///{tmp_path}/none/manager.db")
    with pytest.raises(AssertionError, match="no database of a manager"):
        site.back_up(tmp_path / "backup")
    assert not list(tmp_path.glob("*backup"))


def test_a_passphrase_is_asked_for_twice_and_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrated(tmp_path / "manager.db")
    (tmp_path / "manager.toml").write_text(f'data-dir = "{tmp_path}"\n')
    arguments = ["--config", str(tmp_path / "manager.toml")]
    words = "a long passphrase\na long passphrase\n"
    result = CliRunner().invoke(main, [*arguments, "backup", str(tmp_path / "one")], input=words)
    assert result.exit_code == 0, result.output
    monkeypatch.setenv("BACKENDAI_BACKUP_PASSPHRASE", "a long passphrase")
    result = CliRunner().invoke(main, [*arguments, "restore", str(tmp_path / "one"), "--print-settings"])
    assert result.output == f'data-dir = "{tmp_path}"\n'
    monkeypatch.setenv("BACKENDAI_BACKUP_PASSPHRASE", "another passphrase")
    result = CliRunner().invoke(main, [*arguments, "restore", str(tmp_path / "one"), "--print-settings"])
    assert (result.exit_code, "does not open" in result.output) == (1, True)


async def _content(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Returns the rows of all tables, in no order."""
    database = Database(url)
    try:
        return {
            table.name: sorted((tuple(row) for row in await database.fetch(select(table))), key=repr)
            for table in metadata.sorted_tables
        }
    finally:
        await database.close()


async def _scalar(url: str, query: Select[tuple[Any]]) -> Any:
    database = Database(url)
    try:
        return await database.run_write(lambda connection: connection.execute(query).scalar_one())
    finally:
        await database.close()


@pytest.mark.needs("postgres")
async def test_a_sqlite_database_moves_to_postgresql(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = Site(tmp_path / "old", f"sqlite:///{migrated(tmp_path / 'old/manager.db')}")
    await asyncio.to_thread(old.mgr, "bootstrap")
    await old.fill()
    await asyncio.to_thread(old.mgr, "etcd", "put", "volumes/local", "x")
    before = await _content(old.url)
    server = shared_server()
    new = Site(tmp_path / "new", server.url(server.create()))
    said = await asyncio.to_thread(new.mgr, "import-sqlite", str(tmp_path / "old/manager.db"))
    assert f"{sum(map(len, before.values()))} rows" in said
    assert await _content(new.url) == before
    assert sum(1 for rows in before.values() if rows) > 10
    assert (await asyncio.to_thread(new.mgr, "etcd", "get", "volumes/local")).strip() == "x"
    assert (new.folder / "secrets.key").read_text() == (old.folder / "secrets.key").read_text()
    for table in metadata.sorted_tables:
        if (column := table.autoincrement_column) is not None:
            next_number = func.nextval(func.pg_get_serial_sequence(table.name, column.name))
            assert await _scalar(new.url, select(next_number)) > max((row[0] for row in before[table.name]), default=0)
    with pytest.raises(AssertionError, match="has rows in"):
        await asyncio.to_thread(new.mgr, "import-sqlite", str(tmp_path / "old/manager.db"))


def test_only_a_database_of_this_version_moves_and_only_to_postgresql(tmp_path: Path) -> None:
    migrated(tmp_path / "old.db")
    site = Site(tmp_path / "new", f"sqlite:///{tmp_path}/new/manager.db")
    with pytest.raises(AssertionError, match=r"database\.url"):
        site.mgr("import-sqlite", str(tmp_path / "old.db"))
    (tmp_path / "other.db").touch()
    with pytest.raises(AssertionError, match=r"no PostgreSQL|revision None"):
        site.mgr("import-sqlite", str(tmp_path / "other.db"))
