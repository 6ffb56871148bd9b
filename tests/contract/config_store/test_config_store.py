"""The configuration store contract, on every adapter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from ai.backend.common.errors import InvalidInput, Unavailable
from ai.backend.infra.config_store import (
    GLOBAL,
    ConfigChange,
    ConfigScope,
    ConfigStore,
    MemoryConfigStore,
    ScopeKind,
    SQLiteConfigStore,
)
from ai.backend.infra.config_store.etcd import EtcdConfigStore
from ai.backend.infra.database import Database
from tests.support.etcd_server import EtcdServer

GROUP = ConfigScope(ScopeKind.RESOURCE_GROUP, "gpu")
NODE = ConfigScope(ScopeKind.NODE, "i-1")


ADAPTERS = ["memory", "sqlite", pytest.param("etcd", marks=pytest.mark.needs("etcd"))]
_namespaces = count()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=ADAPTERS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ConfigStore]:
    if request.param == "memory":
        yield MemoryConfigStore()
        return
    if request.param == "etcd":
        server: EtcdServer = request.getfixturevalue("etcd")
        ours = EtcdConfigStore([server.url], namespace=f"test{next(_namespaces)}")
        yield ours
        await ours.close()
        return
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/config.db")
    sqlite = SQLiteConfigStore(database, poll_interval_s=0.05)
    await sqlite.setup()
    yield sqlite
    await database.close()


async def test_the_narrowest_scope_wins(store: ConfigStore) -> None:
    await store.put_many({"a/b": "global", "a/c": "only global"})
    await store.put_many({"a/b": "node"}, scope=NODE)
    await store.put_many({"a/b": "group"}, scope=GROUP)
    assert await store.get("a/b") == "global"
    assert await store.get("a/b", scopes=(GLOBAL, GROUP, NODE)) == "node"
    assert await store.get_prefix("a", scopes=(GLOBAL, GROUP)) == {"a/b": "group", "a/c": "only global"}


async def test_a_prefix_covers_whole_parts_only(store: ConfigStore) -> None:
    await store.put_many({"ab/c": "1", "abc": "2", "ab": "3", "a%/x": "4", "aX/x": "5"})
    assert await store.get_prefix("ab") == {"ab": "3", "ab/c": "1"}
    assert await store.get_prefix("a%") == {"a%/x": "4"}
    assert len(await store.get_prefix("")) == 5
    assert await store.delete("ab", prefix=True) == 2
    assert await store.get("abc") == "2"


@pytest.mark.parametrize("key", ["", "/a", "a//b", "a/", "a\nb", "x" * 2000])
async def test_a_malformed_key_is_refused_and_changes_nothing(store: ConfigStore, key: str) -> None:
    with pytest.raises(InvalidInput):
        await store.put_many({"good": "1", key: "2"})
    assert await store.get_prefix("") == {}


async def test_a_value_over_a_mebibyte_is_refused(store: ConfigStore) -> None:
    with pytest.raises(InvalidInput):
        await store.put_many({"a": "x" * (1 << 20) + "x"})


async def collect(store: ConfigStore, prefix: str, count: int, after: int | None = None) -> list[ConfigChange]:
    changes: list[ConfigChange] = []
    async for change in store.watch(prefix, after=after):
        changes.append(change)
        if len(changes) == count:
            break
    return changes


async def test_a_watch_sees_every_change_in_order_and_resumes(store: ConfigStore) -> None:
    start = await store.revision()
    await store.put_many({"w/a": "1"})
    await store.put_many({"w/a": "2", "other": "x"})
    await store.delete("w/a")
    seen = await asyncio.wait_for(collect(store, "w", 3, after=start), 30)
    assert [(c.key, c.value) for c in seen] == [("w/a", "1"), ("w/a", "2"), ("w/a", None)]
    assert [c.revision for c in seen] == sorted({c.revision for c in seen})
    again = await asyncio.wait_for(collect(store, "w", 1, after=seen[1].revision), 30)
    assert again == [seen[2]]


async def test_a_watch_without_a_revision_begins_now(store: ConfigStore) -> None:
    await store.put_many({"w/old": "1"})
    watching = asyncio.create_task(collect(store, "w", 1))
    for _ in range(100):
        await store.put_many({"w/new": "1"}, scope=NODE)
        if watching.done():
            break
        await asyncio.sleep(0.02)
    assert [(c.key, c.scope) for c in await watching] == [("w/new", NODE)]


async def test_two_writers_lose_nothing(store: ConfigStore) -> None:
    await asyncio.gather(*(store.put_many({f"k/{i}": str(i), "shared": str(i)}) for i in range(50)))
    assert len(await store.get_prefix("k")) == 50
    assert await store.revision() >= 50


async def test_many_keys_are_set_at_once(store: ConfigStore) -> None:
    wanted = {f"many/{i:03}": str(i) for i in range(200)}
    before = await store.revision()
    await store.put_many(wanted)
    assert await store.get_prefix("many") == wanted
    seen = await asyncio.wait_for(collect(store, "many", 200, after=before), 30)
    assert {c.key: c.value for c in seen} == wanted
    assert await store.delete("many", prefix=True) == 200


async def test_what_is_global_ends_without_the_rest(store: ConfigStore) -> None:
    await store.put_many({"a": "1", "b/c": "2"})
    await store.put_many({"a": "node"}, scope=NODE)
    assert await store.delete("", prefix=True) == 2
    assert await store.get_prefix("") == {}
    assert await store.get_prefix("", scopes=(GLOBAL, NODE)) == {"a": "node"}


@pytest.mark.needs("etcd")
async def test_a_watch_outlives_restarts_of_etcd_and_compactions(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path)
    server.start()
    store, other = EtcdConfigStore([server.url]), EtcdConfigStore(["http://127.0.0.1:1", server.url])
    try:
        seen: list[ConfigChange] = []
        changed = asyncio.Event()

        async def follow() -> None:
            async for change in store.watch("w", after=0):
                seen.append(change)
                changed.set()

        async def until(value: str) -> None:
            async with asyncio.timeout(30):
                while not any(change.value == value for change in seen):
                    changed.clear()
                    await changed.wait()

        following = asyncio.create_task(follow())
        await other.put_many({"w/a": "1"})
        await until("1")
        server.kill()
        with pytest.raises(Unavailable):
            await other.get("w/a")
        await asyncio.to_thread(server.start)
        await other.put_many({"w/a": "2"})
        await until("2")
        await other.put_many({"w/a": "3"})
        await until("3")
        assert [change.value for change in seen] == ["1", "2", "3"]
        following.cancel()
        await other._call("kv/compaction", {"revision": str(await other.revision())})
        late = await asyncio.wait_for(collect(store, "w", 1, after=1), 30)
        assert [(change.key, change.value) for change in late] == [("w/a", "3")]
    finally:
        await store.close()
        await other.close()
        server.stop()


def test_a_scope_has_a_name_exactly_when_it_needs_one() -> None:
    with pytest.raises(InvalidInput):
        ConfigScope(ScopeKind.GLOBAL, "x")
    with pytest.raises(InvalidInput):
        ConfigScope(ScopeKind.NODE)
