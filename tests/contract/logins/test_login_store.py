"""The contract of stores of login sessions: the SQLite file and Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.infra.database import Database
from ai.backend.web.login.model import StoredLogin
from ai.backend.web.login.sql import SqlLoginStore
from ai.backend.web.login.store import LoginStore
from tests.support.redis_server import RedisServer

ADAPTERS = ["sql", pytest.param("redis", marks=pytest.mark.needs("redis"))]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


def redis_store(url: str) -> LoginStore:
    from ai.backend.infra.redis import connect
    from ai.backend.web.login.redis_client import RedisLoginStore

    return RedisLoginStore(connect(url))


@pytest.fixture(params=ADAPTERS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LoginStore]:
    made: LoginStore = (
        SqlLoginStore(Database(f"sqlite:///{tmp_path / 'logins.db'}"))
        if request.param == "sql"
        else redis_store(request.getfixturevalue("redis").url)
    )
    await made.start()
    yield made
    await made.stop()


def login(username: str, *, lives_s: float = 3600) -> StoredLogin:
    expires_at = (datetime.now(UTC) + timedelta(seconds=lives_s)).replace(microsecond=0)
    return StoredLogin(
        login_id=uuid4().hex,
        username=username,
        sealed=b"\x00sealed\xff",
        expires_at=expires_at,
        created_at=datetime.now(UTC).replace(microsecond=0),
        address="192.0.2.1",
        client="a browser",
    )


def name() -> str:
    return f"{uuid4().hex}@example.com"


async def test_a_login_is_returned_until_it_expires(store: LoginStore) -> None:
    stored = login(name())
    await store.put(stored)
    assert await store.get(stored.login_id, now=datetime.now(UTC)) == stored
    assert await store.get(stored.login_id, now=stored.expires_at) is None
    assert await store.get("0" * 64, now=datetime.now(UTC)) is None


async def test_a_login_is_extended_only_while_it_exists(store: LoginStore) -> None:
    stored = login(name())
    later = stored.expires_at + timedelta(hours=1)
    await store.extend(stored.login_id, later)
    assert await store.get(stored.login_id, now=datetime.now(UTC)) is None
    await store.put(stored)
    await store.extend(stored.login_id, later)
    kept = await store.get(stored.login_id, now=stored.expires_at)
    assert kept is not None
    assert kept.expires_at == later


async def test_a_use_is_noted_only_while_the_login_exists(store: LoginStore) -> None:
    stored, now = login(name()), datetime.now(UTC).replace(microsecond=0)
    await store.touch(stored.login_id, now)
    await store.put(stored)
    kept = await store.get(stored.login_id, now=now)
    assert kept is not None
    assert kept.used_at is None
    for moment in (now, now + timedelta(minutes=1)):
        await store.touch(stored.login_id, moment)
        (kept,) = await store.of_user(stored.username, now=now)
        assert kept.used_at == moment


async def test_all_logins_of_a_user_end_but_for_one(store: LoginStore) -> None:
    username = name()
    mine, other, foreign = login(username), login(username), login(name())
    for stored in (mine, other, foreign):
        await store.put(stored)
    await store.delete_of_user(username, except_id=mine.login_id)
    now = datetime.now(UTC)
    alive = [await store.get(stored.login_id, now=now) is not None for stored in (mine, other, foreign)]
    assert alive == [True, False, True]
    await store.delete_of_user(username)
    assert await store.get(mine.login_id, now=now) is None


async def test_one_login_or_all_are_deleted(store: LoginStore) -> None:
    first, second = login(name()), login(name())
    await store.put(first)
    await store.put(second)
    now = datetime.now(UTC)
    await store.delete(first.login_id)
    await store.delete(first.login_id)
    assert await store.get(first.login_id, now=now) is None
    assert await store.get(second.login_id, now=now) is not None
    await store.delete_all()
    assert await store.get(second.login_id, now=now) is None


async def test_failures_are_counted_one_by_one_until_they_are_forgotten(store: LoginStore) -> None:
    key, now = f"name:{name()}", datetime.now(UTC)
    expires_at = now + timedelta(seconds=2)

    async def add(count: int) -> int:
        return await store.add_failures(key, count, now=now, expires_at=expires_at)

    assert sorted(await asyncio.gather(*[add(1) for _ in range(20)])) == list(range(1, 21))
    assert await add(-1) == 19
    await store.clear_failures(key)
    assert await add(1) == 1
    later = expires_at + timedelta(seconds=1)
    await asyncio.sleep(max(0.0, (later - datetime.now(UTC)).total_seconds()))
    assert await store.add_failures(key, 1, now=later, expires_at=later + timedelta(seconds=9)) == 1


async def test_expired_rows_are_removed_from_the_file(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'logins.db'}")
    store = SqlLoginStore(database)
    await store.start()
    stored = login(name())
    await store.put(stored)
    await store.remove_expired(now=stored.expires_at)
    assert await store.get(stored.login_id, now=datetime.now(UTC)) is None
    await store.stop()


@pytest.mark.needs("redis")
async def test_a_store_that_is_away_is_unavailable(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    store = redis_store(server.url)
    with pytest.raises(Unavailable):
        await store.get("0" * 64, now=datetime.now(UTC))
    with pytest.raises(Unavailable):
        await store.put(login(name()))
    await store.stop()
