"""Filters mean the same in every implementation of the stores, and none fails inside of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.database import Database
from ai.backend.manager.composition.stores import Stores
from ai.backend.manager.query.model import Condition, Operator, Scalar
from ai.backend.manager.sessions.memory import Memory
from ai.backend.manager.sessions.model import SessionQuery
from ai.backend.simulator.stores import make_stores
from tests.contract.store.builders import NOW, make_session
from tests.support.migrated import migrated
from tests.support.postgres import emptied, migrated_template, shared_server


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    if request.param == "memory":
        yield make_stores(Memory(), lambda: NOW)
        return
    url = f"sqlite:///{migrated(tmp_path / 'manager.db')}" if request.param == "sqlite" else _postgres()
    database = Database(url)
    yield Stores.sql(database)
    await database.close()


def _postgres() -> str:
    server = shared_server()
    return server.url(emptied(server, migrated_template()))


async def test_times_and_patterns_are_read_alike(stores: Stores) -> None:
    await stores.sessions.insert(make_session("back", tag="a\\b"), events=[])

    async def count(field: str, op: Operator, value: Scalar) -> int:
        query = SessionQuery(filter=Condition(field=field, op=op, value=value))
        return (await stores.sessions.search(query)).total_count

    assert await count("created_at", ">", "2020-01-01") == 1, "a date is its first moment in UTC"
    assert await count("created_at", "==", NOW.replace(tzinfo=None).isoformat()) == 1
    assert await count("tag", "like", "a\\_") == 1, "a backslash is no escape"
    assert await count("tag", "ilike", "A\\") == 0


@pytest.mark.parametrize(
    ("field", "op", "value"),
    [
        ("created_at", "<", "9999-12-31T23:59:59-23:00"),
        ("created_at", "<", "0001-01-01T00:00:00+23:00"),
        ("created_at", "<", "yesterday"),
        ("created_at", "<", None),
        ("created_at", "<", True),
        ("cluster_size", "<", "many"),
        ("id", ">=", 1),
    ],
)
async def test_no_field_is_compared_with_another_kind_of_value(
    stores: Stores, field: str, op: Operator, value: Scalar
) -> None:
    await stores.sessions.insert(make_session("one"), events=[])
    with pytest.raises(InvalidInput):
        await stores.sessions.search(SessionQuery(filter=Condition(field=field, op=op, value=value)))
