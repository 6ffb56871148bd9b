"""What every implementation of the history of kernels promises."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from ai.backend.common.ids import DomainName, GroupId, UserId
from ai.backend.common.states import KernelStatus
from ai.backend.common.structs import replace
from ai.backend.infra.database import Database
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.sql import SqlSessionStore
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.usage.model import Cursor, UsageQuery, UsedKernel
from ai.backend.manager.usage.service import UsageStore
from ai.backend.manager.usage.sql import SqlUsageStore
from tests.contract.store.builders import NOW, SLOTS, make_session
from tests.support.migrated import migrated
from tests.support.postgres import emptied, migrated_template, shared_server

HOUR = timedelta(hours=1)
STAT = {"cpu_used": {"current": "1500", "unit_hint": "msec"}}


@dataclass
class Kept:
    sessions: SessionStore
    usage: UsageStore


def ran(
    name: str, begin: datetime | None, end: datetime | None, status: KernelStatus | None = None, **changes: Any
) -> Session:
    session = make_session(name, **changes)
    status = status or (KernelStatus.RUNNING if end is None else KernelStatus.TERMINATED)
    kernels = (replace(k, started_at=begin, terminated_at=end, status=status, last_stat=STAT) for k in session.kernels)
    return replace(session, kernels=tuple(kernels))


async def names(kept: Kept, query: UsageQuery, limit: int = 1_000) -> list[str]:
    found: list[UsedKernel] = []
    after: Cursor | None = None
    while page := await kept.usage.used(query, after=after, limit=limit):
        assert len(page) <= limit
        found += page
        after = page[-1].cursor
    return [kernel.name for kernel in found]


class UsageContract:
    """Override ``kept`` with an implementation."""

    @pytest.fixture
    def kept(self) -> Kept:
        pytest.fail("override the fixture `kept`")

    async def _fill(self, kept: Kept) -> None:
        other: dict[str, Any] = {
            "group_id": GroupId(UUID(int=9)),
            "domain_name": DomainName("far"),
            "user_id": UserId(UUID(int=1)),
        }
        for session in (
            ran("before", NOW - 9 * HOUR, NOW - 8 * HOUR),
            ran("across", NOW - 9 * HOUR, NOW + HOUR),
            ran("within", NOW + HOUR / 2, NOW + HOUR, size=2),
            ran("theirs", NOW, NOW + 2 * HOUR, **other),
            ran("long", NOW - 9 * HOUR, NOW + 90 * HOUR),
            ran("after", NOW + 10 * HOUR, NOW + 11 * HOUR),
            ran("never", None, NOW + HOUR),
            ran("running", NOW + HOUR, None),
            ran("later", NOW + 20 * HOUR, None),
            ran("waits again", NOW, None, status=KernelStatus.PENDING),
        ):
            await kept.sessions.insert(session, events=[])

    async def test_kernels_that_ran_in_a_time_are_found_page_by_page(self, kept: Kept) -> None:
        await self._fill(kept)
        query = UsageQuery(start=NOW, end=NOW + 10 * HOUR)
        expected = ["across", "long", "running", "theirs", "within", "within"]
        for limit in (1, 2, 1_000):
            found = await names(kept, query, limit)
            assert sorted(found) == expected, limit
            assert found[-2:] == ["long", "running"], "by their ends"

    async def test_groups_domains_and_users_narrow(self, kept: Kept) -> None:
        await self._fill(kept)
        query = UsageQuery(start=NOW, end=NOW + 10 * HOUR)
        assert await names(kept, replace(query, group_ids=(GroupId(UUID(int=9)),))) == ["theirs"]
        assert await names(kept, replace(query, domain_name=DomainName("far"))) == ["theirs"]
        assert await names(kept, replace(query, user_id=UserId(UUID(int=1)))) == ["theirs"]
        assert await names(kept, replace(query, group_ids=(GroupId(uuid4()),))) == []
        assert await names(kept, replace(query, group_ids=())) == []

    async def test_what_a_kernel_had_comes_back(self, kept: Kept) -> None:
        session = ran("one", NOW, NOW + HOUR, mounts=("data",))
        await kept.sessions.insert(session, events=[])
        [kernel] = await kept.usage.used(UsageQuery(start=NOW, end=NOW + HOUR))
        assert kernel.is_main
        assert (kernel.slots, kernel.mounts, kernel.last_stat) == (SLOTS, ("data",), STAT)
        assert (kernel.started_at, kernel.terminated_at, kernel.cluster_mode) == (NOW, NOW + HOUR, "single-node")
        assert kernel.seconds_within(NOW + HOUR / 4, NOW + HOUR / 2, NOW + HOUR) == 900


class TestSqlUsage(UsageContract):
    @pytest.fixture
    async def kept(self, tmp_path: Path) -> AsyncIterator[Kept]:
        database = Database(f"sqlite:///{migrated(tmp_path / 'manager.db')}")
        yield Kept(SqlSessionStore(database), SqlUsageStore(database))
        await database.close()


@pytest.mark.needs("postgres")
class TestPostgresUsage(UsageContract):
    @pytest.fixture
    async def kept(self) -> AsyncIterator[Kept]:
        server = shared_server()
        database = Database(server.url(emptied(server, migrated_template())))
        yield Kept(SqlSessionStore(database), SqlUsageStore(database))
        await database.close()
