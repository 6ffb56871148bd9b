"""Tests what every object storage promises.

A test file of a storage is::

    class TestMine(ObjectStorageContract):
        def make(self, place):
            return MyStorage("mine", {"somewhere": place}, StorageContext())

``make`` is called again on the same ``place``, a short unique name, for what the next life of a proxy finds there.
"""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from uuid import uuid4

import aiohttp
import pytest

from ai.backend.common.errors import InvalidPath, NoSuchFile
from ai.backend.plugin.object_storage import ObjectCapability, ObjectStorage
from ai.backend.plugin.testing.volume.driver import assert_refused

MIB = 1 << 20
AWKWARD_KEYS = (
    "-rf", "a b", "q\"uo'te", "é", "e\u0301", "CASE", "case", "50%+&=?#[]", "~*|\\<>", "한글/말", "x" * 255,
    "a/" * 100 + "deep",
)  # fmt: skip
BAD_KEYS = (
    "", "/", "/a", "a/", "a//b", "./a", "a/./b", "..", "a/../b", "a\nb", "a\0b", "\udcff", "x" * 256, "a/" * 600 + "a",
)  # fmt: skip


async def content_of(storage: ObjectStorage, key: str, **byte_range: int) -> bytes:
    async with aclosing(storage.read(key, **byte_range)) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def keys_of(storage: ObjectStorage, prefix: str = "", *, limit: int = 1000) -> list[str]:
    """Lists the keys of all objects below a prefix, from all pages of the listing."""
    keys: list[str] = []
    cursor: str | None = None
    while True:
        page = await storage.list(prefix, limit=limit, cursor=cursor)
        assert len(page.objects) <= limit
        keys += [object_info.key for object_info in page.objects]
        if (cursor := page.cursor) is None:
            return keys


async def split_content(content: bytes, piece_bytes: int = 300_000) -> AsyncGenerator[bytes, None]:
    for offset in range(0, len(content), piece_bytes):
        yield content[offset : offset + piece_bytes]


