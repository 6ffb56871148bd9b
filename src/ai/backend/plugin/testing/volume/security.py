"""Tests that no access leads out of the folders and uploads of a volume. The tests are parts of :mod:`.contract`."""

# ruff: noqa: ASYNC240, PTH104, PTH208  # tests look at the disk besides the volume, in the simplest way

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.errors import (
    BackendError,
    FileAlreadyExists,
    InvalidPath,
    NoSuchFile,
    UploadIsBeingWritten,
    UploadNotFound,
    WrongKindOfFile,
)
from ai.backend.common.volume_paths import VFolderId
from ai.backend.plugin.testing.volume.driver import (
    TOP,
    assert_refused,
    begin_upload,
    names,
    parse_path,
    put,
    random_folder_id,
    read,
)
from ai.backend.plugin.volume import AbstractVolume, FileKind, Progress, UploadRecord, UploadState

LOOKALIKES = (
    "．．", "․․", "..\\x", "%2e%2e", "%2e%2e%2f", "..\u200b", "\u202e..", ". .", "...", ".. ", "a\u2215b", "a\u29f8..",
)  # fmt: skip
"""Names that some readers take for a way up; here they are names."""


class VolumeSecurityContract:
    """Tests that no path leads out of a folder, with the fixtures of :class:`VolumeContract`."""

    async def test_no_path_leads_out(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path, tmp_path: Path
    ) -> None:
        outside_folder = tmp_path / "outside"
        outside_folder.mkdir()
        (outside_folder / "secret").write_text("secret")
        (inside / "abs").symlink_to(outside_folder)
        (inside / "up").symlink_to(os.path.relpath(outside_folder, inside))
        (inside / "file").symlink_to(outside_folder / "secret")
        (inside / "own").write_text("own")
        (inside / "proc").symlink_to("/proc/self/root")
        for path_text in ("abs/secret", "up/secret", "file", f"proc{outside_folder}/secret"):
            await assert_refused((InvalidPath, WrongKindOfFile), volume.open_file(folder, parse_path(path_text)))
        for path_text in ("abs", "up", "proc"):
            for forbidden_call in (
                volume.list_directory(folder, parse_path(path_text), limit=10),
                volume.mount_path(folder, parse_path(path_text)),
                volume.make_directory(folder, parse_path(f"{path_text}/made"), parents=True, exist_ok=True),
                volume.move(folder, parse_path("own"), parse_path(f"{path_text}/own")),
                volume.rename(folder, parse_path(f"{path_text}/secret"), "gone"),
                put(volume, folder, f"{path_text}/new", b"new"),
            ):
                await assert_refused((InvalidPath, WrongKindOfFile, FileAlreadyExists, NoSuchFile), forbidden_call)
        await assert_refused(
            (InvalidPath, NoSuchFile), volume.delete_files(folder, [parse_path("abs/secret")], recursive=True)
        )
        await put(volume, folder, "file", b"mine")  # replaces the link, not what it leads to
        await volume.delete_files(folder, [parse_path("abs"), parse_path("up"), parse_path("proc")], recursive=True)
        assert {path.name: path.read_text() for path in outside_folder.iterdir()} == {"secret": "secret"}
        assert sorted(os.listdir(inside)) == ["file", "own"]

    @pytest.mark.parametrize("text", ["..", "a/../..", "/etc/passwd", "a\0b", "x/" * 3000, "n" * 256, "\ud800"])
    def test_a_malformed_path_is_no_path(self, text: str) -> None:
        with pytest.raises(InvalidPath):
            parse_path(text)

    async def test_a_race_between_check_and_use_wins_nothing(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path, tmp_path: Path
    ) -> None:
        """Reads never leave the folder while a directory on the path is now and then a link to the outside."""
        outside_folder = tmp_path / "outside"
        outside_folder.mkdir()
        (outside_folder / "file").write_text("secret")
        (inside / "real").mkdir()
        (inside / "real" / "file").write_text("own")
        (inside / "trap").symlink_to(outside_folder)
        read_contents: set[bytes] = set()
        with _swapping(inside):
            for round_number in range(150):
                with suppress(BackendError):
                    read_contents.add(await read(volume, folder, "at/file"))
                with suppress(BackendError):
                    await put(volume, folder, f"at/{round_number}", b"x")
                with suppress(BackendError):
                    await volume.delete_files(folder, [parse_path("at/file2")], recursive=True)
                with suppress(BackendError):
                    await volume.rename(folder, parse_path(f"at/{round_number}"), f"{round_number}-renamed")
        assert b"secret" not in read_contents
        assert os.listdir(outside_folder) == ["file"]

    async def test_what_looks_like_a_way_up_is_a_name(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        for name in LOOKALIKES:
            await put(volume, folder, f"{name}/{name}", name.encode())
            assert (inside / name / name).read_bytes() == name.encode()
        assert sorted(os.listdir(inside)) == sorted(await names(volume, folder)) == sorted(LOOKALIKES)
        assert not any(entry.name in LOOKALIKES for entry in inside.parent.iterdir())

    async def test_a_second_name_of_a_file_keeps_what_it_has(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path, tmp_path: Path
    ) -> None:
        """An upload replaces a hard link or a FIFO at its path, and writes nothing into either."""
        (tmp_path / "outside").write_text("old")
        with suppress(OSError):  # a file system with projects forbids the link itself
            os.link(tmp_path / "outside", inside / "file")
        os.mkfifo(inside / "fifo")
        await put(volume, folder, "file", b"new")
        await put(volume, folder, "fifo", b"new")
        assert (tmp_path / "outside").read_text() == "old"
        assert (inside / "file").read_bytes() == (inside / "fifo").read_bytes() == b"new"
        os.link(inside / "file", inside / "second")
        await volume.delete_files(folder, [parse_path("file")], recursive=False)
        assert (inside / "second").read_bytes() == b"new"

    async def test_no_walk_is_led_out(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path, tmp_path: Path
    ) -> None:
        """Counting, cloning and archiving stay inside while a directory becomes a link and a directory again."""
        outside_folder = tmp_path / "outside"
        (outside_folder / "below").mkdir(parents=True)
        for secret_number in range(3):
            (outside_folder / "below" / f"secret{secret_number}").write_text("secret")
        (inside / "real" / "below").mkdir(parents=True)
        (inside / "real" / "below" / "own").write_text("own")
        (inside / "trap").symlink_to(outside_folder)
        reached_names: set[str] = set()

        def archive() -> None:
            with suppress(BackendError), volume.open_tree(folder, [TOP]) as entries:
                for entry in entries:
                    reached_names.add(str(entry.path))
                    if entry.entry.kind == FileKind.FILE:
                        with suppress(BackendError):
                            file = entry.open()
                            reached_names.add(os.read(file.fd, 10).decode())
                            file.close()

        with _swapping(inside):
            for _ in range(25):
                with suppress(BackendError):
                    assert (await volume.folder_usage(folder)).file_count <= 3
                await asyncio.to_thread(archive)
                clone = random_folder_id()
                with suppress(BackendError):
                    await volume.clone_folder(folder, volume, clone, Progress())
                    clone_path = await volume.mount_path(clone, TOP)
                    reached_names |= {path.name for path in clone_path.rglob("*") if not path.is_symlink()}
                await volume.delete_folder(clone)
        assert not any("secret" in reached_name for reached_name in reached_names)
        assert sorted(path.name for path in (outside_folder / "below").iterdir()) == ["secret0", "secret1", "secret2"]

    async def test_room_is_counted_as_it_is_taken(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        """The usage of a folder counts disk space reserved beyond a file's size, and does not count a punched hole."""
        file_fd = os.open(inside / "file", os.O_CREAT | os.O_RDWR)
        try:
            if _fallocate(file_fd, 0x01, 2 << 20) != 0:  # KEEP_SIZE
                pytest.skip("capability: the file system reserves no room")
            os.fsync(file_fd)
            assert os.fstat(file_fd).st_size == 0
            assert (await volume.folder_usage(folder)).used_bytes >= 2 << 20
            os.pwrite(file_fd, os.urandom(2 << 20), 0)
            os.fsync(file_fd)
            assert (await volume.folder_usage(folder)).used_bytes >= 2 << 20
            if _fallocate(file_fd, 0x03, 2 << 20) == 0:  # PUNCH_HOLE
                os.fsync(file_fd)
                assert (await volume.folder_usage(folder)).used_bytes < 1 << 20
        finally:
            os.close(file_fd)


def _fallocate(file_fd: int, mode: int, size_bytes: int) -> int:
    return int(ctypes.CDLL(None).fallocate(file_fd, mode, ctypes.c_int64(0), ctypes.c_int64(size_bytes)))


@contextmanager
def _swapping(inside: Path) -> Iterator[None]:
    """Renames ``real`` and ``trap`` by turns to ``at`` and back, in a thread, while the context is open."""
    stop_event = threading.Event()

    def swap_repeatedly() -> None:
        while not stop_event.is_set():
            for entry_name in ("real", "trap"):
                try:
                    os.rename(inside / entry_name, inside / "at")
                    os.rename(inside / "at", inside / entry_name)
                except OSError:  # an upload has made a directory of that name
                    os.rename(inside / "at", inside / uuid4().hex)

    swap_thread = threading.Thread(target=swap_repeatedly)
    swap_thread.start()
    try:
        yield
    finally:
        stop_event.set()
        swap_thread.join()


class VolumeUploadContract:
    """Tests uploads, which are files that arrive in pieces and become visible when complete."""

    def make(self, path: Path, **context: Any) -> AbstractVolume:
        pytest.fail("override `make`")

    async def test_an_upload_is_seen_when_it_is_whole(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        (inside / "file").write_text("old")
        record, upload = await begin_upload(volume, folder, "file", 6)
        upload.write(b"abc")
        with pytest.raises(UploadIsBeingWritten):
            volume.open_upload(folder, record.session)
        await assert_refused(UploadIsBeingWritten, volume.drop_upload(folder, record.session))
        upload.close()
        assert os.listdir(inside) == ["file"]
        assert (await volume.find_upload(folder, record.session))[1] == 3
        restarted_volume = self.make(volume.path)
        await restarted_volume.start()
        upload = restarted_volume.open_upload(folder, record.session)
        assert upload.offset == 3
        upload.write(b"def")
        assert (inside / "file").read_text() == "old"
        upload.publish(record.path)
        upload.close()
        await restarted_volume.stop()
        assert (inside / "file").read_bytes() == b"abcdef"
        stored_record, offset = await volume.find_upload(folder, record.session)
        assert (stored_record.state, offset) == (UploadState.DONE, 6)
        upload = volume.open_upload(folder, record.session)
        upload.publish(record.path)  # once more does nothing
        upload.close()
        assert await volume.uploads(folder.scope) == [stored_record]

    async def test_what_does_not_count_is_taken_away(self, volume: AbstractVolume, folder: VFolderId) -> None:
        record, upload = await begin_upload(volume, folder, "file", 9)
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
        records = [UploadRecord(session=uuid4().hex, folder=folder, path=parse_path("file"), size=9) for _ in range(2)]
        for record in records:
            await volume.create_upload(record)
        await volume.drop_upload(folder, records[0].session)
        await assert_refused(UploadNotFound, volume.find_upload(folder, records[0].session))
        await assert_refused(UploadNotFound, volume.find_upload(random_folder_id(), records[1].session))
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
        for path_text in ("dir", ".", "file/below"):
            await assert_refused(WrongKindOfFile, put(volume, folder, path_text, b"x"))
        record, upload = await begin_upload(volume, folder, "late/file", 1)
        upload.write(b"x")
        (inside / "late" / "file").mkdir(parents=True)
        with pytest.raises(WrongKindOfFile):
            upload.publish(record.path)
        (inside / "late" / "file").rmdir()
        upload.publish(record.path)
        upload.close()
        assert (inside / "late" / "file").read_bytes() == b"x"
