"""What every implementation of the stores of templates, dotfiles, activities and errors promises."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import pytest

from ai.backend.common.errors import Conflict, LimitExceeded, NotFound
from ai.backend.common.ids import DomainName, GroupId, SessionId, TemplateId, UserId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.structs import replace
from ai.backend.infra.database import Database
from ai.backend.manager.dotfiles.model import MAX_DOTFILE_BYTES, MAX_DOTFILES, Dotfile, DotfileOwner, DotfileScope
from ai.backend.manager.dotfiles.sql import SqlDotfileStore
from ai.backend.manager.dotfiles.store import DotfileStore
from ai.backend.manager.idle.memory import MemoryActivityStore
from ai.backend.manager.idle.sql import SqlActivityStore
from ai.backend.manager.idle.store import ActivityStore
from ai.backend.manager.logs.model import ErrorReport
from ai.backend.manager.logs.sql import SqlErrorLogStore
from ai.backend.manager.logs.store import ErrorLogStore
from ai.backend.manager.scheduling.sql import SqlShareStore
from ai.backend.manager.scheduling.store import ShareHistory, ShareStore
from ai.backend.manager.sessions.memory import Memory
from ai.backend.manager.sessions.sql import SqlSessionStore
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.templates.model import Template, TemplateKind
from ai.backend.manager.templates.sql import SqlTemplateStore
from ai.backend.manager.templates.store import TemplateStore
from ai.backend.simulator.stores import make_stores
from tests.contract.store.builders import KEY, NOW, make_session
from tests.support.migrated import migrated
from tests.support.postgres import emptied, migrated_template, shared_server

ME, OTHER = UserId(uuid4()), UserId(uuid4())
MINE = DotfileOwner(scope=DotfileScope.USER, name=KEY)
OURS = DotfileOwner(scope=DotfileScope.DOMAIN, name="default")


@dataclass
class Kept:
    templates: TemplateStore
    dotfiles: DotfileStore
    activities: ActivityStore
    errors: ErrorLogStore
    shares: ShareStore
    sessions: SessionStore


def template(name: str, user: UserId = ME, kind: TemplateKind = TemplateKind.SESSION) -> Template:
    return Template(
        id=TemplateId(uuid4()),
        kind=kind,
        name=name,
        domain_name=DomainName("default"),
        group_id=GroupId(uuid4()),
        group_name="default",
        user_id=user,
        user_email="a@b",
        document={"metadata": {"name": name}},
        created_at=NOW,
        modified_at=NOW,
    )


def dotfile(path: str, data: str = "x") -> Dotfile:
    return Dotfile(path=path, permission="644", data=data)


def report(message: str, user: UserId = ME) -> ErrorReport:
    return ErrorReport(
        severity="error",
        source="client",
        message=message,
        user_id=user,
        domain_name=DomainName("default"),
        context_env={"a": 1},
        request_status=500,
        created_at=NOW,
    )


class SessionDefaultsContract:
    """Override ``kept`` with an implementation."""

    @pytest.fixture
    def kept(self) -> Kept:
        raise NotImplementedError

    async def test_templates_come_back_in_order_and_within_bounds(self, kept: Kept) -> None:
        b, a, other = template("b"), template("a"), template("c", OTHER)
        cluster = template("k", kind=TemplateKind.CLUSTER)
        await kept.templates.add_templates([b, a, other, cluster])
        assert await kept.templates.template(a.id) == a
        assert await kept.templates.templates(TemplateKind.SESSION, user_id=ME) == [a, b]
        assert await kept.templates.templates(TemplateKind.SESSION, domain_name="default") == [a, b, other]
        assert await kept.templates.templates(TemplateKind.SESSION, domain_name="elsewhere") == []
        assert await kept.templates.templates(TemplateKind.CLUSTER) == [cluster]

    async def test_the_last_share_history_of_each_group_is_kept(self, kept: Kept) -> None:
        assert await kept.shares.history("gpu") is None
        used = {
            "default/p": ResourceSlot({"cpu": Decimal("1.5"), "mem": Decimal("0.25")}),
            "default": ResourceSlot.parse({"cpu": 2}),
        }
        first = ShareHistory(used=used, at=NOW)
        last = ShareHistory(used={"default": ResourceSlot.parse({"cpu": "0.000001"})}, at=NOW + timedelta(hours=1))
        await kept.shares.put_history("gpu", first)
        await kept.shares.put_history("cpu", first)
        await kept.shares.put_history("gpu", last)
        assert (await kept.shares.history("gpu"), await kept.shares.history("cpu")) == (last, first)

    async def test_a_template_is_replaced_and_dropped_once(self, kept: Kept) -> None:
        one = template("one")
        await kept.templates.add_templates([one])
        changed = replace(one, name="two", document={"n": [1, {"deep": None}]}, modified_at=NOW + timedelta(days=1))
        assert await kept.templates.put_template(changed)
        assert await kept.templates.template(one.id) == changed
        assert await kept.templates.drop_template(one.id)
        assert not await kept.templates.drop_template(one.id)
        assert not await kept.templates.put_template(changed)
        assert await kept.templates.template(one.id) is None

    async def test_dotfiles_are_added_replaced_and_dropped(self, kept: Kept) -> None:
        await kept.dotfiles.put_dotfile(MINE, dotfile(".b"), is_new=True)
        await kept.dotfiles.put_dotfile(MINE, dotfile(".a/x"), is_new=True)
        await kept.dotfiles.put_dotfile(OURS, dotfile(".b", "ours"), is_new=True)
        assert await kept.dotfiles.dotfiles(MINE) == [dotfile(".a/x"), dotfile(".b")]
        with pytest.raises(Conflict):
            await kept.dotfiles.put_dotfile(MINE, dotfile(".b", "y"), is_new=True)
        for inside in (".a", ".b/c"):
            with pytest.raises(Conflict):
                await kept.dotfiles.put_dotfile(MINE, dotfile(inside), is_new=True)
        with pytest.raises(NotFound):
            await kept.dotfiles.put_dotfile(MINE, dotfile(".c"), is_new=False)
        await kept.dotfiles.put_dotfile(MINE, dotfile(".b", "y"), is_new=False)
        assert await kept.dotfiles.dotfiles_of([MINE, OURS]) == [
            (DotfileScope.DOMAIN, dotfile(".b", "ours")),
            (DotfileScope.USER, dotfile(".a/x")),
            (DotfileScope.USER, dotfile(".b", "y")),
        ]
        assert await kept.dotfiles.drop_dotfile(MINE, ".b")
        assert not await kept.dotfiles.drop_dotfile(MINE, ".b")
        assert await kept.dotfiles.dotfiles(OURS) == [dotfile(".b", "ours")]

    async def test_dotfiles_have_limits(self, kept: Kept) -> None:
        await kept.dotfiles.put_dotfile(MINE, dotfile(".big", "é" * (MAX_DOTFILE_BYTES // 2 - 1)), is_new=True)
        await kept.dotfiles.put_dotfile(MINE, dotfile(".two", "é"), is_new=True)
        with pytest.raises(LimitExceeded):
            await kept.dotfiles.put_dotfile(MINE, dotfile(".one"), is_new=True)
        with pytest.raises(LimitExceeded):
            await kept.dotfiles.put_dotfile(MINE, dotfile(".two", "éx"), is_new=False)
        for i in range(MAX_DOTFILES):
            await kept.dotfiles.put_dotfile(OURS, dotfile(f".{i}"), is_new=True)
        with pytest.raises(LimitExceeded):
            await kept.dotfiles.put_dotfile(OURS, dotfile(".more"), is_new=True)
        assert len(await kept.dotfiles.dotfiles(OURS)) == MAX_DOTFILES

    async def test_a_bootstrap_script_is_kept_and_emptied(self, kept: Kept) -> None:
        assert await kept.dotfiles.bootstrap_script(KEY) == ""
        await kept.dotfiles.put_bootstrap_script(KEY, "echo 1")
        await kept.dotfiles.put_bootstrap_script(KEY, "echo 2")
        assert await kept.dotfiles.bootstrap_script(KEY) == "echo 2"
        await kept.dotfiles.put_bootstrap_script(KEY, "")
        assert await kept.dotfiles.bootstrap_script(KEY) == ""

    async def test_the_latest_access_counts_whatever_comes_last(self, kept: Kept) -> None:
        session = make_session("used")
        await kept.sessions.insert(session, events=[])
        gone = SessionId(uuid4())
        await kept.activities.note_access({session.id: NOW, gone: NOW})
        await kept.activities.put_usage({session.id: {"cpu_util": [1.5]}, gone: {}})
        await kept.activities.note_access({session.id: NOW - timedelta(seconds=9)})
        found = await kept.activities.activities([session.id, gone])
        assert list(found) == [session.id]
        assert found[session.id].last_access == NOW
        assert found[session.id].usage == {"cpu_util": [1.5]}
        await kept.activities.note_access({session.id: NOW + timedelta(seconds=9)})
        assert (await kept.activities.activities([session.id]))[session.id].last_access == NOW + timedelta(seconds=9)

    async def test_errors_are_listed_marked_and_cleared_within_bounds(self, kept: Kept) -> None:
        first = await kept.errors.add_error(report("first"), max_count=5)
        second = await kept.errors.add_error(report("second", OTHER), max_count=5)
        page = await kept.errors.errors(limit=1, offset=0, mark_read=True)
        assert [(one.id, one.is_read, one.report) for one in page.items] == [(second, False, report("second", OTHER))]
        assert page.total_count == 2
        assert [one.is_read for one in (await kept.errors.errors(limit=9, offset=0)).items] == [True, False]
        assert [one.id for one in (await kept.errors.errors(limit=9, offset=0, user_id=ME)).items] == [first]
        assert not await kept.errors.clear_error(second, user_id=ME)
        assert not await kept.errors.clear_error(second, domain_name="elsewhere")
        assert await kept.errors.clear_error(first, user_id=ME)
        assert [one.id for one in (await kept.errors.errors(limit=9, offset=0)).items] == [second]
        await kept.errors.purge_errors(before=NOW + timedelta(seconds=1))
        assert (await kept.errors.errors(limit=9, offset=0)).total_count == 0


class TestMemorySessionDefaults(SessionDefaultsContract):
    @pytest.fixture
    def kept(self) -> Kept:
        memory = Memory()
        stores = make_stores(memory, lambda: NOW)
        return Kept(
            stores.templates,
            stores.dotfiles,
            MemoryActivityStore(memory),
            stores.errors,
            stores.shares,
            stores.sessions,
        )


def _on(database: Database) -> Kept:
    return Kept(
        SqlTemplateStore(database),
        SqlDotfileStore(database),
        SqlActivityStore(database),
        SqlErrorLogStore(database),
        SqlShareStore(database),
        SqlSessionStore(database),
    )


class TestSqlSessionDefaults(SessionDefaultsContract):
    @pytest.fixture
    async def kept(self, tmp_path: Path) -> AsyncIterator[Kept]:
        database = Database(f"sqlite:///{migrated(tmp_path / 'manager.db')}")
        yield _on(database)
        await database.close()


@pytest.mark.needs("postgres")
class TestPostgresSessionDefaults(SessionDefaultsContract):
    @pytest.fixture
    async def kept(self) -> AsyncIterator[Kept]:
        server = shared_server()
        database = Database(server.url(emptied(server, migrated_template())))
        yield _on(database)
        await database.close()