class ObjectStorageContract(ABC):
    """Tests an object storage that a subclass makes."""

    @abstractmethod
    def make(self, place: str) -> ObjectStorage: ...

    @pytest.fixture
    def place(self) -> str:
        return uuid4().hex[:12]

    @pytest.fixture
    async def storage(self, place: str) -> AsyncIterator[ObjectStorage]:
        storage = self.make(place)
        await storage.start()
        yield storage
        await storage.stop()

    async def test_what_was_put_is_there(self, storage: ObjectStorage) -> None:
        assert await storage.check() is None
        for key, content in (("small", b"abc"), ("below/empty", b""), ("large", os.urandom(12 * MIB + 7))):
            await storage.put(key, content)
            assert await content_of(storage, key) == content
            object_info = await storage.stat(key)
            assert (object_info.key, object_info.size) == (key, len(content))
        await storage.put("large", split_content(b"another one"))
        assert await storage.get("large", limit=11) == b"another one"
        with pytest.raises(InvalidPath, match="more than 10 bytes"):
            await storage.get("large", limit=10)

    async def test_ranges(self, storage: ObjectStorage) -> None:
        content = os.urandom(600_000)
        await storage.put("object", content)
        assert await content_of(storage, "object", offset=599_990) == content[-10:]
        assert await content_of(storage, "object", offset=5, count=300_000) == content[5:300_005]
        assert await content_of(storage, "object", offset=599_999, count=10) == content[-1:]
        assert await content_of(storage, "object", offset=600_000) == b""
        assert await content_of(storage, "object", offset=10, count=0) == b""

    async def test_what_is_not_there(self, storage: ObjectStorage) -> None:
        await storage.put("a/b", b"")
        for key in ("missing", "a", "a/b/c", "a/x"):
            await assert_refused(NoSuchFile, storage.stat(key))
            await assert_refused(NoSuchFile, content_of(storage, key))
            await assert_refused(NoSuchFile, storage.move(key, "elsewhere"))
        await storage.delete(["missing", "a/x"])
        assert await keys_of(storage, "nothing/") == []

    async def test_what_is_no_key_is_refused(self, storage: ObjectStorage) -> None:
        for key in BAD_KEYS:
            for storage_call in (
                storage.stat(key),
                storage.put(key, b""),
                storage.open_upload(key),
                storage.delete(["ok", key]),
                storage.move(key, "a"),
                content_of(storage, key),
            ):
                await assert_refused(InvalidPath, storage_call)

    async def test_any_name_is_kept_as_it_is(self, storage: ObjectStorage) -> None:
        for key_number, key in enumerate(AWKWARD_KEYS):
            await storage.put(f"top/{key}", str(key_number).encode())
        expected_keys = sorted((f"top/{key}" for key in AWKWARD_KEYS), key=str.encode)
        assert await keys_of(storage, "top/") == expected_keys
        for key_number, key in enumerate(AWKWARD_KEYS):
            assert await content_of(storage, f"top/{key}") == str(key_number).encode()
        await storage.delete(expected_keys)
        assert await keys_of(storage) == []

    async def test_pages(self, storage: ObjectStorage) -> None:
        keys = ["a", "a-b/x", "a.b", "a0/0/1", "a0/0/2", "a0/1", "b/1", "b/2", "b/3", "c"]
        await asyncio.gather(*(storage.put(key, b"x") for key in keys))
        expected_keys = sorted(keys, key=str.encode)
        for limit in (1, 2, 3, len(keys), 1000):
            assert await keys_of(storage, limit=limit) == expected_keys
            assert await keys_of(storage, "a0/", limit=limit) == ["a0/0/1", "a0/0/2", "a0/1"]
        await assert_refused(InvalidPath, storage.list("a0"))

    async def test_nothing_is_seen_before_it_is_whole(self, storage: ObjectStorage) -> None:
        await storage.put("top/object", b"old")
        upload = await storage.open_upload("top/object")
        await upload.write(b"new " * 3 * MIB)
        assert await content_of(storage, "top/object") == b"old"
        assert await keys_of(storage) == ["top/object"]
        await upload.publish()
        await upload.close()
        assert (await storage.stat("top/object")).size == 12 * MIB

    async def test_an_upload_goes_on_in_the_next_life(self, storage: ObjectStorage, place: str) -> None:
        content = os.urandom(13 * MIB)
        upload = await storage.open_upload("object", size=len(content))
        async for piece in split_content(content[: 11 * MIB], MIB):
            await upload.write(piece)
        await upload.close()
        next_life = self.make(place)
        await next_life.start()
        try:
            upload = await next_life.open_upload("object", size=len(content))
            assert 5 * MIB <= upload.offset <= 11 * MIB
            async for piece in split_content(content[upload.offset :], MIB):
                await upload.write(piece)
            assert upload.offset == len(content)
            await upload.publish()
            assert await content_of(next_life, "object") == content
            assert await self._upload_offset(next_life, "object") == 0
        finally:
            await next_life.stop()

    async def test_what_is_thrown_away_is_gone(self, storage: ObjectStorage) -> None:
        content = os.urandom(6 * MIB)
        upload = await storage.open_upload("top/a")
        await upload.write(content)
        await upload.abort()
        await upload.close()
        second_upload = await storage.open_upload("top/a")
        assert second_upload.offset == 0
        await second_upload.write(content)
        await second_upload.close()
        other_upload = await storage.open_upload("other/a")
        await other_upload.write(content)
        await other_upload.close()
        await storage.put("top/b", b"")
        await storage.delete_prefix("top/")
        await storage.delete_prefix("top/")
        assert await keys_of(storage) == []
        assert (await self._upload_offset(storage, "top/a")) == 0
        assert (await self._upload_offset(storage, "other/a")) >= 5 * MIB

    async def _upload_offset(self, storage: ObjectStorage, key: str) -> int:
        upload = await storage.open_upload(key)
        await upload.close()
        return upload.offset

    async def test_parts_that_break_off_leave_nothing(self, storage: ObjectStorage) -> None:
        async def broken_chunks() -> AsyncGenerator[bytes, None]:
            yield os.urandom(6 * MIB)
            raise ConnectionResetError

        await storage.put("object", b"old")
        await assert_refused(ConnectionResetError, storage.put("object", broken_chunks()))
        assert await content_of(storage, "object") == b"old"
        assert await self._upload_offset(storage, "object") == 0

    async def test_moving(self, storage: ObjectStorage) -> None:
        await storage.put("from/here", b"moved")
        await storage.put("to/there", b"replaced")
        await storage.move("from/here", "to/there")
        assert await keys_of(storage) == ["to/there"]
        assert await content_of(storage, "to/there") == b"moved"
        await assert_refused(NoSuchFile, storage.move("from/here", "to/there"))
        assert await content_of(storage, "to/there") == b"moved"

    async def test_many_at_once(self, storage: ObjectStorage) -> None:
        async def put_and_read(object_number: int) -> None:
            key, content = f"many/{object_number % 5}/{object_number}", os.urandom(1000 + object_number)
            await storage.put(key, content)
            assert await content_of(storage, key) == content
            await storage.move(key, f"moved/{object_number % 3}/{object_number}")

        await asyncio.gather(*map(put_and_read, range(40)))
        assert len(await keys_of(storage, "moved/")) == 40
        await storage.delete(await keys_of(storage, "moved/"))
        assert await keys_of(storage) == []

    async def test_memory_does_not_grow_with_the_object(self, storage: ObjectStorage) -> None:
        async def zeros(chunk_count: int) -> AsyncGenerator[bytes, None]:
            for _ in range(chunk_count):
                yield bytes(MIB)

        await storage.put("warm", zeros(1))
        tracemalloc.start()
        try:
            await storage.put("object", zeros(64), size=64 * MIB)
            async with aclosing(storage.read("object")) as chunks:
                assert sum([len(chunk) async for chunk in chunks]) == 64 * MIB
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 40 * MIB

    async def test_whoever_is_cancelled_holds_nothing(self, storage: ObjectStorage) -> None:
        await storage.put("object", b"x" * MIB)

        async def put_object() -> None:
            await storage.put("other", split_content(b"x" * 8 * MIB, 100_000))

        for pause_s in (0, 0.001, 0.02):
            task = asyncio.create_task(put_object())
            await asyncio.sleep(pause_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await storage.put("other", b"done")
        assert await content_of(storage, "other") == b"done"

    async def test_mounting(self, storage: ObjectStorage) -> None:
        if ObjectCapability.MOUNT not in storage.capabilities:
            pytest.skip("capability: the storage is not mounted")
        await storage.put("model/files/weights", b"abc")
        mounted_folder = await storage.mount_path("model/files/")
        assert mounted_folder.is_absolute()
        assert (mounted_folder / "weights").read_bytes() == b"abc"
        assert sorted(path.name for path in mounted_folder.iterdir()) == ["weights"]
        file = await storage.open_file("model/files/weights")
        assert os.read(file.fd, 10) == b"abc"
        file.close()
        await assert_refused(NoSuchFile, storage.mount_path("nothing/"))

    async def test_presigned_urls(self, storage: ObjectStorage) -> None:
        if ObjectCapability.PRESIGN not in storage.capabilities:
            pytest.skip("capability: the storage makes no URLs")
        async with aiohttp.ClientSession() as http:
            url = await storage.presign("a b/é", expires_s=60, put_size=3)
            async with http.put(url, data=b"abc") as response:
                assert response.status == 200, await response.text()
            url = await storage.presign("a b/é", expires_s=60)
            async with http.get(url, headers={"Range": "bytes=1-"}) as response:
                assert (response.status, await response.read()) == (206, b"bc")
