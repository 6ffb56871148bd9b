"""The configuration store contract, on every adapter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from ai.backend.common.errors import InvalidInput, Unavailable
from ai.backend.infra.config_store import (
    GLOBAL,
    MANAGERS,
    CachingConfigStore,
    ConfigChange,
    ConfigScope,
    ConfigStore,
    MemoryConfigStore,
    ScopeKind,
    SQLiteConfigStore,
)
from ai.backend.infra.config_store.etcd import EtcdConfigStore
from ai.backend.infra.database import Database
from ai.backend.manager.composition.backing_services import keep_announced
from tests.support.etcd_server import EtcdServer

GROUP = ConfigScope(ScopeKind.RESOURCE_GROUP, "gpu")
NODE = ConfigScope(ScopeKind.NODE, "i-1")


ADAPTERS = ["memory", "remembering", "sqlite", pytest.param("etcd", marks=pytest.mark.needs("etcd"))]
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
    if request.param == "remembering":
        remembering = CachingConfigStore(MemoryConfigStore())
        await remembering.start()
        yield remembering
        await remembering.close()
        return
    if request.param == "etcd":
        server: EtcdServer = request.getfixturevalue("etcd")
        ours = EtcdConfigStore([server.url], namespace=f"test{next(_namespaces)}")
        yield ours
        await ours.close()
        return
    database = Database(f"sqlite:///{tmp_path}/config.db")
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


async def test_everything_is_told_with_its_revision(store: ConfigStore) -> None:
    await store.put_many({"a": "1", "b/c": "2"})
    await store.put_many({"a": "node"}, scope=NODE)
    await store.put_many({"a": "3", "gone": "x"})
    await store.delete("gone")
    revision, values = await store.read_all()
    assert revision == await store.revision()
    assert [(c.scope, c.key, c.value) for c in values] == [
        (GLOBAL, "b/c", "2"),
        (NODE, "a", "node"),
        (GLOBAL, "a", "3"),
    ]
    assert [c.revision for c in values] == sorted(c.revision for c in values)


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


class _Away(MemoryConfigStore):
    """Its server is away, or does not answer, when it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.asked = asyncio.Event(), 0
        self.there.set()
        self.hangs = False

    async def _reach(self) -> None:
        self.asked += 1
        if self.hangs:
            await self.there.wait()
        if not self.there.is_set():
            raise Unavailable("it is away")

    async def get(self, key: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> str | None:
        await self._reach()
        return await super().get(key, scopes=scopes)

    async def read_all(self) -> tuple[int, list[ConfigChange]]:
        await self._reach()
        return await super().read_all()


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_server_that_is_away_is_remembered(hangs: bool, caplog: pytest.LogCaptureFixture) -> None:
    server = _Away()
    await server.put_many({"a": "1", "b": "1"})
    store = CachingConfigStore(server, patience_s=0.01 if hangs else 30)
    server.there.clear()
    await store.start()
    with pytest.raises(Unavailable):
        await store.get("a")
    server.there.set()
    async with asyncio.timeout(30):
        while store.stale_s or await store.get("a") != "1":  # noqa: ASYNC110  # it asks by itself
            await asyncio.sleep(0.01)
        await server.put_many({"a": "2", "c": "3"})
        await server.delete("b")
        while store.copy is None or store.copy.get("c", (GLOBAL,)) is None:  # noqa: ASYNC110  # the watch brings it
            await asyncio.sleep(0.01)
    caplog.clear()
    server.hangs = hangs
    server.there.clear()
    assert [await store.get("a", scopes=(GLOBAL, NODE)), await store.get("b"), await store.get("x")] == [
        "2",
        None,
        None,
    ]
    assert ("no answer in 0.01 s" if hangs else "it is away") in caplog.text
    assert await store.get_prefix("a") == {"a": "2"}
    asked = server.asked
    for _ in range(100):
        await store.get("a")
    assert server.asked <= asked + 1, "nobody waits for a server that is known to be away"
    assert store.stale_s > 0
    with pytest.raises(InvalidInput):
        await store.get("a//b")
    assert sum("from memory" in record.message for record in caplog.records) == 1
    server.there.set()
    async with asyncio.timeout(30):
        while store.stale_s:  # noqa: ASYNC110  # it asks by itself
            await asyncio.sleep(0.01)
    assert await store.get("a") == "2"
    await store.close()


async def test_what_is_too_large_is_not_remembered() -> None:
    server = _Away()
    store = CachingConfigStore(server, max_copy_bytes=100)
    await store.start()
    await store.put_many({"a": "x" * 200})
    server.there.clear()
    with pytest.raises(Unavailable):
        await store.get("a")
    await store.close()


@pytest.mark.needs("etcd")
async def test_an_etcd_that_is_away_is_remembered_and_keys_are_kept_over_it(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path)
    etcd, other = EtcdConfigStore([server.url]), EtcdConfigStore([server.url])
    store = CachingConfigStore(etcd)
    listing = asyncio.create_task(keep_announced(etcd, {f"{MANAGERS}/one": "here"}))

    async def until_listed(expected: dict[str, str]) -> None:
        async with asyncio.timeout(30):
            while await other.get_prefix(MANAGERS) != expected:  # noqa: ASYNC110  # of another process
                await asyncio.sleep(0.05)

    try:
        await store.start()  # before there is an etcd
        await asyncio.to_thread(server.start)
        await until_listed({f"{MANAGERS}/one": "here"})
        await store.put_many({"a/b": "1"})
        server.kill()
        assert await store.get_prefix("a", scopes=(GLOBAL, NODE)) == {"a/b": "1"}
        assert (await store.get("a/b"), await store.get("a/c")) == ("1", None)
        with pytest.raises(Unavailable):
            await store.put_many({"a/b": "lost"})
        await asyncio.to_thread(server.start)
        await other.put_many({"a/b": "2"})
        async with asyncio.timeout(30):
            while await store.get("a/b") != "2":  # noqa: ASYNC110  # it comes back by itself
                await asyncio.sleep(0.05)
        await until_listed({f"{MANAGERS}/one": "here"})
        await other.keep({f"{MANAGERS}/two": "there"}, ttl_s=1)
        await other.keep({f"{MANAGERS}/two": "there"}, ttl_s=1)
        await other.delete(f"{MANAGERS}/two")
        await other.keep({f"{MANAGERS}/two": "there"}, ttl_s=1)
        await until_listed({f"{MANAGERS}/one": "here", f"{MANAGERS}/two": "there"})
        await until_listed({f"{MANAGERS}/one": "here"})  # nobody keeps the other
        await other.keep({f"{MANAGERS}/two": "again"}, ttl_s=60)
        await until_listed({f"{MANAGERS}/one": "here", f"{MANAGERS}/two": "again"})
    finally:
        listing.cancel()
        await store.close()
        await other.close()
        server.stop()


def test_a_scope_has_a_name_exactly_when_it_needs_one() -> None:
    with pytest.raises(InvalidInput):
        ConfigScope(ScopeKind.GLOBAL, "x")
    with pytest.raises(InvalidInput):
        ConfigScope(ScopeKind.NODE)
