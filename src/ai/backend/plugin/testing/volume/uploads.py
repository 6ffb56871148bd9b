"""Uploads into a volume: a part of :mod:`ai.backend.plugin.testing.volume.contract`."""

# ruff: noqa: PTH208  # tests look at the disk besides the volume, in the simplest way

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.errors import UploadIsBeingWritten, UploadNotFound, WrongKindOfFile
from ai.backend.common.volume_paths import VFolderId
from ai.backend.plugin.testing.volume.driver import at, put, some_folder
from ai.backend.plugin.volume import AbstractVolume, UploadRecord, UploadState


class VolumeUploadContract:
    """Files that come in pieces, and are seen when they are whole."""

    def make(self, path: Path, **context: Any) -> AbstractVolume:
        pytest.fail("override `make`")

    async def test_an_upload_is_seen_when_it_is_whole(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        (inside / "file").write_text("old")
        record = UploadRecord(session=uuid4().hex, folder=folder, path=at("file"), size=6)
        await volume.create_upload(record)
        upload = volume.open_upload(folder, record.session)
        upload.write(b"abc")
        with pytest.raises(UploadIsBeingWritten):
            volume.open_upload(folder, record.session)
        with pytest.raises(UploadIsBeingWritten):
            await volume.drop_upload(folder, record.session)
        upload.close()
        assert os.listdir(inside) == ["file"]
        assert (await volume.find_upload(folder, record.session))[1] == 3
        again = self.make(volume.path)
        await again.start()
        upload = again.open_upload(folder, record.session)
        assert upload.offset == 3
        upload.write(b"def")
        assert (inside / "file").read_text() == "old"
        upload.publish(record.path)
        upload.close()
        await again.stop()
        assert (inside / "file").read_bytes() == b"abcdef"
        existing, offset = await volume.find_upload(folder, record.session)
        assert (existing.state, offset) == (UploadState.DONE, 6)
        upload = volume.open_upload(folder, record.session)
        upload.publish(record.path)  # once more does nothing
        upload.close()
        assert await volume.uploads(folder.scope) == [existing]

    async def test_what_does_not_count_is_taken_away(self, volume: AbstractVolume, folder: VFolderId) -> None:
        record = UploadRecord(session=uuid4().hex, folder=folder, path=at("file"), size=9)
        await volume.create_upload(record)
        upload = volume.open_upload(folder, record.session)
        upload.write(b"abc")
        upload.hold()
        upload.write(b"bad")
        upload.close()
        assert (await volume.find_upload(folder, record.session))[1] == 3
        upload = volume.open_upload(folder, record.session)
        assert upload.offset == 3
        upload.hold()
        upload.write(b"def")
        upload.count()
        upload.close()
        assert (await volume.find_upload(folder, record.session))[1] == 6

    async def test_an_upload_ends(self, volume: AbstractVolume, folder: VFolderId) -> None:
        records = [UploadRecord(session=uuid4().hex, folder=folder, path=at("file"), size=9) for _ in range(2)]
        for record in records:
            await volume.create_upload(record)
        await volume.drop_upload(folder, records[0].session)
        with pytest.raises(UploadNotFound):
            await volume.find_upload(folder, records[0].session)
        with pytest.raises(UploadNotFound):
            await volume.find_upload(some_folder(), records[1].session)
        assert await volume.expire_uploads(time.time() - 60) == 0
        assert await volume.expire_uploads(time.time() + 60) == 1
        with pytest.raises(UploadNotFound):
            volume.open_upload(folder, records[1].session)
        with pytest.raises(UploadNotFound):
            volume.open_upload(folder, "../../" + records[1].session)
        assert await volume.uploads(folder.scope) == []

    async def test_an_upload_becomes_no_directory(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        (inside / "dir").mkdir()
        (inside / "file").touch()
        for text in ("dir", ".", "file/below"):
            with pytest.raises(WrongKindOfFile):
                await put(volume, folder, text, b"x")
        record = UploadRecord(session=uuid4().hex, folder=folder, path=at("late/file"), size=1)
        await volume.create_upload(record)
        upload = volume.open_upload(folder, record.session)
        upload.write(b"x")
        (inside / "late" / "file").mkdir(parents=True)
        with pytest.raises(WrongKindOfFile):
            upload.publish(record.path)
        (inside / "late" / "file").rmdir()
        upload.publish(record.path)
        upload.close()
        assert (inside / "late" / "file").read_bytes() == b"x"
