"""The directory keeps the contract of object storages."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from ai.backend.common.errors import (
    InvalidInput,
    InvalidPath,
    NoSuchFile,
    StorageFull,
    UploadIsBeingWritten,
    WrongKindOfFile,
)
from ai.backend.plugin.object_storage import ObjectStorage, ObjectUpload, StorageContext
from ai.backend.plugin.testing.object_storage import ObjectStorageContract, content_of
from ai.backend.volume.object.directory import DirectoryStorage


class TestDirectory(ObjectStorageContract):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.root = tmp_path

    def make(self, place: str) -> ObjectStorage:
        return DirectoryStorage("local", {"path": self.root / place}, StorageContext())

    async def test_two_writers_of_one_key(self, storage: ObjectStorage, place: str) -> None:
        upload = await storage.open_upload("object")
        other = self.make(place)
        with pytest.raises(UploadIsBeingWritten):
            await other.open_upload("object")
        await upload.abort()
        await (await other.open_upload("object")).abort()
        await other.stop()

    async def test_a_cancelled_opening_leaves_no_lock(
        self, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        is_open, is_cancelled, open_upload = threading.Event(), threading.Event(), storage._open_upload

        def open_slowly(key: str, path: Path) -> ObjectUpload:
            upload = open_upload(key, path)
            is_open.set()
            assert is_cancelled.wait(10)
            return upload

        with monkeypatch.context() as slow:
            slow.setattr(storage, "_open_upload", open_slowly)
            task = asyncio.create_task(storage.open_upload("object"))
            await asyncio.to_thread(is_open.wait)
            task.cancel()
            is_cancelled.set()
            await asyncio.wait({task})
        assert task.cancelled()
        await storage.put("object", b"done")

    async def test_no_key_is_a_directory_of_others(self, storage: ObjectStorage) -> None:
        await storage.put("a", b"")
        with pytest.raises(WrongKindOfFile):
            await storage.put("a/b", b"")
        await storage.put("b/c", b"")
        with pytest.raises(WrongKindOfFile):
            await storage.put("b", b"")

    async def test_no_link_is_followed_and_no_hidden_file_is_a_key(self, storage: ObjectStorage, place: str) -> None:
        (self.root / "secret").write_text("secret")
        (self.root / place / "link").symlink_to(self.root / "secret")
        with pytest.raises(NoSuchFile):
            await storage.stat("link")
        with pytest.raises(InvalidPath):
            await content_of(storage, "link")
        with pytest.raises(InvalidPath):
            await storage.stat(".uploads/x")
        assert list((await storage.list()).objects) == []

    async def test_nothing_is_left_of_what_was_removed(self, storage: ObjectStorage, place: str) -> None:
        await storage.put("a/b/c", b"")
        await storage.move("a/b/c", "d/e")
        await storage.delete(["d/e"])
        assert [path.name for path in (self.root / place).rglob("*")] == [".uploads"]

    async def test_a_disk_that_fails_is_told_and_what_was_not_written_out_begins_anew(
        self, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_room(*_: object) -> None:
            raise OSError(28, "no space")

        upload = await storage.open_upload("object")
        await upload.write(b"abc")
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", no_room)
            with pytest.raises(StorageFull):
                await upload.publish()
        assert upload.offset == 0
        with monkeypatch.context() as broken:
            broken.setattr(os, "pwrite", no_room)
            with pytest.raises(StorageFull):
                await upload.write(b"abc")
        await upload.write(b"abc")
        await upload.publish()
        assert await content_of(storage, "object") == b"abc"


@pytest.mark.needs("root")
async def test_what_is_made_belongs_to_the_owner(tmp_path: Path) -> None:
    storage = DirectoryStorage("local", {"path": tmp_path / "top"}, StorageContext(owner=(4321, 4322)))
    await storage.start()
    await storage.put("a/b", b"x")
    for path in (tmp_path / "top", *(tmp_path / "top").rglob("*")):
        if path.name != ".uploads":
            assert (path.stat().st_uid, path.stat().st_gid) == (4321, 4322), path
    await storage.stop()


async def test_wrong_settings(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="one setting, path"):
        DirectoryStorage("local", {}, StorageContext())
    with pytest.raises(InvalidInput, match="one setting, path"):
        DirectoryStorage("local", {"path": tmp_path, "size": 1}, StorageContext())
    storage = DirectoryStorage("local", {"path": tmp_path / "a" / "b"}, StorageContext())
    with pytest.raises(InvalidInput, match="No such file"):
        await storage.start()
    os.close(os.open(tmp_path / "file", os.O_CREAT))
    storage = DirectoryStorage("local", {"path": tmp_path / "file"}, StorageContext())
    with pytest.raises(InvalidInput, match="cannot be used"):
        await storage.start()
