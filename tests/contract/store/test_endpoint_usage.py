"""The contract of the store of the use of endpoints, on memory, SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from ai.backend.common.errors import StaleVersion
from ai.backend.common.structs import replace
from ai.backend.infra.database import Database
from ai.backend.manager.serving.memory import MemoryServingStore
from ai.backend.manager.serving.memory_usage import MemoryEndpointUsageStore
from ai.backend.manager.serving.model import UseGrouping, UseKey, UseQuery, UseSums
from ai.backend.manager.serving.service import event_of
from ai.backend.manager.serving.sql import SqlServingStore
from ai.backend.manager.serving.sql_usage import SqlEndpointUsageStore
from ai.backend.manager.serving.store import EndpointUsageStore, ServingStore
from tests.support.migrated import migrated
from tests.support.postgres import emptied, migrated_template, shared_server
from tests.unit.manager.serving.world import ENDPOINT, NOW, OWNER, make_service

ALL = UseQuery(since=0, until=10**6, by=UseGrouping.ENDPOINT, limit=10)
USER, REPLICA = UUID(int=70), UUID(int=71)


def key(hour: int, token: str = "", user: UUID | None = None, *, endpoint: UUID = ENDPOINT) -> UseKey:
    return UseKey(endpoint, hour, token, user, None, REPLICA)


@dataclass
class Stores:
    serving: ServingStore
    usage: EndpointUsageStore


class EndpointUsageContract:
    @pytest.fixture
    async def usage(self, stores: Stores) -> EndpointUsageStore:
        service = make_service()
        await stores.serving.insert(service, event_of(service.endpoint, NOW, "endpoint", {}), limit=10)
        return stores.usage

    async def test_adds_and_sums_up(self, usage: EndpointUsageStore) -> None:
        first = {key(47, "a", USER): UseSums(requests=2, prompt_tokens=3), key(48): UseSums(requests=1, errors=1)}
        await usage.add("c", after_number=0, last_number=5, use=first)
        await usage.add(
            "c",
            after_number=5,
            last_number=9,
            use={key(47, "a", USER): UseSums(requests=1, output_tokens=4, busy_ms=2)},
        )
        assert await usage.position("c") == 9
        assert await usage.position("another") == 0
        report = await usage.usage(ALL)
        sums = UseSums(requests=4, errors=1, prompt_tokens=3, output_tokens=4, busy_ms=2)
        assert [(each.key, each.name, each.sums) for each in report.groups] == [(ENDPOINT, "my-service", sums)]
        assert report.total == sums
        days = await usage.usage(replace(ALL, by=UseGrouping.DAY))
        assert [(each.key, each.sums.requests) for each in days.groups] == [(1, 3), (2, 1)]
        users = await usage.usage(replace(ALL, by=UseGrouping.USER, limit=1))
        assert [(each.key, each.name) for each in users.groups] == [(USER, None)]
        assert users.total == sums
        projects = await usage.usage(replace(ALL, by=UseGrouping.PROJECT))
        assert [each.key for each in projects.groups] == [make_service().endpoint.group_id]

    async def test_a_report_is_added_once(self, usage: EndpointUsageStore) -> None:
        for after in (0, 3):
            await usage.add("c", after_number=after, last_number=after + 3, use={key(1): UseSums(requests=1)})
        for after in (0, 3, 7):
            with pytest.raises(StaleVersion):
                await usage.add("c", after_number=after, last_number=after + 3, use={key(1): UseSums(requests=1)})
        assert (await usage.usage(ALL)).total.requests == 2

    async def test_selects_by_period_owner_and_endpoint(self, usage: EndpointUsageStore) -> None:
        await usage.add(
            "c", after_number=0, last_number=1, use={key(hour): UseSums(requests=1) for hour in (10, 11, 12)}
        )
        expected = {
            replace(ALL, since=11, until=12): 1,
            replace(ALL, user_id=OWNER.user_id, domain_name=OWNER.domain_name): 3,
            replace(ALL, domain_name="other"): 0,
            replace(ALL, endpoint_id=uuid4()): 0,
        }
        for query, requests in expected.items():
            assert (await usage.usage(query)).total.requests == requests

    async def test_use_of_unknown_endpoints_is_dropped(self, usage: EndpointUsageStore) -> None:
        await usage.add("c", after_number=0, last_number=1, use={key(1, endpoint=uuid4()): UseSums(requests=1)})
        assert (await usage.usage(ALL)).groups == []
        assert await usage.position("c") == 1

    async def test_purges_earlier_hours(self, usage: EndpointUsageStore) -> None:
        await usage.add("c", after_number=0, last_number=1, use={key(hour): UseSums(requests=1) for hour in (1, 2, 3)})
        assert await usage.purge_usage(before_hour=3) == 2
        assert (await usage.usage(ALL)).total.requests == 1


class TestMemoryEndpointUsage(EndpointUsageContract):
    @pytest.fixture
    def stores(self) -> Stores:
        serving = MemoryServingStore()
        return Stores(serving, MemoryEndpointUsageStore(serving))


class TestSqlEndpointUsage(EndpointUsageContract):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[Stores]:
        database = Database(f"sqlite:///{migrated(tmp_path / 'manager.db')}")
        yield Stores(SqlServingStore(database), SqlEndpointUsageStore(database))
        await database.close()


@pytest.mark.needs("postgres")
class TestPostgresEndpointUsage(EndpointUsageContract):
    @pytest.fixture
    async def stores(self) -> AsyncIterator[Stores]:
        server = shared_server()
        database = Database(server.url(emptied(server, migrated_template())))
        yield Stores(SqlServingStore(database), SqlEndpointUsageStore(database))
        await database.close()
